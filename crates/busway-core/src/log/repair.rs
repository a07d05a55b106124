//! Repair: fills holes with the lost records, byte for byte, from a mirror's copy.
//!
//! If the bucket continues after a hole, they overwrite the damaged bytes; if a file ends too early or is missing, they
//! get their own file. At the end the log is reopened, so that its state is as if nothing had been lost. Until then
//! nobody should read the repaired range.

use std::io;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::Arc;

use super::append::Log;
use super::bucket::{index_name, log_name};
use super::files::{rest, File};
use super::record::{behind, Record};
use super::Damage;
use crate::log::recover;

/// A hole that is being repaired.
pub(super) struct Closing {
    hole: Damage,
    file: Arc<dyn File>,
    /// The next offset, and its position.
    next: u64,
    at: u64,
    /// The end of the damaged bytes before the records after the hole; None: no record follows.
    end: Option<u64>,
}

impl Log {
    /// Restores records of a hole, from its first offset or after the last restored one; records after the hole are
    /// ignored. Returns how many. 0: there is no such hole, the records differ from the lost ones, or data waits to be
    /// written. Readers see them after `mended`.
    pub fn mend(&mut self, block: &[u8]) -> io::Result<u64> {
        let Some(begin) = Record::sound(block).map(|record| record.offset()) else { return Ok(0) };
        if !self.is_quiet() {
            return Ok(0);
        }
        let last = self.closing.pop();
        let closing = match last {
            // Another hole may begin where this one ends.
            Some(closing) if closing.next == begin && closing.hole.to.is_none_or(|to| begin < to) => Some(closing),
            last => {
                self.closing.extend(last);
                self.close_hole(begin)?
            }
        };
        let Some(mut closing) = closing else { return Ok(0) };
        let to = closing.hole.to.unwrap_or(begin);
        let (mut upto, mut size) = (begin, 0);
        while let Some(record) = Record::sound(&block[size..]).filter(|record| record.offset() == upto && upto < to) {
            (upto, size) = (upto + 1, size + record.bytes.len());
        }
        let behind = closing.at + size as u64;
        let fits = closing.end.is_none_or(|end| if upto == to { behind == end } else { behind < end });
        if fits {
            closing.file.write_at(&block[..size], closing.at)?;
            (closing.next, closing.at) = (upto, behind);
        }
        self.closing.push(closing);
        Ok(if fits { upto - begin } else { 0 })
    }

    /// Ends the repair: the restored records are safe, and the log is reopened from its files.
    pub fn mended(&mut self) -> io::Result<()> {
        if self.closing.is_empty() || !self.is_quiet() {
            return Ok(());
        }
        let closed = std::mem::take(&mut self.closing);
        for closing in &closed {
            closing.file.sync()?;
        }
        self.shared.files.sync()?;
        self.open_anew(&closed)
    }

    /// True if no data waits to be written.
    fn is_quiet(&self) -> bool {
        let state = self.shared.state();
        self.tail.is_empty()
            && self.shared.indexed
            && self.front.is_none()
            && state.pending.is_empty()
            && state.writing.is_none()
            && !state.sealing
            && state.failure.is_none()
    }

    fn close_hole(&self, begin: u64) -> io::Result<Option<Closing>> {
        let holes = |one: &&Damage| one.from == begin && one.to.is_some_and(|to| to > begin);
        let known = self.shared.state().damage.iter().filter(holes).cloned().collect::<Vec<_>>();
        // Several components may have reported the hole, not all of them with its position.
        for hole in &known {
            if let Some(closing) = self.write_over(hole)? {
                return Ok(Some(closing));
            }
        }
        known.first().map_or(Ok(None), |hole| self.write_beside(hole))
    }

