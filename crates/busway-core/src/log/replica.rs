//! A mirror's copy of a log: the same records with the same bytes, and the same holes.
//!
//! A copy has no limits of its own: `trim_to` removes the records that the original has removed.

use std::io;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};

use super::append::Log;
use super::bucket::learn;
use super::record::Record;
use super::{Refused, Settings};
use crate::log::bucket::delayed::Parked;
use crate::log::recover::begin_with;
use crate::log::retention::Trimmed;
use crate::log::writer::State;

/// Offsets, sequences and times must be below.
const MOST: u64 = 1 << 63;

/// Why a block was not copied.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Uncopied {
    Refused(Refused),
    /// The block does not belong to this log.
    Wrong(&'static str),
}

/// The records of a block, if it can follow at `next`.
fn checked(block: &[u8], mut next: u64) -> Result<Vec<Record<'_>>, &'static str> {
    let (mut all, mut rest) = (Vec::new(), block);
    while !rest.is_empty() {
        let record = Record::sound(rest).ok_or("a record is damaged")?;
        if record.offset() < next {
            return Err("an offset that is there already");
        }
        if record.offset() >= MOST || record.sequence() >= MOST || record.stored() < 0 {
            return Err("an offset, a sequence or a time that can't be");
        }
        next = record.offset() + 1;
        rest = &rest[record.bytes.len()..];
        all.push(record);
    }
    Ok(all)
}

impl Log {
    /// Appends the records of a block unchanged, all or none; they are stored when `safe` is above their offsets.
    /// False: too much waits to be written.
    pub fn copy(&mut self, block: &[u8]) -> Result<bool, Uncopied> {
        self.check_writing().map_err(Uncopied::Refused)?;
        let all = checked(block, self.next).map_err(Uncopied::Wrong)?;
        // Appended records are marked when they are written, copied ones are not.
        self.flush();
        let waiting = self.shared.waiting.load(Relaxed);
        if waiting > 0 && waiting + block.len() > self.settings.pending_bytes {
            return Ok(false);
        }
        self.verbatim = true;
        for record in &all {
            self.put_copy(record);
        }
        self.flush();
        self.verbatim = false;
        Ok(true)
    }

    fn put_copy(&mut self, record: &Record<'_>) {
        let (offset, stored) = (record.offset(), record.stored());
        let (own, (bytes, count)) = (self.bucket.summary, self.settings.bucket());
        let full = own.length + record.bytes.len() as u64 > bytes || own.count >= count;
        let aged = stored < own.last || stored - own.first > self.settings.bucket_age;
        if own.count > 0 && (full || aged || offset > self.next) {
            self.roll(stored);
        }
        if offset > self.next {
            self.next = offset;
            self.fresh();
        }
        self.tail.extend_from_slice(record.bytes);
        learn(record, &mut self.bucket, &mut self.topics, &mut self.once);
        let (session, number) = (record.session(), record.number());
        if record.is_parked() {
            self.waiting.add(Parked { due: record.due(), offset, session, number });
        } else if record.is_released() {
            self.waiting.release(session, number, offset, self.safe());
        }
        (self.next, self.stored) = (offset + 1, stored);
    }

    /// Removes the buckets before this offset. If none is left, the log continues there.
    pub fn trim_to(&mut self, first: u64) -> io::Result<Trimmed> {
        let own = self.bucket.summary;
        if own.count > 0 && own.end <= first {
            self.roll(own.last);
        }
        let none = Settings { max_age: 0, max_bytes: 0, max_count: 0, hold: u64::MAX, ..self.settings };
        let gone = |state: &State, at: usize| state.buckets[at].summary.end <= first;
        let gone = self.shared.trim(&none, gone, u64::MAX)?;
        if gone.buckets > 0 {
            self.drop_waiting(self.reader().first());
        }
        let state = self.shared.state();
        let empty = state.buckets.is_empty() && state.pending.is_empty() && state.writing.is_none();
        drop(state);
        if first > self.next && empty && self.tail.is_empty() {
            if self.shared.indexed {
                begin_with(&*self.shared.files, first)?;
            }
            let mut state = self.shared.state();
            (state.begin, state.written) = (state.begin.map(|_| first), first);
            self.shared.safe.fetch_max(first, SeqCst);
            drop(state);
            self.next = first;
            self.fresh();
        }
        Ok(gone)
    }

