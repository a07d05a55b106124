//! The shared state of a log's appending side, writer and readers, and the writer itself.
//!
//! The appending side queues pieces, and the writer takes all that wait for a bucket at once: a group commit. One lock
//! guards the state; it is taken once per piece and read, and never while waiting for a file.

use std::collections::VecDeque;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::bucket::{log_name, Index, Mark, Summary};
use super::files::{File, Files};
use super::record::mark_group;
use super::{Damage, Safety, Settings};
use crate::log::bucket::presync::Ahead;

/// How long a log waits before it retries a failed write.
pub const RETRY: Duration = Duration::from_millis(100);
/// Indexes and files that are cached for readers.
const LOADED: usize = 16;

/// Records for a bucket.
#[derive(Clone)]
pub struct Data {
    pub base: u64,
    pub position: u64,
    pub from: u64,
    /// The bucket after they are written.
    pub summary: Summary,
    pub marks: Vec<Mark>,
    pub bytes: Arc<Vec<u8>>,
    /// They are copied records, and stay unchanged.
    pub verbatim: bool,
}

pub enum Piece {
    Data(Data),
    /// The bucket is complete.
    Seal(Seal),
}

pub struct Seal {
    pub base: u64,
    pub index: Vec<u8>,
    /// The checkpoint after this bucket, and its offset, if one is due.
    pub whole: Option<(u64, Vec<u8>)>,
}

impl Piece {
    pub fn size(&self) -> usize {
        match self {
            Self::Data(data) => data.bytes.len(),
            Self::Seal(..) => 0,
        }
    }
}

/// A bucket as readers know it.
#[derive(Debug)]
pub struct Bucket {
    pub summary: Summary,
    pub sealed: bool,
    /// Until its index is written.
    pub marks: Vec<Mark>,
    /// The size of its index in bytes; 0: it has none yet.
    pub index: u64,
}

/// A failed write, and the records that were not stored because of it.
pub struct Failure {
    pub error: String,
    pub refused: Vec<Data>,
    /// The bucket's data after its last safe byte may be corrupt.
    pub poisoned: bool,
}

pub struct Loaded {
    pub file: Arc<dyn File>,
    /// Of a sealed bucket.
    pub index: Option<Index>,
}

#[derive(Default)]
pub struct State {
    pub settings: Settings,
    pub pending: VecDeque<Piece>,
    pub writing: Option<Data>,
    /// By base, those with written records.
    pub buckets: Vec<Bucket>,
    /// Indexes of removed buckets that are needed after the last but one checkpoint: base and bytes.
    pub orphans: Vec<(u64, u64)>,
    /// Checkpoints, sorted: their offset, and bytes.
    pub wholes: Vec<(u64, u64)>,
    /// Records before this offset were removed. None: the log is in memory.
    pub begin: Option<u64>,
    /// Offset after the last record in a bucket.
    pub written: u64,
    pub failure: Option<Failure>,
    /// Why safe records are not written yet.
    pub stuck: Option<String>,
    /// Records of full buckets that the disk failed to sync, if that is the reason.
    pub unsynced: u64,
    /// A bucket is full, and its index is not written yet.
    pub sealing: bool,
    pub damage: Vec<Damage>,
    pub loaded: Vec<(u64, Arc<Loaded>)>,
    /// Where the last reads ended, by bucket: most readers continue there.
    pub ends: VecDeque<(u64, Mark)>,
    pub closing: bool,
}

pub type Bell = Box<dyn Fn() + Send + Sync>;

pub struct Shared {
    pub files: Arc<dyn Files>,
    /// True if buckets get an index file, which they do not in memory.
    pub indexed: bool,
    pub state: Mutex<State>,
    /// Locked while files are removed; taken before the state.
    pub trimming: Mutex<()>,
    pub work: Condvar,
    /// Offset after the last record with the configured safety.
    pub safe: AtomicU64,
    /// The limit of `safe` until a mirror confirms.
    pub cap: AtomicU64,
    /// Bytes that wait to be written.
    pub waiting: AtomicUsize,
    pub failed: AtomicBool,
    /// Safe records can't be written.
    pub stuck: AtomicBool,
    /// The writer rings it when `safe` has advanced or a write has failed.
    pub bell: Bell,
}