    /// Starts to write into a bucket that continues after the hole.
    fn write_over(&self, hole: &Damage) -> io::Result<Option<Closing>> {
        let buckets: Vec<_> = self.shared.state().buckets.iter().map(|bucket| bucket.summary).collect();
        let inside = |base: u64, end: u64| base <= hole.from && hole.to.is_some_and(|to| to < end);
        let Some(bucket) = buckets.into_iter().find(|bucket| inside(bucket.base, bucket.end)) else { return Ok(None) };
        if hole.file != log_name(bucket.base) {
            return Ok(None);
        }
        let file = self.shared.files.open(&hole.file)?;
        let left = rest(&*file, hole.position, bucket.length)?;
        // A valid record after the hole gives its size.
        let Some((room, _)) = behind(&left, 0, hole.from, bucket.end).filter(|(_, to)| Some(*to) == hole.to) else {
            return Ok(None);
        };
        // The index contains the hole.
        match self.shared.files.remove(&index_name(bucket.base)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let (next, at) = (hole.from, hole.position);
        Ok(Some(Closing { hole: hole.clone(), file, next, at, end: Some(at + room as u64) }))
    }

    /// Starts to write into a new bucket, unless another one has records there. A bucket without any records is
    /// removed.
    fn write_beside(&self, hole: &Damage) -> io::Result<Option<Closing>> {
        let has = |base: u64, end: u64| base <= hole.from && hole.from < end;
        let taken = self.shared.state().buckets.iter().any(|bucket| has(bucket.summary.base, bucket.summary.end));
        if taken || hole.from < self.reader().first() {
            return Ok(None);
        }
        let file = self.shared.files.create(&log_name(hole.from))?;
        Ok(Some(Closing { hole: hole.clone(), file, next: hole.from, at: 0, end: None }))
    }

    /// Reopens the log from its files.
    fn open_anew(&mut self, closed: &[Closing]) -> io::Result<()> {
        let found = recover::open(&*self.shared.files, 0)?;
        if found.next != self.next {
            return Err(io::Error::other("a log that was mended ends at another place"));
        }
        let mut state = self.shared.state();
        // Opening and reading may both have reported a hole, and reopening reports the rest of it again.
        let inside = |one: &Damage, hole: &Damage| {
            one.from >= hole.from && one.to.is_some_and(|to| to > one.from) && one.to <= hole.to
        };
        state.damage.retain(|one| !closed.iter().any(|closing| inside(one, &closing.hole)));
        for damage in found.damage {
            if !state.damage.contains(&damage) {
                state.damage.push(damage);
            }
        }
        (state.buckets, state.orphans, state.wholes) = (found.buckets, found.orphans, found.wholes);
        state.begin = found.begin;
        state.loaded.clear();
        state.ends.clear();
        state.written = found.next;
        self.shared.safe.fetch_max(found.next, SeqCst);
        drop(state);
        (self.topics, self.once, self.waiting) = (found.topics, found.once, found.waiting);
        self.go_on(found.bucket, found.stored, found.behind);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::{Position, Settings};
    use super::*;
    use crate::log::files::memory::Simulated;
    use crate::log::files::Files;
    use crate::log::record::{records, Message};

    const TOPICS: [&str; 3] = ["a", "b", "c"];

    fn opened(files: &Simulated, settings: Settings) -> Log {
        Log::open(Arc::new(files.clone()), settings, None, 0).unwrap()
    }

    fn message(number: u64) -> Message<'static> {
        Message {
            topic: TOPICS[number as usize % 3],
            session: 7,
            number,
            payload: b"some payload",
            ..Message::default()
        }
    }

    fn filled(files: &Simulated, settings: Settings, count: u64) -> Vec<u8> {
        let mut log = opened(files, settings);
        for number in 1..=count {
            log.append(number.cast_signed(), &message(number)).unwrap();
            log.flush();
        }
        all(&log)
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

    /// The records from one offset to before another, of a log without holes.
    fn part(whole: &[u8], begin: u64, end: u64) -> Vec<u8> {
        let inside = records(whole).filter(|record| (begin..end).contains(&record.offset()));
        inside.flat_map(|record| record.bytes.to_vec()).collect()
    }

    fn is_log(name: &str) -> bool {
        name.strip_suffix(".log").is_some()
    }

    /// Overwrites these records with zeros, as of a page that was never written to the disk.
    fn dig(files: &Simulated, whole: &[u8], begin: u64, end: u64) {
        let (at, size) = (part(whole, 0, begin).len() as u64, part(whole, begin, end).len());
        files.open(&log_name(0)).unwrap().write_at(&vec![0; size], at).unwrap();
        for name in files.list().unwrap().iter().filter(|name| !is_log(name)) {
            files.remove(name).unwrap();
        }
    }

    fn holes(log: &Log) -> Vec<(u64, Option<u64>)> {
        log.reader().damage().iter().filter(|one| one.to != Some(one.from)).map(|one| (one.from, one.to)).collect()
    }

    #[test]
    fn a_hole_is_closed_and_all_is_known_again() {
        for (begin, end) in [(0, 2), (4, 5), (3, 9)] {
            let files = Simulated::new(true);
            let whole = filled(&files, Settings::default(), 10);
            dig(&files, &whole, begin, end);
            let mut log = opened(&files, Settings::default());
            assert_eq!(holes(&log), [(begin, Some(end))]);
            assert_eq!(log.reader().read(begin, 1 << 20).unwrap().first, end);
            // The records after the hole exist and stay unchanged.
            assert_eq!(log.mend(&part(&whole, begin, 10)).unwrap(), end - begin);
            assert_eq!(holes(&log), [(begin, Some(end))], "nobody has looked yet");
            log.mended().unwrap();
            assert_eq!((holes(&log), all(&log)), (vec![], whole.clone()));
            assert_eq!(log.append(50, &message(begin + 1)).map(|place| (place.offset, place.again)), Ok((begin, true)));
            assert_eq!(log.append(50, &message(11)), Ok(Position { offset: 10, sequence: 4, again: false }));
            log.flush();
            drop(log);
            let again = opened(&files, Settings::default());
            assert_eq!((holes(&again), part(&all(&again), 0, 10)), (vec![], whole));
        }
    }

    #[test]
    fn a_hole_may_be_closed_piece_by_piece_and_others_stay() {
        let files = Simulated::new(true);
        let whole = filled(&files, Settings::default(), 12);
        dig(&files, &whole, 1, 5);
        dig(&files, &whole, 7, 8);
        let mut log = opened(&files, Settings::default());
        assert_eq!(log.mend(&part(&whole, 1, 3)).unwrap(), 2);
        log.mended().unwrap();
        assert_eq!(holes(&log), [(7, Some(8)), (3, Some(5))]);
        assert_eq!(log.mend(&part(&whole, 3, 4)).unwrap(), 1);
        assert_eq!(log.mend(&part(&whole, 4, 5)).unwrap(), 1);
        log.mended().unwrap();
        assert_eq!((log.reader().read(0, 1 << 20).unwrap().next, holes(&log)), (7, vec![(7, Some(8))]));
        assert_eq!(log.mend(&part(&whole, 7, 8)).unwrap(), 1);
        log.mended().unwrap();
        assert_eq!(all(&log), whole);
    }

    #[test]
    fn nothing_is_written_that_is_not_what_was_there() {
        let files = Simulated::new(true);
        let whole = filled(&files, Settings::default(), 6);
        dig(&files, &whole, 2, 4);
        let mut log = opened(&files, Settings::default());
        let longer = Message { payload: b"another payload, which is longer", ..message(3) };
        let mut other = Vec::new();
        longer.encode(2, 1, 3, &mut other);
        other.extend_from_slice(&part(&whole, 3, 4));
        for wrong in [&other[..], &part(&whole, 3, 4), &part(&whole, 1, 4), &part(&whole, 4, 6), b"garbage", b""] {
            assert_eq!(log.mend(wrong).unwrap(), 0);
        }
        assert_eq!(holes(&log), [(2, Some(4))]);
        log.append(50, &message(7)).unwrap();
        assert_eq!(log.mend(&part(&whole, 2, 4)).unwrap(), 0, "something waits to be written");
        log.flush();
        assert_eq!(log.mend(&part(&whole, 2, 4)).unwrap(), 2);
        log.mended().unwrap();
        assert_eq!(part(&all(&log), 0, 6), whole);
    }

    #[test]
    fn a_bucket_that_is_gone_comes_back_as_buckets_of_its_records() {
        let files = Simulated::new(true);
        let settings = Settings { bucket_bytes: 500, ..Settings::default() };
        let whole = filled(&files, settings, 20);
        let mut bases: Vec<u64> =
            files.list().unwrap().iter().filter_map(|name| name.strip_suffix(".log")?.parse().ok()).collect();
        bases.sort_unstable();
        assert!(bases.len() > 3);
        files.remove(&log_name(bases[1])).unwrap();
        let mut log = opened(&files, settings);
        assert_eq!(holes(&log), [(bases[1], Some(bases[2]))]);
        assert_eq!(log.mend(&part(&whole, bases[1], bases[1] + 1)).unwrap(), 1);
        log.mended().unwrap();
        assert_eq!(holes(&log), [(bases[1] + 1, Some(bases[2]))]);
        assert_eq!(log.mend(&part(&whole, bases[1] + 1, 20)).unwrap(), bases[2] - bases[1] - 1);
        log.mended().unwrap();
        assert_eq!(all(&log), whole);
        assert_eq!(log.append(50, &message(bases[1] + 2)).map(|place| place.again), Ok(true));
        drop(log);
        assert_eq!(all(&opened(&files, settings)), whole);
    }

    #[test]
    fn the_first_buckets_are_lost_and_not_removed() {
        for lost in [1, usize::MAX] {
            let files = Simulated::new(true);
            let settings = Settings { bucket_bytes: 500, ..Settings::default() };
            let whole = filled(&files, settings, 20);
            let mut names: Vec<String> = files.list().unwrap().into_iter().filter(|name| is_log(name)).collect();
            names.sort_unstable();
            for name in names.iter().take(lost) {
                files.remove(name).unwrap();
            }
            let mut log = opened(&files, settings);
            assert_eq!((log.reader().first(), log.next()), (0, 20));
            for (begin, end) in holes(&log) {
                log.mend(&part(&whole, begin, end.unwrap())).unwrap();
            }
            log.mended().unwrap();
            assert_eq!((all(&log), holes(&log)), (whole, vec![]));
        }
    }

    #[test]
    fn a_bucket_that_is_all_zeros_or_empty_is_written_anew() {
        for size in [0, 1000] {
            let files = Simulated::new(true);
            let settings = Settings { bucket_bytes: 500, ..Settings::default() };
            let whole = filled(&files, settings, 20);
            let mut bases: Vec<u64> =
                files.list().unwrap().iter().filter_map(|name| name.strip_suffix(".log")?.parse().ok()).collect();
            bases.sort_unstable();
            files.create(&log_name(bases[1])).unwrap().write_at(&vec![0; size], 0).unwrap();
            files.remove(&index_name(bases[1])).unwrap();
            let mut log = opened(&files, settings);
            log.reader().check().unwrap();
            for (begin, end) in holes(&log) {
                log.mend(&part(&whole, begin, end.unwrap())).unwrap();
            }
            log.mended().unwrap();
            assert_eq!((all(&log), holes(&log)), (whole, vec![]));
        }
    }

    /// Pseudo-random numbers (xorshift).
    fn chance(state: &mut u64, below: usize) -> usize {
        *state ^= *state << 13;
        *state ^= *state >> 7;
        *state ^= *state << 17;
        (*state % below as u64) as usize
    }

    #[test]
    fn whatever_is_lost_comes_back_or_stays_a_hole() {
        let mut mended = 0;
        for seed in 1..300_u64 {
            let (files, mut state) = (Simulated::new(true), seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
            let settings = Settings { bucket_bytes: 300 + 40 * (seed % 50), ..Settings::default() };
            let whole = filled(&files, settings, 30);
            let names = files.list().unwrap();
            let logs: Vec<_> = names.iter().filter(|name| is_log(name)).collect();
            for _ in 0..=chance(&mut state, 3) {
                let file = files.open(logs[chance(&mut state, logs.len())]).unwrap();
                let size = file.size().unwrap() as usize;
                let (at, len) = (chance(&mut state, size), 1 + chance(&mut state, 200));
                let byte = chance(&mut state, 2) as u8 * 0xa5;
                file.write_at(&vec![byte; len.min(size - at)], at as u64).unwrap();
            }
            for name in names.iter().filter(|name| !is_log(name)) {
                files.remove(name).unwrap();
            }
            let mut log = opened(&files, settings);
            let next = log.next();
            log.reader().check().unwrap();
            for (begin, end) in holes(&log) {
                let Some(end) = end else { continue };
                // Records that do not fit come first, and must be refused.
                log.mend(&part(&whole, begin + 1, end)).unwrap();
                let mut at = begin;
                while at < end {
                    let some = part(&whole, at, (at + 1 + chance(&mut state, 4) as u64).min(end));
                    match log.mend(&some).unwrap() {
                        0 => break,
                        count => at += count,
                    }
                }
                mended += at - begin;
                if chance(&mut state, 2) == 0 {
                    log.mended().unwrap();
                }
            }
            log.mended().unwrap();
            assert_eq!(log.next(), next);
            let open: Vec<_> = holes(&log).into_iter().filter_map(|(begin, end)| Some(begin..end?)).collect();
            let there = |offset: u64| offset < next && !open.iter().any(|hole| hole.contains(&offset));
            let (found, left) = (all(&log), part(&whole, 0, next));
            let offsets: Vec<u64> = records(&found).map(|record| record.offset()).collect();
            let expected = records(&left).filter(|record| there(record.offset()));
            assert_eq!(offsets, expected.clone().map(|record| record.offset()).collect::<Vec<_>>(), "seed {seed}");
            assert!(expected.flat_map(|record| record.bytes).eq(&found), "seed {seed}");
        }
        assert!(mended > 100, "{mended}");
    }
}
