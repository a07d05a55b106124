//! The appending side of a log: assigns offsets and sequences, and encodes records.
//!
//! One thread appends. `append` only encodes into memory, and `flush` passes everything to the writer. `remove_unwritten` (in
//! `rollback`) removes records that the writer could not store, so that offsets and sequences continue after the last
//! safe record. `lifecycle` opens and closes it.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use super::bucket::{Building, Topic, Topics};
use super::record::Message;
use super::{Position, Refused, Settings};
use crate::clock;
use crate::log::bucket::dedup::{Known, Once};
use crate::log::bucket::delayed::{Parked, Waiting};
use crate::log::read::Reader;
use crate::log::repair::Closing;
use crate::log::write_behind::Front;
use crate::log::writer::{Shared, Writer};

mod flush;
mod lifecycle;
mod rollback;

pub use rollback::Lost;

/// How far a clock may be set back before the log checks which of both times was wrong.
pub(super) const STEP: i64 = 60_000_000_000;

pub struct Log {
    pub(super) shared: Arc<Shared>,
    pub(super) settings: Settings,
    pub(super) topics: Topics,
    pub(super) once: Once,
    pub(super) waiting: Waiting,
    pub(super) bucket: Building,
    /// Records that were not flushed, and where they begin in the bucket.
    pub(super) tail: Vec<u8>,
    tail_from: u64,
    tail_at: u64,
    /// Marks of the bucket that the writer has.
    marked: usize,
    pub(super) next: u64,
    pub(super) stored: i64,
    /// A time of the clock that was not set back since, and the steady clock at that moment.
    steady: Option<(Duration, i64)>,
    /// Since when the newest record is known to be later than the clock.
    pub(super) ahead: Option<i64>,
    /// Bytes and buckets since the last checkpoint.
    behind: (u64, u64),
    failed: Option<(Duration, String)>,
    pub(super) held: (u64, u64),
    /// The writer of a log without a thread.
    pub(super) writer: Option<Writer>,
    /// The writer of a log with a thread.
    threads: Option<Arc<Mutex<Writer>>>,
    thread: Option<JoinHandle<()>>,
    /// Nothing is written before `write` is called.
    by_hand: bool,
    /// A database stores the records, and reports the results.
    pub(super) front: Option<Front>,
    /// Records in the tail are written unchanged.
    pub(super) verbatim: bool,
    /// The log is suspended: it accepts no new records.
    pub(super) resting: bool,
    /// The owner's reason to refuse new records, such as too little disk space.
    refusing: Option<String>,
    /// Why the last write failed, and where the written records ended then.
    failing: Option<(String, u64)>,
    /// Holes that are being repaired.
    pub(super) closing: Vec<Closing>,
    closed: bool,
}

impl Log {
    /// The reading side, for any thread.
    pub fn reader(&self) -> Reader {
        Reader { shared: self.shared.clone() }
    }

    /// The offset of the next record.
    pub fn next(&self) -> u64 {
        self.next
    }

    /// Offset after the last record with the configured safety.
    pub fn safe(&self) -> u64 {
        self.shared.safe_for_all()
    }

    pub fn settings(&self) -> Settings {
        self.settings
    }

    /// The records of each topic in the current bucket, and its base: for `Reader::topics`.
    pub fn inside(&self) -> (Vec<Topic>, u64) {
        (self.topics.inside().cloned().collect(), self.bucket.summary.base)
    }

    /// Every topic that was ever stored, with its last sequence.
    pub fn sequences(&self) -> impl Iterator<Item = (&str, u64)> {
        self.topics.all.iter().map(|topic| (&*topic.text, topic.last))
    }

    /// The delayed messages.
    pub fn waiting(&self) -> &Waiting {
        &self.waiting
    }

    /// Appends a message. It is stored when `safe` is above its offset.
    #[inline]
    pub fn append(&mut self, now: i64, message: &Message<'_>) -> Result<Position, Refused> {
        if self.resting {
            return Err(Refused::Full);
        }
        self.check_writing()?;
        let size = message.size().ok_or(Refused::TooLarge)?;
        if message.session != 0 {
            match self.once.find(message.session, message.number) {
                Known::New => {}
                Known::At(offset) => return self.again(offset),
                Known::TooOld => return Err(Refused::TooOld),
            }
        }
        self.put(now, message, size, false)
    }

