//! Sealing: a full bucket gets its index after its records are synced.
//!
//! They are synced whatever safety the stream has: an index and a checkpoint are trusted, so after a power cut without
//! the records, lost messages would count as stored. The sync precedes all writes to the next bucket, so that only the
//! last bucket can lack written records. If the sync fails, the log refuses new records and retries, as for safe
//! records of a memory stream that can't be written.

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
    /// Seals a bucket. Returns whether to continue.
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

    /// Reports that the disk does not take written data.
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

    /// Ends the pre-sync, since the log is closed.
    pub(in crate::log) fn end_ahead(&mut self, shared: &Shared) {
        if let Some(Err(error)) = self.ahead.as_mut().map(Ahead::finish) {
            self.tell(shared, &error);
        }
    }

    /// Syncs all written buckets.
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
                // The bucket was removed in the meantime.
                (None, _) => continue,
                (_, Err(error)) if error.kind() == io::ErrorKind::NotFound => continue,
                (Some(summary), file) => (summary, file?),
            };
            if self.doubtful {
                write_again(&*file, &summary)?;
            }
            file.sync().inspect_err(|_| self.doubtful = true)?;
        }
        // The disk keeps names in their order: if that of an index is left, that of its bucket is, too.
        self.unsynced.clear();
        self.doubtful = false;
        Ok(())
    }

    /// Retries an index that could not be written: without it the bucket is only slower to open.
    pub(in crate::log) fn write_seals(&mut self, shared: &Shared, sync: bool) {
        let files = &*shared.files;
        self.seals.retain(|Seal { base, index, whole }| {
            let written = replace(files, &index_name(*base), index, sync).is_ok();
            if written {
                shared.state().indexed(*base, index.len() as u64);
                // Indexes are removed because of a checkpoint, so it is synced. If it can't be written, the next one
                // replaces it.
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

/// Writes data again after a failed sync: a later sync would succeed without storing it. This works as long as the data
/// can still be read.
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
