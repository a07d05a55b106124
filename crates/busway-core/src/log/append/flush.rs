//! Flushing: passes appended records to the writer, and begins a new bucket when one is full.

use std::sync::atomic::Ordering::SeqCst;
use std::sync::Arc;

use super::Log;
use crate::log::bucket::checkpoint;
use crate::log::bucket::Building;
use crate::log::writer::{Data, Piece, Seal};
use crate::log::Safety;

/// Bytes of buckets and indexes between two checkpoints, unless a checkpoint is larger itself.
const BEHIND: u64 = 1 << 20;
/// The maximum number of indexes after a checkpoint, which are read when the log is opened.
const INDEXES: u64 = 1024;

impl Log {
    /// Passes appended records to the writer.
    pub fn flush(&mut self) {
        self.queue();
        self.wake();
    }

    /// As `flush`, but writes the records before it returns if nothing else waits and they need no sync. The bell does
    /// not ring for them.
    pub fn flush_here(&mut self) {
        self.queue();
        let written = match &self.threads {
            Some(writer) => writer.try_lock().is_ok_and(|mut writer| writer.write_here(&self.shared)),
            None => false,
        };
        if !written {
            self.wake();
        }
    }

    fn queue(&mut self) {
        if !self.tail.is_empty() {
            let bytes = std::mem::take(&mut self.tail);
            let size = bytes.len();
            self.shared.waiting.fetch_add(size, SeqCst);
            let mut state = self.shared.state();
            let (summary, marks) = (self.bucket.summary, &self.bucket.marks[self.marked..]);
            match state.pending.back_mut() {
                // Data of the writer must not change.
                Some(Piece::Data(data))
                    if data.base == summary.base && self.front.is_none() && data.verbatim == self.verbatim =>
                {
                    Arc::make_mut(&mut data.bytes).extend_from_slice(&bytes);
                    data.marks.extend_from_slice(marks);
                    data.summary = summary;
                    self.tail = bytes;
                    self.tail.clear();
                }
                _ => {
                    let marks = marks.to_vec();
                    let (base, position, from) = (summary.base, self.tail_at, self.tail_from);
                    state.pending.push_back(Piece::Data(Data {
                        base,
                        position,
                        from,
                        summary,
                        marks,
                        bytes: Arc::new(bytes),
                        verbatim: self.verbatim,
                    }));
                    self.tail = Vec::with_capacity(size);
                }
            }
            if self.settings.safety == Safety::Memory {
                // Before the writer can see the piece, since it must not remove safe records.
                self.shared.safe.fetch_max(self.next, SeqCst);
            }
            drop(state);
            self.marked = self.bucket.marks.len();
            (self.tail_from, self.tail_at) = (self.next, summary.length);
        }
    }

    pub(super) fn wake(&mut self) {
        match (&self.front, &mut self.writer) {
            (Some(front), _) => front.wake(&self.shared),
            (None, Some(_)) if self.by_hand => {}
            (None, Some(writer)) => while writer.step(&self.shared) {},
            (None, None) => self.shared.work.notify_one(),
        }
    }

    /// Writes flushed records, as the thread does; `remove_unwritten` returns the ones that could not be written.
    pub fn write(&mut self) {
        if let Some(writer) = &mut self.writer {
            while writer.step(&self.shared) {}
        }
    }

    /// Bytes that are flushed and not written yet.
    pub fn unwritten(&self) -> usize {
        self.shared.waiting.load(SeqCst)
    }

    /// Begins a new bucket.
    pub(in crate::log) fn roll(&mut self, now: i64) {
        self.flush();
        self.once.forget(now - self.settings.once_age);
        let mut seal = Seal { base: self.bucket.summary.base, index: Vec::new(), whole: None };
        if self.shared.indexed {
            seal.index = self.bucket.index(&self.topics, &self.once);
            self.behind.0 += self.bucket.summary.length + seal.index.len() as u64;
            self.behind.1 += 1;
            let weight = self.topics.weight + self.once.weight() + self.waiting.weight();
            if self.behind.0 >= BEHIND.min(4 * self.settings.bucket_bytes).max(weight) || self.behind.1 >= INDEXES {
                self.behind = (0, 0);
                let all = checkpoint::write(self.next, self.stored, &self.topics, &self.once, &self.waiting);
                seal.whole = Some((self.next, all));
            }
        }
        self.shared.state().pending.push_back(Piece::Seal(seal));
        self.fresh();
        self.wake();
        if !self.shared.indexed {
            // A log in memory trims itself; it has no files whose removal could fail.
            let _ = self.shared.trim(&self.settings, |_, _| false, u64::MAX);
            if self.front.is_none() {
                self.drop_waiting(self.reader().first());
            }
        }
    }

    /// Continues with a bucket that was found on the disk.
    pub(in crate::log) fn go_on(&mut self, bucket: Building, stored: i64, behind: (u64, u64)) {
        (self.tail_from, self.tail_at, self.marked) = (self.next, bucket.summary.length, bucket.marks.len());
        (self.bucket, self.stored, self.behind) = (bucket, stored, behind);
    }

    pub(in crate::log) fn fresh(&mut self) {
        self.topics.roll();
        self.bucket = Building::new(self.next);
        (self.tail_from, self.tail_at, self.marked) = (self.next, 0, 0);
    }
}
