//! Deduplication: the stored messages of each publisher, so that a message that is sent again is not stored again.
//!
//! Each session has runs of consecutive numbers and offsets. The size is limited by the number of sessions, the runs of
//! each, the runs of all (24 bytes each, so 24 MiB for a stream), and by age. The session that was stored longest ago
//! is forgotten first; a session with too many runs loses its lowest numbers, which are refused from then on.

use hashbrown::HashMap;

use crate::log::bucket::varint::{Reader, Writer};

const SESSIONS: usize = 65_536;
/// Twice the maximum that a client has in flight (131,072), since half of the runs are dropped at once. Each number may
/// be a run when a client publishes to several streams in turn, or several clients publish to one.
const RUNS: usize = 1 << 18;
const ALL_RUNS: usize = 1 << 20;

/// Consecutive numbers, stored at consecutive offsets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Run {
    number: u64,
    offset: u64,
    count: u64,
}

impl Run {
    /// The number that continues the run.
    fn next(&self) -> u64 {
        self.number.saturating_add(self.count)
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Session {
    id: u64,
    /// Lower numbers are forgotten.
    floor: u64,
    /// When the last one was stored.
    stored: i64,
    /// Sorted.
    runs: Vec<Run>,
}

impl Session {
    /// Forgets the lower half of its runs. Returns how many.
    fn cut(&mut self) -> usize {
        let half = self.runs.len() / 2;
        if let Some(last) = self.runs.drain(..half).next_back() {
            self.floor = last.next();
        }
        half
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Known {
    New,
    /// It is stored at this offset.
    At(u64),
    /// It is no longer known whether it was stored.
    TooOld,
}

#[derive(Debug, Default)]
pub struct Once {
    all: Vec<Session>,
    slots: HashMap<u64, u32>,
    recent: usize,
    runs: usize,
}

impl Once {
    #[inline]
    fn slot(&mut self, session: u64) -> Option<usize> {
        if self.all.get(self.recent).is_none_or(|recent| recent.id != session) {
            self.recent = *self.slots.get(&session)? as usize;
        }
        Some(self.recent)
    }

    #[inline]
    pub fn find(&mut self, session: u64, number: u64) -> Known {
        let Some(slot) = self.slot(session) else { return Known::New };
        let Session { floor, runs, .. } = &self.all[slot];
        if number < *floor {
            return Known::TooOld;
        }
        match runs.last() {
            Some(last) if number >= last.number && number - last.number >= last.count => return Known::New,
            _ => {}
        }
        let at = runs.partition_point(|run| run.number <= number);
        match at.checked_sub(1).map(|at| runs[at]) {
            Some(run) if number - run.number < run.count => Known::At(run.offset + (number - run.number)),
            _ => Known::New,
        }
    }

    #[inline]
    pub fn add(&mut self, session: u64, number: u64, offset: u64, stored: i64) {
        let slot = self.slot(session).unwrap_or_else(|| self.new_slot(session));
        let known = &mut self.all[slot];
        known.stored = stored;
        match known.runs.last_mut() {
            Some(run) if run.next() == number && run.offset + run.count == offset => run.count += 1,
            _ => {
                let at = known.runs.partition_point(|run| run.number < number);
                known.runs.insert(at, Run { number, offset, count: 1 });
                self.runs += 1;
                if known.runs.len() > RUNS {
                    self.runs -= known.cut();
                }
                if self.runs > ALL_RUNS {
                    self.cut();
                }
            }
        }
    }

    /// Adds `count` consecutive numbers, stored at consecutive offsets.
    pub fn add_run(&mut self, session: u64, number: u64, offset: u64, count: u64, stored: i64) {
        if count == 0 {
            return;
        }
        self.add(session, number, offset, stored);
        let Some(slot) = self.slot(session) else { return };
        let runs = &mut self.all[slot].runs;
        let at = runs.partition_point(|run| run.number <= number);
        if let Some(run) = at.checked_sub(1).map(|at| &mut runs[at]) {
            // Limits values from an index, so that numbers and offsets can't overflow.
            let most = u64::MAX - run.number.max(run.offset);
            run.count = run.count.max((number - run.number).saturating_add(count)).min(most);
        }
    }

    fn new_slot(&mut self, session: u64) -> usize {
        if self.all.len() >= SESSIONS {
            self.halve();
        }
        self.recent = self.all.len();
        self.all.push(Session { id: session, floor: 0, stored: 0, runs: Vec::new() });
        self.slots.insert(session, self.recent as u32);
        self.recent
    }

    /// Forgets the lower half of the sessions with many runs, which have at least half of all runs.
    fn cut(&mut self) {
        let many = self.runs / self.all.len() / 2;
        let large = self.all.iter_mut().filter(|known| known.runs.len() >= many);
        self.runs -= large.map(Session::cut).sum::<usize>();
    }

    /// Forgets the sessions that were stored longest ago.
    fn halve(&mut self) {
        let mut times: Vec<_> = self.all.iter().map(|known| known.stored).collect();
        let middle = times.len() / 2;
        let middle = *times.select_nth_unstable(middle).1;
        self.keep(|known| known.stored > middle);
    }

    /// Forgets sessions that were last stored before this time.
    pub fn forget(&mut self, before: i64) {
        self.keep(|known| known.stored >= before);
    }

    fn keep(&mut self, kept: impl Fn(&Session) -> bool) {
        self.all.retain(kept);
        self.index();
    }

    fn index(&mut self) {
        self.recent = 0;
        self.slots = self.all.iter().enumerate().map(|(slot, known)| (known.id, slot as u32)).collect();
        self.runs = self.all.iter().map(|known| known.runs.len()).sum();
    }

    /// Removes the last added number of this session, which was not stored.
    pub fn retract(&mut self, session: u64, number: u64) {
        let Some(slot) = self.slot(session) else { return };
        let runs = &mut self.all[slot].runs;
        if let Some(at) = runs.iter().rposition(|run| run.next() == number.saturating_add(1)) {
            runs[at].count -= 1;
            if runs[at].count == 0 {
                runs.remove(at);
                self.runs -= 1;
            }
        }
    }

    /// The approximate size that `write` produces.
    pub fn weight(&self) -> u64 {
        (self.all.len() * 32 + self.runs * 6) as u64
    }

    /// Writes the runs of records from an offset on. A run has: its number minus the end of the previous run, its
    /// offset minus the end of the previous run, its count.
    pub fn write(&self, from: u64, out: &mut Vec<u8>) {
        let inside = |run: &&Run| run.offset + run.count > from;
        let known: Vec<_> = self.all.iter().filter(|known| known.runs.iter().any(|run| inside(&run))).collect();
        out.u64(known.len() as u64);
        for known in known {
            out.u64(known.id);
            out.u64(known.floor);
            out.i64(known.stored);
            out.u64(known.runs.iter().filter(inside).count() as u64);
            let (mut number, mut offset) = (0, 0);
            for run in known.runs.iter().filter(inside) {
                let before = from.saturating_sub(run.offset);
                let part = Run { number: run.number + before, offset: run.offset + before, count: run.count - before };
                out.short(part.number.wrapping_sub(number));
                out.signed(part.offset.wrapping_sub(offset).cast_signed());
                out.short(part.count);
                (number, offset) = (part.next(), part.offset + part.count);
            }
        }
    }

    /// Adds runs that were written from an offset on.
    pub fn read(&mut self, from: u64, bytes: &mut &[u8]) -> Option<()> {
        for _ in 0..bytes.count(32)? {
            let (id, floor, stored) = (bytes.u64()?, bytes.u64()?, bytes.i64()?);
            let (mut number, mut offset) = (0_u64, 0_u64);
            for _ in 0..bytes.count(3)? {
                number = number.wrapping_add(bytes.short()?);
                offset = offset.wrapping_add_signed(bytes.signed()?);
                let count = bytes.short()?;
                let end = (number.checked_add(count)?, offset.checked_add(count)?);
                let before = from.saturating_sub(offset).min(count);
                self.add_run(id, number + before, offset + before, count - before, stored);
                (number, offset) = end;
            }
            if let Some(slot) = self.slot(id) {
                let known = &mut self.all[slot];
                if floor > known.floor {
                    let gone = known.runs.partition_point(|run| run.next() <= floor);
                    known.runs.drain(..gone);
                    self.runs -= gone;
                    known.floor = floor;
                }
            }
        }
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_never_end_behind_the_last_number() {
        let mut bytes = Vec::new();
        bytes.u64(1);
        bytes.u64(7);
        bytes.u64(0);
        bytes.i64(1);
        bytes.u64(2);
        // The same number twice: near the last offset, and with nearly all numbers after it.
        for (number, offset, count) in [(5, -11, 3), (u64::MAX - 2, 8, u64::MAX - 100)] {
            bytes.short(number);
            bytes.signed(offset);
            bytes.short(count);
        }
        let mut once = Once::default();
        assert!(once.read(0, &mut &bytes[..]).is_some());
        once.write(0, &mut Vec::new());
        assert!(matches!(once.find(7, 6), Known::At(_)));
        bytes.truncate(bytes.len() - 10);
        bytes.short(u64::MAX);
        assert!(Once::default().read(0, &mut &bytes[..]).is_none(), "they would end behind it");
    }
}
