//! Rollback: removes records that the writer could not store, and refuses new ones in the meantime.

use std::collections::VecDeque;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};

use super::Log;
use crate::clock;
use crate::log::bucket::dedup::Once;
use crate::log::bucket::{log_name, Building, Topics};
use crate::log::files::rest;
use crate::log::record::records;
use crate::log::recover::Scan;
use crate::log::writer::{Data, Piece, Seal, RETRY};
use crate::log::Refused;

/// Records that were not stored, from the first offset to before the second. New records get these offsets again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lost {
    pub from: u64,
    pub to: u64,
    pub error: String,
    /// Due time and offset of delayed messages that were due, and wait again.
    pub waiting: Vec<(i64, u64)>,
}

impl Log {
    /// Refuses new records while earlier ones can't be written.
    #[inline]
    pub(in crate::log) fn check_writing(&mut self) -> Result<(), Refused> {
        if self.failed.is_some() || self.shared.failed.load(Relaxed) || self.shared.stuck.load(Relaxed) {
            return self.try_again();
        }
        Ok(())
    }

    #[cold]
    fn try_again(&mut self) -> Result<(), Refused> {
        // The owner must remove_unwritten the lost records before the log accepts new ones.
        let refuse = |error: &str| Err(Refused::Failed(error.into()));
        let state = self.shared.state();
        if let Some(error) = state.failure.as_ref().map(|failure| &failure.error).or(state.stuck.as_ref()) {
            return refuse(error);
        }
        drop(state);
        match &self.failed {
            Some((until, error)) if clock::steady() < *until => refuse(error),
            _ => {
                self.failed = None;
                Ok(())
            }
        }
    }

    /// Removes records that could not be written. Call it when the bell has rung.
    pub fn remove_unwritten(&mut self) -> Option<Lost> {
        if !self.shared.failed.load(SeqCst) {
            return None;
        }
        let mut state = self.shared.state();
        let mut failure = state.failure.take()?;
        let mut sealed = failure.poisoned;
        // The waiting records of a front are not lost: `fail` has selected the lost ones.
        let lost = if self.front.is_some() { VecDeque::new() } else { std::mem::take(&mut state.pending) };
        for piece in lost {
            match piece {
                Piece::Data(data) => failure.refused.push(data),
                Piece::Seal(_) => sealed = true,
            }
        }
        let Data { base, position: length, from, .. } = failure.refused[0];
        let to = self.next;
        self.shared.waiting.store(state.pending.iter().map(Piece::size).sum(), SeqCst);
        self.shared.failed.store(false, SeqCst);
        self.failing = Some((failure.error.clone(), state.written));
        drop(state);
        let tail = std::mem::take(&mut self.tail);
        let blocks = failure.refused.iter().map(|data| data.bytes.as_slice()).chain([&tail[..]]);
        let all: Vec<_> = blocks.flat_map(records).collect();
        for record in all.iter().rev() {
            if !record.is_parked() {
                self.topics.get(record.topic).retract(record.sequence());
            }
            if record.session() != 0 && !record.is_released() {
                self.once.retract(record.session(), record.number());
            }
        }
        let waiting = self.waiting.retract(from).into_iter().map(|parked| (parked.due, parked.offset)).collect();
        self.next = from;
        if sealed || length == 0 {
            let indexed = self.shared.indexed;
            let index = if indexed { self.index_again(base, length) } else { (length > 0).then(Vec::new) };
            if let Some(index) = index {
                self.shared.state().pending.push_back(Piece::Seal(Seal { base, index, whole: None }));
            }
            self.fresh();
        } else {
            self.bucket.retract(from, length, all.len() as u64);
            (self.tail_from, self.tail_at, self.marked) = (from, length, self.bucket.marks.len());
        }
        self.failed = Some((clock::steady() + RETRY, failure.error.clone()));
        Some(Lost { from, to, error: failure.error, waiting })
    }

    /// The index of a bucket that was cut; None: it is empty, or unreadable now.
    fn index_again(&mut self, base: u64, length: u64) -> Option<Vec<u8>> {
        let bytes = rest(&*self.shared.files.open(&log_name(base)).ok()?, 0, length).ok()?;
        let (building, topics, once) = (Building::new(base), Topics::default(), Once::default());
        let mut scan = Scan { building, topics, once, limit: Some(self.next) };
        scan.run(&bytes, &mut Vec::new());
        (length > 0).then(|| scan.building.index(&scan.topics, &self.once))
    }

    /// Why safe records are not written or synced yet, and how many; None if they are.
    pub fn stuck(&self) -> Option<(String, u64)> {
        let state = self.shared.state();
        let unwritten = self.shared.safe.load(SeqCst).saturating_sub(state.written);
        Some((state.stuck.clone()?, unwritten + state.unsynced))
    }
}
