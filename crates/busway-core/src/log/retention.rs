//! Retention: removes the oldest buckets by age, bytes and count.
//!
//! The owner of the log calls `Log::trim` regularly; the writer calls it if many buckets exceed the limits.

use std::io;
use std::sync::PoisonError;

use super::append::{Log, STEP};
use super::bucket::{index_name, log_name};
use super::Settings;
use crate::log::bucket::checkpoint::whole_name;
use crate::log::recover::begin_with;
use crate::log::writer::{Bucket, Shared, State};

/// Buckets over the limits before the writer removes them, since each removal needs a sync.
const MUCH: usize = 8;

/// The removed records.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Trimmed {
    pub records: u64,
    pub bytes: u64,
    pub buckets: usize,
    /// Records and bytes beyond the limits that `hold` keeps.
    pub held: (u64, u64),
}

impl State {
    /// The first buckets that exceed the limits, or for which `old` returns true; none with an offset of `hold` or
    /// above.
    fn over(&self, settings: &Settings, old: &impl Fn(&State, usize) -> bool, hold: u64) -> Trimmed {
        let mut bytes: u64 = self.buckets.iter().map(|bucket| bucket.summary.length).sum();
        let mut count: u64 = self.buckets.iter().map(|bucket| bucket.summary.count).sum();
        let hold = settings.hold.min(hold);
        let mut gone = Trimmed::default();
        let over = |is: u64, most: u64, without: u64| most > 0 && is > most && is - without >= most;
        for (at, Bucket { summary, sealed, .. }) in self.buckets.iter().enumerate() {
            let goes = old(self, at)
                || over(bytes, settings.max_bytes, summary.length)
                || over(count, settings.max_count, summary.count);
            if !sealed || !goes {
                break;
            }
            (bytes, count) = (bytes - summary.length, count - summary.count);
            if summary.end > hold {
                gone.held = (gone.held.0 + summary.count, gone.held.1 + summary.length);
                continue;
            }
            gone.records += summary.count;
            gone.bytes += summary.length;
            gone.buckets += 1;
        }
        gone
    }
}

impl Shared {
    pub fn trim(&self, settings: &Settings, old: impl Fn(&State, usize) -> bool, hold: u64) -> io::Result<Trimmed> {
        let _held = self.trimming.lock().unwrap_or_else(PoisonError::into_inner);
        let state = self.state();
        let gone = state.over(settings, &old, hold);
        let first = state.buckets.get(gone.buckets).map_or(state.written, |bucket| bucket.summary.base);
        drop(state);
        if gone.buckets > 0 {
            self.remove(first)?;
        }
        self.clean()?;
        Ok(gone)
    }

    /// Trims by bytes and count, if many buckets exceed the limits, and buckets that are not needed any more.
    pub fn trim_much(&self) {
        let state = self.state();
        let settings = state.settings;
        let unneeded = |state: &State, at: usize| state.buckets[at].summary.end <= settings.keep_from;
        let much = state.over(&settings, &|_, _| false, u64::MAX).buckets >= MUCH;
        let trim = much || (!state.buckets.is_empty() && unneeded(&state, 0));
        drop(state);
        if trim {
            // The owner retries, and gets the error.
            let _ = self.trim(&settings, unneeded, u64::MAX);
        }
    }

    /// Removes the buckets before this offset.
    fn remove(&self, first: u64) -> io::Result<()> {
        if self.indexed {
            // From here on they count as removed, even if the process ends before their files are deleted.
            begin_with(&*self.files, first)?;
        }
        let mut state = self.state();
        let count = state.buckets.partition_point(|bucket| bucket.summary.base < first);
        let gone: Vec<Bucket> = state.buckets.drain(..count).collect();
        state.begin = state.begin.map(|_| first);
        state.loaded.retain(|known| known.0 >= first);
        if self.indexed {
            state.orphans.extend(gone.iter().map(|bucket| (bucket.summary.base, bucket.index)));
        }
        drop(state);
        gone.iter().try_for_each(|bucket| self.files.remove(&log_name(bucket.summary.base)))
    }

    /// Removes files that the last two checkpoints and the indexes after them replace.
    fn clean(&self) -> io::Result<()> {
        let mut state = self.state();
        let keep = state.wholes.len().saturating_sub(2);
        if state.wholes.len() < 2 {
            return Ok(());
        }
        let older: Vec<u64> = state.wholes.drain(..keep).map(|whole| whole.0).collect();
        // A bucket may have grown after a checkpoint, when it was opened again: so the one before it stays.
        let cut = state.wholes[0].0;
        let cut = state.orphans.iter().map(|known| known.0).filter(|base| *base < cut).max().unwrap_or(cut);
        let (gone, orphans) = state.orphans.iter().partition(|known| known.0 < cut);
        state.orphans = orphans;
        let gone: Vec<(u64, u64)> = gone;
        drop(state);
        let names = older.into_iter().map(whole_name).chain(gone.into_iter().map(|known| index_name(known.0)));
        for name in names {
            match self.files.remove(&name) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }
}

impl Log {
    /// Removes whole buckets by age, bytes and count; none with an offset of `hold` or above.
    pub fn trim(&mut self, now: i64, hold: u64) -> io::Result<Trimmed> {
        let settings = self.settings;
        self.once.forget(now - settings.once_age);
        let old = |last: i64| settings.max_age > 0 && last < now - settings.max_age;
        let ahead = |time: i64| time - now > STEP;
        let own = self.bucket.summary;
        if own.count > 0 && (now - own.first > settings.bucket_age || old(own.last) || ahead(own.first)) {
            self.roll(now);
        }
        self.ahead = ahead(self.stored).then(|| self.ahead.unwrap_or(now));
        let since = self.ahead;
        // A bucket with an impossible time was stored before the next one, so that one's time counts.
        let gone = |state: &State, at: usize| {
            let times = |bucket: &Bucket| (bucket.summary.first, bucket.summary.last);
            let behind = || state.buckets[at + 1..].iter().map(|bucket| times(bucket).0).find(|first| !ahead(*first));
            let last = Some(times(&state.buckets[at]).1).filter(|last| !ahead(*last));
            last.or_else(behind).or(since).is_some_and(old)
        };
        let gone = self.shared.trim(&settings, gone, hold)?;
        self.held = gone.held;
        if gone.buckets > 0 && self.front.is_none() {
            self.drop_waiting(self.reader().first());
        }
        Ok(gone)
    }

    /// Records and bytes beyond the limits that the last `trim` kept because of `hold`.
    pub fn held(&self) -> (u64, u64) {
        self.held
    }

    /// Drops delayed messages below this offset, since their records were removed.
    pub fn drop_waiting(&mut self, first: u64) {
        self.waiting.trim(first);
    }
}
