//! Write-behind: the front of a stream that a database stores. A front is a log in memory that assigns offsets and
//! sequences and detects duplicates.
//!
//! The store waits for the bell, takes waiting records (`unstored`), and reports the result: `stored` makes them safe,
//! and after `fail` `remove_unwritten` removes them. The last safe records stay in memory for readers near the end.

use std::sync::atomic::Ordering::SeqCst;
use std::sync::Arc;

use super::append::Log;
use super::bucket::{Building, Topics};
use super::record::HEAD;
use super::{Safety, Settings};
use crate::log::bucket::dedup::Once;
use crate::log::bucket::delayed::{Parked, Waiting};
use crate::log::files::memory::Simulated;
use crate::log::read::Block;
use crate::log::recover::Found;
use crate::log::writer::{Bell, Failure, Piece, Shared};

/// A run of a publisher's messages with consecutive numbers, offsets and sequences.
#[derive(Debug, Clone, Copy)]
pub struct Sent {
    pub session: u64,
    pub number: u64,
    pub offset: u64,
    pub sequence: u64,
    pub count: u64,
}

/// The state of the database.
#[derive(Debug, Default)]
pub struct Kept {
    /// The offset of the next record.
    pub next: u64,
    /// When the newest record was stored.
    pub stored: i64,
    /// The last sequence of each topic that was ever stored.
    pub sequences: Vec<(String, u64)>,
    /// In the order of their offsets.
    pub sent: Vec<Sent>,
    pub waiting: Vec<Parked>,
}

pub struct Front {
    bell: Bell,
    /// The number of waiting pieces that the store has taken.
    taken: usize,
    sent: Vec<Sent>,
}

impl Front {
    /// The sequence of a record that was stored before this front was opened.
    pub fn sequence_at(&self, offset: u64) -> Option<u64> {
        let at = self.sent.partition_point(|run| run.offset <= offset);
        let run = self.sent[..at].last().filter(|run| offset - run.offset < run.count)?;
        Some(run.sequence + (offset - run.offset))
    }

    pub fn wake(&self, shared: &Shared) {
        if shared.state().pending.len() > self.taken {
            (self.bell)();
        }
    }
}

impl Log {
    /// Opens a front that keeps `keep` bytes of safe records in memory. The bell rings when records wait to be stored.
    pub fn front(settings: Settings, keep: u64, kept: Kept, bell: Bell) -> Self {
        let (max_age, max_bytes, max_count) = (0, keep.max(HEAD as u64), 0);
        let bucket_bytes = (max_bytes / 8).clamp(64 << 10, 1 << 20);
        // Records must not be safe before they are stored, since `remove_unwritten` could not remove them then.
        let safety = Safety::Written;
        let settings = Settings { safety, bucket_bytes, max_age, max_bytes, max_count, ..settings };
        let (mut topics, mut once, mut waiting) = (Topics::default(), Once::default(), Waiting::default());
        for (text, last) in &kept.sequences {
            topics.get(text).last = *last;
        }
        for Sent { session, number, offset, count, .. } in &kept.sent {
            once.add_run(*session, *number, *offset, *count, kept.stored);
        }
        kept.waiting.into_iter().for_each(|parked| waiting.add(parked));
        let Kept { next, stored, sent, .. } = kept;
        let bucket = Building::new(next);
        let found = Found { bucket, topics, once, waiting, next, stored, ..Found::default() };
        let mut log = Self::start(Arc::new(Simulated::new(false)), settings, None, found, false);
        log.front = Some(Front { bell, taken: 0, sent });
        log
    }

    /// Takes about `most` bytes of appended records; None: there are none, or this is no front.
    pub fn unstored(&mut self, most: usize) -> Option<Block> {
        let front = self.front.as_mut()?;
        let state = self.shared.state();
        let mut block = Block::default();
        for piece in state.pending.iter().skip(front.taken) {
            if let Piece::Data(data) = piece {
                if block.bytes.is_empty() {
                    block.first = data.from;
                } else if block.bytes.len() + data.bytes.len() > most {
                    break;
                }
                block.bytes.extend_from_slice(&data.bytes);
                block.next = data.summary.end;
            }
            front.taken += 1;
        }
        (!block.bytes.is_empty()).then_some(block)
    }

    /// Reports that all taken records below this offset are stored.
    pub fn stored(&mut self, upto: u64) {
        let Some(front) = self.front.as_mut() else { return };
        let Some(writer) = self.writer.as_mut() else { return };
        loop {
            let goes = match self.shared.state().pending.front() {
                Some(Piece::Data(data)) => front.taken > 0 && data.summary.end <= upto,
                Some(Piece::Seal(_)) => true,
                None => false,
            };
            if !goes || !writer.step(&self.shared) {
                return;
            }
            front.taken = front.taken.saturating_sub(1);
        }
    }

    /// Reports that waiting records can't be stored: all, or only those not taken yet. The next `remove_unwritten` removes them.
    pub fn fail(&mut self, error: &str, taken: bool) {
        self.flush();
        let Some(front) = self.front.as_mut() else { return };
        let mut state = self.shared.state();
        let keep = if taken { 0 } else { front.taken };
        let (mut refused, mut sealed) = (Vec::new(), false);
        for piece in state.pending.split_off(keep) {
            match piece {
                Piece::Data(data) => refused.push(data),
                // It stays if its bucket keeps all its records.
                Piece::Seal(seal) if refused.is_empty() => state.pending.push_back(Piece::Seal(seal)),
                Piece::Seal(_) => sealed = true,
            }
        }
        front.taken = front.taken.min(state.pending.len());
        if !refused.is_empty() {
            state.failure = Some(Failure { error: error.into(), refused, poisoned: sealed });
            self.shared.failed.store(true, SeqCst);
        }
    }
}