    /// Limits `safe` to this offset until a mirror has the records. None: only the disk counts. Safe records stay safe.
    pub fn confirm(&mut self, upto: Option<u64>) {
        let _state = self.shared.state(); // the lock keeps `safe` unchanged
        let cap = upto.map_or(u64::MAX, |upto| upto.max(self.shared.safe_for_all()));
        self.shared.cap.store(cap, SeqCst);
    }

    /// Suspends the log: it accepts no records, not even duplicates, as if too much waited to be written.
    pub fn rest(&mut self, yes: bool) {
        self.resting = yes;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::{Damage, Position};
    use super::*;
    use crate::log::files::memory::Simulated;
    use crate::log::record::{records, Message};

    fn open(files: &Simulated, settings: Settings) -> Log {
        Log::open(Arc::new(files.clone()), settings, None, 0).unwrap()
    }

    fn message(number: u64) -> Message<'static> {
        Message { topic: "t", session: 7, number, payload: b"some payload", ..Message::default() }
    }

    fn origin(count: u64) -> Log {
        let mut log = Log::memory(Settings::default(), 0);
        for number in 1..=count {
            log.append(number.cast_signed(), &message(number)).unwrap();
            if number % 3 == 0 {
                log.flush();
            }
        }
        log.flush();
        log
    }

    fn all(log: &Log) -> Vec<u8> {
        let (mut out, mut from) = (Vec::new(), 0);
        while from < log.safe() {
            let block = log.reader().read(from, 1 << 20).unwrap();
            out.extend_from_slice(&block.bytes);
            from = block.next.max(from + 1);
        }
        out
    }

    #[test]
    fn a_copy_has_the_same_bytes_and_knows_the_same_publishers() {
        let (from, files) = (origin(100), Simulated::new(true));
        let settings = Settings { bucket_bytes: 1000, ..Settings::default() };
        let mut to = open(&files, settings);
        let mut next = 0;
        while next < from.safe() {
            let block = from.reader().read(next, 500).unwrap();
            assert_eq!(to.copy(&block.bytes), Ok(true));
            next = block.next;
        }
        assert!(to.reader().usage().1 > 5, "it has buckets of its own size");
        assert_eq!(all(&to), all(&from));
        drop(to);
        let mut again = open(&files, settings);
        assert_eq!(again.reader().damage(), []);
        assert_eq!((all(&again), again.next()), (all(&from), 100));
        assert_eq!(again.append(500, &message(100)), Ok(Position { offset: 99, sequence: 100, again: true }));
        assert_eq!(again.append(500, &message(101)), Ok(Position { offset: 100, sequence: 101, again: false }));
    }

    #[test]
    fn what_waits_at_the_origin_waits_in_the_copy() {
        let mut from = Log::memory(Settings::default(), 0);
        from.append(1, &Message { due: 50, ..message(1) }).unwrap();
        from.append(1, &Message { due: 60, ..message(2) }).unwrap();
        from.flush();
        let parked = from.reader().read(0, 1).unwrap();
        from.release(55, &records(&parked.bytes).next().unwrap().message()).unwrap();
        from.flush();
        let mut to = Log::memory(Settings::default(), 0);
        assert_eq!(to.copy(&all(&from)), Ok(true));
        assert_eq!(to.waiting().sorted(), from.waiting().sorted());
        assert_eq!(to.waiting().len(), 1);
    }

    #[test]
    fn nothing_is_taken_of_what_can_not_be_its_own() {
        let from = origin(9);
        let bytes = all(&from);
        let mut to = Log::memory(Settings::default(), 0);
        let mut bad = bytes.clone();
        *bad.last_mut().unwrap() ^= 1;
        assert_eq!(to.copy(&bad), Err(Uncopied::Wrong("a record is damaged")));
        assert_eq!(to.copy(&bytes[..bytes.len() - 1]), Err(Uncopied::Wrong("a record is damaged")));
        let twice = [&bytes[..], &bytes[..]].concat();
        assert_eq!(to.copy(&twice), Err(Uncopied::Wrong("an offset that is there already")));
        let mut far = Vec::new();
        message(1).encode(u64::MAX, 1, 1, &mut far);
        assert!(matches!(to.copy(&far), Err(Uncopied::Wrong(_))));
        assert_eq!((to.next(), to.safe()), (0, 0));
        assert_eq!(to.copy(&bytes), Ok(true));
        assert_eq!(to.copy(&bytes), Err(Uncopied::Wrong("an offset that is there already")));
    }

