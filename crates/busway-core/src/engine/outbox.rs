//! The outbox of a connection: complete frames in segments, limited by its owner, with a count of dropped messages per
//! subscription.
//!
//! Segments come from a pool, since allocating memory for every write costs more than filling it.

use rustc_hash::FxHashMap;
use std::collections::VecDeque;

use crate::wire::frame::{flag, kind, Writer};

/// The maximum size of a segment, unless a single frame is larger.
const SEGMENT: usize = 128 << 10;
const POOLED: usize = 16;

/// Used buffers that can be reused.
#[derive(Debug, Default)]
pub struct Pool(Vec<Vec<u8>>);

impl Pool {
    /// A used buffer, or a new one with this capacity.
    pub fn get(&mut self, capacity: usize) -> Vec<u8> {
        self.0.pop().unwrap_or_else(|| Vec::with_capacity(capacity))
    }

    /// Takes the buffers of another pool if this one is empty.
    pub fn refill(&mut self, other: &mut Self) {
        if self.0.is_empty() {
            std::mem::swap(&mut self.0, &mut other.0);
        }
    }

    pub fn put(&mut self, mut buffer: Vec<u8>) {
        // Small buffers are cheap to allocate, and huge ones too large to keep.
        if self.0.len() < POOLED && (SEGMENT / 2..=2 * SEGMENT).contains(&buffer.capacity()) {
            buffer.clear();
            self.0.push(buffer);
        }
    }
}

/// Dropped messages by subscription.
type Account = FxHashMap<u32, u64>;

#[derive(Debug, Default)]
pub struct Outbox {
    segments: VecDeque<Vec<u8>>,
    /// How much of the first segment was dropped or moved to `kept`.
    head: usize,
    bytes: usize,
    /// Dropped from the front: reported before the first segment, after the frames that were kept of dropped segments.
    front: Account,
    kept: Vec<u8>,
    /// Dropped at the end: reported before the next message.
    back: Account,
}

fn count(account: &mut Account, sub: u32) {
    *account.entry(sub).or_default() += 1;
}

fn tell(account: &mut Account, out: &mut Vec<u8>) {
    for (sub, n) in account.drain() {
        Writer::new(out, kind::MISSED, 0).u16(0).u32(sub).u64(n).end();
    }
}

impl Outbox {
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    pub fn is_empty(&self) -> bool {
        self.bytes == 0 && self.front.is_empty() && self.back.is_empty()
    }

    /// Appends what `write` writes, about `size` bytes.
    #[inline]
    pub fn push(&mut self, pool: &mut Pool, size: usize, write: impl FnOnce(&mut Vec<u8>)) {
        if self.segments.back().is_none_or(|last| last.len() + size > SEGMENT) {
            // A first segment may stay small; the one after a full segment will be full.
            let most = if self.segments.is_empty() { 0 } else { SEGMENT.max(size) };
            self.segments.push_back(pool.get(most));
        }
        if let Some(last) = self.segments.back_mut() {
            let before = last.len();
            if !self.back.is_empty() {
                tell(&mut self.back, last);
            }
            write(last);
            self.bytes += last.len() - before;
        }
    }

    /// Counts a message that was not accepted for these subscriptions.
    pub fn miss(&mut self, subs: &[u32]) {
        for &sub in subs {
            count(&mut self.back, sub);
        }
    }

    /// Counts messages that were dropped before they reached this outbox.
    pub fn miss_many(&mut self, sub: u32, count: u64) {
        *self.back.entry(sub).or_default() += count;
    }

    /// Drops the oldest droppable messages until less than `limit` bytes are left. Returns how many.
    pub fn drop_oldest(&mut self, pool: &mut Pool, limit: usize) -> u64 {
        let mut dropped = 0;
        while self.bytes >= limit {
            let Some(segment) = self.segments.front() else { break };
            let rest = &segment[self.head..];
            let Some(head) = rest.first_chunk::<8>() else {
                if self.segments.len() == 1 {
                    break;
                }
                self.next_segment(pool);
                continue;
            };
            let size = u32::from_le_bytes([head[0], head[1], head[2], head[3]]) as usize + 4;
            let frame = &rest[..size];
            let message = head[4] == kind::DELIVER || head[4] == kind::RECORD;
            if message && head[5] & flag::KEEP == 0 {
                let ids = u16::from_le_bytes([head[6], head[7]]) as usize;
                for id in frame[16..16 + 4 * ids].chunks_exact(4) {
                    count(&mut self.front, u32::from_le_bytes([id[0], id[1], id[2], id[3]]));
                }
                self.bytes -= size;
                dropped += 1;
            } else {
                let before = self.kept.len();
                if message {
                    // The frame may be for a subscription that lost messages before it.
                    tell(&mut self.front, &mut self.kept);
                }
                self.bytes += self.kept.len() - before;
                self.kept.extend_from_slice(frame);
            }
            self.head += size;
        }
        dropped
    }

    fn next_segment(&mut self, pool: &mut Pool) {
        self.head = 0;
        if let Some(done) = self.segments.pop_front() {
            pool.put(done);
        }
    }

    /// The next bytes to send.
    pub fn pop(&mut self, pool: &mut Pool) -> Option<Vec<u8>> {
        if !self.kept.is_empty() || !self.front.is_empty() {
            let mut first = std::mem::take(&mut self.kept);
            self.bytes -= first.len();
            tell(&mut self.front, &mut first);
            return Some(first);
        }
        while let Some(segment) = self.segments.front_mut() {
            if self.head == segment.len() {
                self.next_segment(pool);
                continue;
            }
            segment.drain(..self.head);
            self.head = 0;
            self.bytes -= segment.len();
            return self.segments.pop_front();
        }
        if self.back.is_empty() {
            return None;
        }
        let mut last = pool.get(0);
        tell(&mut self.back, &mut last);
        Some(last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn deliver(out: &mut Vec<u8>, sub: u32, flags: u8) {
        Writer::new(out, kind::DELIVER, flags).u16(1).u32(0).u32(0).u32(sub).bytes(&[0; 1000]).end();
    }

    #[test]
    fn every_dropped_message_is_accounted_for() {
        let (mut outbox, mut pool) = (Outbox::default(), Pool::default());
        for i in 0..1000 {
            outbox.push(&mut pool, 1020, |out| deliver(out, i % 2, if i % 10 == 0 { flag::KEEP } else { 0 }));
        }
        let mut dropped = 0;
        for limit in [600_000, 500_000, 300_000] {
            dropped += outbox.drop_oldest(&mut pool, limit);
            assert!(outbox.bytes() < limit);
        }
        outbox.miss(&[1, 1, 0]);
        let (mut missed, mut seen) = (0, 0);
        while let Some(bytes) = outbox.pop(&mut pool) {
            let mut at = 0;
            while at < bytes.len() {
                let size = u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap()) as usize + 4;
                match bytes[at + 4] {
                    kind::MISSED => missed += u64::from_le_bytes(bytes[at + 12..at + 20].try_into().unwrap()),
                    _ => seen += 1,
                }
                at += size;
            }
        }
        assert!(dropped > 0 && outbox.is_empty() && outbox.bytes() == 0);
        assert_eq!(missed, dropped + 3);
        assert_eq!(seen + dropped, 1000);
    }
}