impl Shared {
    pub fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The offset after the last record that has the configured safety and is confirmed.
    #[inline]
    pub fn safe_for_all(&self) -> u64 {
        self.safe.load(SeqCst).min(self.cap.load(SeqCst))
    }

    /// Reports damage once.
    pub fn tell(&self, damage: Damage) {
        let mut state = self.state();
        if !state.damage.contains(&damage) {
            state.damage.push(damage);
        }
    }

    pub fn loaded(&self, base: u64) -> Option<Arc<Loaded>> {
        let mut state = self.state();
        let at = state.loaded.iter().position(|known| known.0 == base)?;
        let found = state.loaded.remove(at);
        state.loaded.push(found);
        state.loaded.last().map(|known| known.1.clone())
    }

    pub fn read_up_to(&self, base: u64, end: Mark) {
        let mut state = self.state();
        if state.ends.len() == LOADED {
            state.ends.pop_front();
        }
        state.ends.push_back((base, end));
    }

    pub fn keep(&self, base: u64, loaded: &Arc<Loaded>) {
        let mut state = self.state();
        state.loaded.retain(|known| known.0 != base);
        // A removed bucket is not cached.
        if state.buckets.iter().any(|bucket| bucket.summary.base == base && bucket.sealed == loaded.index.is_some()) {
            state.loaded.push((base, loaded.clone()));
        }
        if state.loaded.len() > LOADED {
            state.loaded.remove(0);
        }
    }
}

/// Writes pieces, on its own thread or in the thread that appends.
#[derive(Default)]
pub struct Writer {
    pub(super) current: Option<(u64, Arc<dyn File>)>,
    /// Indexes that could not be written yet.
    pub(super) seals: Vec<Seal>,
    /// Buckets with records that were written and not synced.
    pub(super) unsynced: Vec<u64>,
    /// A sync of one of these buckets has failed.
    pub(super) doubtful: bool,
    /// Syncs on its own thread.
    pub(super) ahead: Option<Ahead>,
    /// The appending side uses the writer of the thread, and sees for itself what is written.
    here: bool,
}

enum Fault {
    Write(io::Error),
    Sync(io::Error),
}

/// Runs a writer until the log is closed. The appending side may use the writer in between.
pub fn run(writer: &Mutex<Writer>, shared: &Shared) {
    let own = || writer.lock().unwrap_or_else(PoisonError::into_inner);
    own().ahead = Some(Ahead::default());
    loop {
        while own().step(shared) {}
        let state = shared.state();
        if state.closing && (state.pending.is_empty() || state.stuck.is_some() || state.failure.is_some()) {
            drop(state);
            return own().end_ahead(shared);
        }
        if state.stuck.is_some() {
            drop(shared.work.wait_timeout(state, RETRY));
        } else if state.pending.is_empty() || state.failure.is_some() {
            drop(shared.work.wait(state));
        }
    }
}

impl Writer {
    /// Writes queued records on the appending side, if they only have to be copied to the page cache. False: the thread
    /// has to write them.
    pub fn write_here(&mut self, shared: &Shared) -> bool {
        let state = shared.state();
        let sync = state.settings.safety == Safety::Synced;
        let short = state.pending.len() == 1 && matches!(state.pending[0], Piece::Data(_));
        drop(state);
        if sync || !short || !self.seals.is_empty() {
            return false;
        }
        self.here = true;
        let written = self.step(shared);
        self.here = false;
        written
    }