    #[test]
    fn a_hole_of_the_origin_is_one_of_the_copy_and_nothing_else_is_damaged() {
        let (from, files) = (origin(30), Simulated::new(true));
        let part = |from: &Log, first: u64, end: u64| {
            let bytes = all(from);
            let inside = records(&bytes).filter(|record| (first..end).contains(&record.offset()));
            inside.flat_map(|record| record.bytes.to_vec()).collect::<Vec<u8>>()
        };
        let mut to = open(&files, Settings::default());
        assert_eq!(to.trim_to(5).unwrap().buckets, 0);
        assert_eq!((to.next(), to.safe(), to.reader().first()), (5, 5, 5));
        assert_eq!(to.copy(&part(&from, 5, 10)), Ok(true));
        assert_eq!(to.copy(&part(&from, 20, 30)), Ok(true));
        let block = to.reader().read(10, 1 << 20).unwrap();
        assert_eq!((block.first, block.next), (20, 30));
        drop(to);
        let mut again = open(&files, Settings::default());
        assert_eq!((again.reader().first(), again.next()), (5, 30));
        let holes: Vec<Damage> = again.reader().damage();
        assert_eq!(holes.iter().map(|one| (one.from, one.to)).collect::<Vec<_>>(), [(10, Some(20))]);
        // Only whole buckets are removed, except if the copy has no newer records.
        assert_eq!(again.trim_to(9).unwrap().buckets, 0);
        assert_eq!(again.trim_to(10).unwrap().buckets, 1);
        assert_eq!(again.reader().first(), 20);
        assert_eq!(again.trim_to(50).unwrap().buckets, 1);
        assert_eq!(again.trim_to(50).unwrap().buckets, 0);
        assert_eq!((again.reader().first(), again.next(), again.safe()), (50, 50, 50));
        drop(again);
        assert_eq!(open(&files, Settings::default()).next(), 50);
    }

    #[test]
    fn a_write_that_fails_is_taken_back_and_can_be_copied_again() {
        let (from, files) = (origin(20), Simulated::new(true));
        let mut to = open(&files, Settings::default());
        let first = from.reader().read(0, 1).unwrap();
        assert_eq!(to.copy(&first.bytes), Ok(true));
        files.set(crate::log::files::memory::Faults { room: Some(10), sync: false, fuse: None });
        let rest = from.reader().read(first.next, 1 << 20).unwrap();
        assert_eq!(to.copy(&rest.bytes), Ok(true));
        assert_eq!(to.remove_unwritten().map(|lost| (lost.from, lost.to)), Some((first.next, 20)));
        assert!(matches!(to.copy(&rest.bytes), Err(Uncopied::Refused(Refused::Failed(_)))));
        files.set(crate::log::files::memory::Faults::default());
        std::thread::sleep(crate::log::writer::RETRY);
        assert_eq!(to.copy(&rest.bytes), Ok(true));
        assert_eq!(all(&to), all(&from));
    }

    #[test]
    fn nothing_is_safe_before_it_is_confirmed() {
        let mut log = origin(5);
        log.confirm(Some(2));
        assert_eq!(log.safe(), 5, "what was safe stays so");
        log.append(9, &message(6)).unwrap();
        log.append(9, &message(7)).unwrap();
        log.flush();
        assert_eq!((log.safe(), log.reader().safe(), log.reader().written()), (5, 5, 7));
        assert_eq!(log.reader().read(5, 100).unwrap().bytes, []);
        assert_eq!(records(&log.reader().read_written(5, 1000).unwrap().bytes).count(), 2);
        log.confirm(Some(6));
        assert_eq!(log.safe(), 6);
        log.confirm(Some(3));
        assert_eq!(log.safe(), 6);
        log.confirm(Some(100));
        assert_eq!(log.safe(), 7);
        log.confirm(None);
        log.append(9, &message(8)).unwrap();
        log.flush();
        assert_eq!(log.safe(), 8);
    }

    #[test]
    fn while_it_rests_it_takes_nothing() {
        let mut log = origin(1);
        log.rest(true);
        assert_eq!(log.append(9, &message(2)), Err(Refused::Full));
        assert_eq!(log.append(9, &message(1)), Err(Refused::Full), "nor says that it has it");
        log.rest(false);
        assert_eq!(log.append(9, &message(1)).map(|place| place.again), Ok(true));
        assert_eq!(log.append(9, &message(2)).map(|place| place.offset), Ok(1));
    }
}