    /// Appends a delayed message that is due again; None: it does not wait any more, or has expired.
    pub fn release(&mut self, now: i64, message: &Message<'_>) -> Result<Option<Position>, Refused> {
        if self.resting {
            return Err(Refused::Full);
        }
        let (session, number) = (message.session, message.number);
        if !self.waiting.has(session, number) {
            return Ok(None);
        }
        if message.expires != 0 && message.expires <= now {
            self.waiting.remove(session, number);
            return Ok(None);
        }
        self.check_writing()?;
        let size = message.size().ok_or(Refused::TooLarge)?;
        let place = self.put(now.max(message.due), message, size, true)?;
        self.waiting.release(session, number, place.offset, self.safe());
        Ok(Some(place))
    }

    /// Refuses new messages with this reason, but confirms duplicates of stored ones. None accepts messages again.
    pub fn refuse(&mut self, why: Option<String>) {
        self.refusing = why;
    }

    /// Why the last write failed; None: no write failed, or a later one succeeded.
    pub fn failure(&self) -> Option<&str> {
        let (error, written) = self.failing.as_ref()?;
        (self.shared.state().written <= *written).then_some(error)
    }

    #[inline]
    fn put(&mut self, now: i64, message: &Message<'_>, size: usize, released: bool) -> Result<Position, Refused> {
        if let Some(why) = &self.refusing {
            return Err(Refused::NoSpace(why.clone()));
        }
        let waiting = self.shared.waiting.load(Relaxed) + self.tail.len();
        if waiting > 0 && waiting + size > self.settings.pending_bytes {
            return Err(Refused::Full);
        }
        let stored = self.stamp(now);
        let (session, number, due) = (message.session, message.number, message.due);
        let parked = due > stored && session != 0;
        if parked && self.settings.max_delay > 0 && due - stored > self.settings.max_delay {
            return Err(Refused::TooLate);
        }
        let (own, (bytes, count)) = (&self.bucket.summary, self.settings.bucket());
        let full = own.length + size as u64 > bytes || own.count >= count;
        if own.count > 0 && (full || stored - own.first > self.settings.bucket_age) {
            self.roll(stored);
        }
        let offset = self.next;
        let sequence = if parked {
            let parked = Parked { due, offset, session, number };
            self.waiting.add(parked);
            self.bucket.moves.park(parked);
            0
        } else {
            self.topics.append(message.topic, offset)
        };
        if released {
            self.bucket.moves.release(session, number, offset);
        }
        let due = if parked || released { due } else { 0 };
        Message { due, ..*message }.encode(offset, sequence, stored, &mut self.tail);
        self.bucket.add(offset, stored, size);
        if session != 0 && !released {
            self.once.add(session, number, offset, stored);
        }
        (self.next, self.stored) = (offset + 1, stored);
        Ok(Position { offset, sequence, again: false })
    }

    /// The stored time of the next record. If the clock was set back a little, or was wrong for a while, the time
    /// stands still. If it had been ahead, a new bucket begins, so that times only grow within a bucket.
    #[inline]
    fn stamp(&mut self, now: i64) -> i64 {
        let back = self.stored.saturating_sub(now) > STEP;
        if back && !self.was_ahead(now) {
            return self.stored;
        }
        if self.steady.is_none() {
            self.steady = Some((clock::steady(), now));
        }
        if back {
            if self.bucket.summary.count > 0 {
                self.roll(now);
            }
            return now;
        }
        now.max(self.stored)
    }

    /// True if the time of the last record was wrong, and not this one.
    #[cold]
    fn was_ahead(&self, now: i64) -> bool {
        if let Some((when, clock)) = self.steady {
            let expected = clock
                .saturating_add(i64::try_from(clock::steady().saturating_sub(when).as_nanos()).unwrap_or(i64::MAX));
            return now.abs_diff(expected) < self.stored.abs_diff(expected);
        }
        match &self.shared.state().buckets[..] {
            [.., before, last] => before.summary.last <= now && last.summary.first - now > STEP,
            _ => false,
        }
    }

    /// The positions of a session's stored messages, of `count` numbers from `first` on. Unknown and forgotten ones are
    /// left out.
    pub fn placed(&mut self, session: u64, first: u64, count: u64) -> Result<Vec<(u64, Position)>, Refused> {
        let mut found = Vec::new();
        for number in first..first.saturating_add(count) {
            if let Known::At(offset) = self.once.find(session, number) {
                found.push((number, self.again(offset)?));
            }
        }
        Ok(found)
    }

    /// The position of a duplicate; its sequence is 0 if the record is gone.
    fn again(&mut self, offset: u64) -> Result<Position, Refused> {
        self.flush();
        let found = self.reader().sequence_at(offset).map_err(|error| Refused::Failed(error.to_string()))?;
        let known = found.or_else(|| self.front.as_ref().and_then(|front| front.sequence_at(offset)));
        Ok(Position { offset, sequence: known.unwrap_or(0), again: true })
    }
}
