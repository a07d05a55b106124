//! A bucket that is full gets its index, once the disk has its records.
//!
//! They are synced whatever the stream promises: an index is believed, and a `whole` is there for good, so after a power cut that
//! took the records, messages would count as stored that are not there. It is done before anything is written to the next bucket, so
//! of those that are left only the last one can lack some of what was written to it. A disk that does not take them is told like one that does not take what was
//! promised from memory: nothing more is taken, and it is tried again.

use std::io;
use std::sync::atomic::Ordering::SeqCst;

use crate::log::bucket::checkpoint::whole_name;
use crate::log::bucket::dedup::Once;
use crate::log::bucket::presync::Ahead;
use crate::log::bucket::{index_name, log_name, Building, Summary, Topics};
use crate::log::files::{replace, rest, File};
use crate::log::recover::Scan;
use crate::log::writer::{Bucket, Piece, Seal, Shared, Writer};

impl Writer {
    /// Whether it is worth going on.
    pub(in crate::log) fn seal(&mut self, shared: &Shared, seal: Seal, sync: bool) -> bool {
        let synced = self.sync_all(shared);
        self.current = None;
        if let Err(error) = synced {
            shared.state().pending.push_front(Piece::Seal(seal));
            self.tell(shared, &error);
            return false;
        }
        let mut state = shared.state();
        if let Some(bucket) = state.buckets.iter_mut().find(|bucket| bucket.summary.base == seal.base) {
            bucket.sealed = true;
        }
        state.loaded.retain(|known| known.0 != seal.base);
        state.unsynced = 0;
        let again = state.stuck.take().is_some();
        drop(state);
        if again {
            shared.stuck.store(false, SeqCst);
            (shared.bell)();
        }
        if shared.indexed {
            self.seals.push(seal);
            self.write_seals(shared, sync);
            shared.trim_much();
        }
        true
    }

    /// The disk does not take what was written.
    fn tell(&self, shared: &Shared, error: &io::Error) {
        let mut state = shared.state();
        let doubtful = |summary: &Summary| self.unsynced.contains(&summary.base);
        let summaries = state.buckets.iter().map(|bucket| bucket.summary);
        state.unsynced = summaries.filter(doubtful).map(|summary| summary.count).sum();
        state.stuck = Some(error.to_string());
        shared.stuck.store(true, SeqCst);
        drop(state);
        (shared.bell)();
    }

    /// The log is closed.
    pub(in crate::log) fn end_ahead(&mut self, shared: &Shared) {
        if let Some(Err(error)) = self.ahead.as_mut().map(Ahead::finish) {
            self.tell(shared, &error);
        }
    }

    /// Has the disk take all that was written to buckets.
    fn sync_all(&mut self, shared: &Shared) -> io::Result<()> {
        if self.unsynced.is_empty() {
            return Ok(());
        }
        let ahead = self.ahead.as_mut().map_or(Ok(()), Ahead::finish);
        ahead.inspect_err(|_| self.doubtful = true)?;
        let current = self.current.take();
        for base in &self.unsynced {
            let is = |bucket: &&Bucket| bucket.summary.base == *base;
            let known = shared.state().buckets.iter().find(is).map(|bucket| bucket.summary);
            let file = match &current {
                Some((own, file)) if own == base => Ok(file.clone()),
                _ => shared.files.open(&log_name(*base)),
            };
            let (summary, file) = match (known, file) {
                // Nobody asks for the records of one that was removed meanwhile.
                (None, _) => continue,
                (_, Err(error)) if error.kind() == io::ErrorKind::NotFound => continue,
                (Some(summary), file) => (summary, file?),
            };
            if self.doubtful {
                write_again(&*file, &summary)?;
            }
            file.sync().inspect_err(|_| self.doubtful = true)?;
        }
        // Names come to the disk in their order: where that of an index is left, that of its bucket is, too.
        self.unsynced.clear();
        self.doubtful = false;
        Ok(())
    }

    /// An index that can't be written is tried again later: without it the bucket is only slower to open.
    pub(in crate::log) fn write_seals(&mut self, shared: &Shared, sync: bool) {
        let files = &*shared.files;
        self.seals.retain(|Seal { base, index, whole }| {
            let written = replace(files, &index_name(*base), index, sync).is_ok();
            if written {
                shared.state().indexed(*base, index.len() as u64);
                // Indexes are removed because of it, so it is there for good. One that can't be written is made up for by the next.
                if let Some((end, whole)) = whole {
                    if replace(files, &whole_name(*end), whole, true).is_ok() {
                        shared.state().wholes.push((*end, whole.len() as u64));
                    }
                }
            }
            !written
        });
        shared.state().sealing = !self.seals.is_empty();
    }
}

/// What a sync that failed did not store, the next one does not either, and says nothing: unless it is written once more, as
/// long as it can still be read.
fn write_again(file: &dyn File, summary: &Summary) -> io::Result<()> {
    let bytes = rest(file, 0, summary.length)?;
    let (building, topics, once) = (Building::new(summary.base), Topics::default(), Once::default());
    let mut scan = Scan { building, topics, once, limit: Some(summary.end) };
    scan.run(&bytes, &mut Vec::new());
    if scan.building.summary.count < summary.count {
        return Err(io::Error::other("the disk has lost what was written"));
    }
    file.write_at(&bytes, 0)
}