    /// Writes a piece. Returns whether to continue.
    pub fn step(&mut self, shared: &Shared) -> bool {
        let mut state = shared.state();
        if state.failure.is_some() {
            return false;
        }
        let mut data = match state.pending.pop_front() {
            None => return false,
            Some(Piece::Seal(seal)) => {
                let sync = state.settings.safety == Safety::Synced;
                state.sealing = shared.indexed;
                drop(state);
                return self.seal(shared, seal, sync);
            }
            Some(Piece::Data(data)) => data,
        };
        if !data.verbatim {
            let unsure = data.from.saturating_sub(shared.cap.load(SeqCst));
            mark_group(Arc::make_mut(&mut data.bytes).as_mut_slice(), unsure);
        }
        state.writing = Some(data.clone());
        let sync = state.settings.safety == Safety::Synced;
        drop(state);
        let written = self.write(shared, &data, sync);
        if let Err(Fault::Write(error) | Fault::Sync(error)) = &written {
            // At once, since undoing takes time: no later record becomes safe.
            if shared.safe.load(SeqCst) > data.from {
                shared.state().stuck = Some(error.to_string());
                (shared.bell)();
                shared.stuck.store(true, SeqCst);
            }
        }
        let poisoned = match &written {
            Ok(()) => false,
            Err(Fault::Write(_)) => self.undo(shared, &data).is_err(),
            Err(Fault::Sync(_)) => self.undo(shared, &data).is_err() || data.position > 0,
        };
        let mut state = shared.state();
        state.writing = None;
        let done = match written {
            Ok(()) => {
                state.stuck = None;
                shared.stuck.store(false, SeqCst);
                state.publish(&data);
                shared.waiting.fetch_sub(data.bytes.len(), SeqCst);
                shared.safe.fetch_max(data.summary.end, SeqCst);
                true
            }
            Err(Fault::Write(error) | Fault::Sync(error)) => {
                let error = error.to_string();
                if state.stuck.is_some() {
                    state.pending.push_front(Piece::Data(data));
                } else {
                    state.failure = Some(Failure { error, refused: vec![data], poisoned });
                    shared.failed.store(true, SeqCst);
                }
                false
            }
        };
        drop(state);
        if !(done && self.here) {
            (shared.bell)();
        }
        if done && !self.seals.is_empty() {
            self.write_seals(shared, sync);
        }
        done
    }

    fn write(&mut self, shared: &Shared, data: &Data, sync: bool) -> Result<(), Fault> {
        let name = log_name(data.base);
        let file = match &self.current {
            Some((base, file)) if *base == data.base => file.clone(),
            _ => {
                let new = data.position == 0;
                let file = if new { shared.files.create(&name) } else { shared.files.open(&name) };
                self.current.insert((data.base, file.map_err(Fault::Write)?)).1.clone()
            }
        };
        if shared.indexed && !sync && self.unsynced.last() != Some(&data.base) {
            self.unsynced.push(data.base);
        }
        file.write_at(&data.bytes, data.position).map_err(Fault::Write)?;
        if sync {
            self.sync(&file, data.base).map_err(Fault::Sync)?;
            if data.position == 0 {
                shared.files.sync().map_err(Fault::Sync)?;
            }
        } else if let Some(ahead) = &mut self.ahead {
            ahead.wrote(&file, data.bytes.len());
        }
        Ok(())
    }

    /// If a sync fails, other data in the file may be lost with it.
    fn sync(&mut self, file: &Arc<dyn File>, base: u64) -> io::Result<()> {
        file.sync().inspect_err(|_| self.doubtful |= self.unsynced.contains(&base))
    }

    /// Undoes a write that failed.
    fn undo(&mut self, shared: &Shared, data: &Data) -> io::Result<()> {
        let file = self.current.take();
        match file {
            Some((base, file)) if data.position > 0 => file.cut(data.position).and_then(|()| self.sync(&file, base)),
            Some(_) => shared.files.remove(&log_name(data.base)),
            None => Ok(()),
        }
    }
}

impl State {
    fn publish(&mut self, data: &Data) {
        match self.buckets.last_mut() {
            Some(bucket) if bucket.summary.base == data.base => {
                bucket.summary = data.summary;
                bucket.marks.extend_from_slice(&data.marks);
            }
            _ => {
                self.buckets.push(Bucket { summary: data.summary, sealed: false, marks: data.marks.clone(), index: 0 });
            }
        }
        self.written = data.summary.end;
    }

    /// The index of a bucket was written. The bucket may have been removed in the meantime.
    pub(super) fn indexed(&mut self, base: u64, size: u64) {
        if let Some(bucket) = self.buckets.iter_mut().find(|bucket| bucket.summary.base == base) {
            (bucket.marks, bucket.index) = (Vec::new(), size);
        } else {
            self.orphans.retain(|known| known.0 != base);
            self.orphans.push((base, size));
        }
    }
}
