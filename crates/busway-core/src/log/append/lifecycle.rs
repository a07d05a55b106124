//! Opens, creates and closes the appending side of a log.

use std::io;
use std::sync::{Arc, Condvar, Mutex};

use super::Log;
use crate::log::bucket::{index_name, log_name, Building};
use crate::log::files::memory::Simulated;
use crate::log::files::{replace, Files};
use crate::log::recover;
use crate::log::writer::{run, Bell, Shared, State, Writer};
use crate::log::{Error, Settings};

impl Log {
    /// Opens or creates a log. With a `bell`, a thread writes and rings it; without one, `flush` writes.
    ///
    /// A new log begins with the offset `begin`.
    pub fn open(files: Arc<dyn Files>, settings: Settings, bell: Option<Bell>, begin: u64) -> Result<Self, Error> {
        if !files.lock()? {
            return Err(Error::InUse);
        }
        let found = recover::open(&*files, begin).inspect_err(|_| files.unlock())?;
        Ok(Self::start(files, settings, bell, found, true))
    }

    /// Creates a log in memory.
    pub fn memory(settings: Settings, begin: u64) -> Self {
        let settings = Settings { bucket_bytes: settings.bucket_bytes.min(1 << 20), ..settings };
        let found = recover::Found { next: begin, bucket: Building::new(begin), ..recover::Found::default() };
        Self::start(Arc::new(Simulated::new(false)), settings, None, found, false)
    }

    pub(in crate::log) fn start(
        files: Arc<dyn Files>,
        settings: Settings,
        bell: Option<Bell>,
        found: recover::Found,
        indexed: bool,
    ) -> Self {
        let recover::Found {
            buckets,
            bucket,
            topics,
            once,
            waiting,
            begin,
            next,
            stored,
            damage,
            orphans,
            wholes,
            behind,
        } = found;
        let threaded = bell.is_some();
        let shared = Arc::new(Shared {
            files,
            indexed,
            state: Mutex::new(State {
                settings,
                buckets,
                damage,
                orphans,
                wholes,
                begin,
                written: next,
                ..State::default()
            }),
            trimming: Mutex::default(),
            work: Condvar::new(),
            safe: next.into(),
            cap: u64::MAX.into(),
            waiting: 0.into(),
            failed: false.into(),
            stuck: false.into(),
            bell: bell.unwrap_or_else(|| Box::new(|| {})),
        });
        let threads = threaded.then(|| Arc::new(Mutex::new(Writer::default())));
        let thread = threads.clone().map(|writer| {
            let shared = shared.clone();
            std::thread::spawn(move || run(&writer, &shared))
        });
        Self {
            shared,
            settings,
            topics,
            once,
            waiting,
            tail: Vec::new(),
            tail_from: next,
            tail_at: bucket.summary.length,
            marked: bucket.marks.len(),
            bucket,
            next,
            stored,
            steady: None,
            ahead: None,
            behind,
            failed: None,
            held: (0, 0),
            writer: (!threaded).then(Writer::default),
            threads,
            thread,
            by_hand: false,
            front: None,
            verbatim: false,
            resting: false,
            refusing: None,
            failing: None,
            closing: Vec::new(),
            closed: false,
        }
    }

    /// Defers the writes of a log without a thread until `write` is called, so that a simulation controls the disk's
    /// speed.
    #[must_use]
    pub fn by_hand(mut self) -> Self {
        self.by_hand = true;
        self
    }

    /// Changes the settings.
    pub fn set(&mut self, settings: Settings) {
        self.flush();
        self.settings = settings;
        self.shared.state().settings = settings;
    }

    /// Writes all waiting records, and unlocks the folder. The error describes records that could not be stored.
    pub fn close(&mut self) -> io::Result<()> {
        if std::mem::replace(&mut self.closed, true) {
            return Ok(());
        }
        self.by_hand = false;
        self.flush();
        self.shared.state().closing = true;
        self.wake();
        let ended =
            self.thread.take().map_or(Ok(()), |thread| thread.join().map_err(|_| io::Error::other("the writer ended")));
        let are = if self.shared.state().unsynced > 0 { "may be" } else { "are" };
        let stuck = self.stuck().map(|(error, count)| format!("{count} acknowledged messages {are} lost: {error}"));
        let lost = stuck
            .or_else(|| self.remove_unwritten().map(|lost| lost.error))
            .map_or(Ok(()), |error| Err(io::Error::other(error)));
        let kept = if lost.is_ok() && self.shared.indexed { self.checkpoint() } else { Ok(()) };
        self.shared.state().loaded.clear();
        self.shared.files.unlock();
        ended.and(lost).and(kept)
    }

    /// Writes the index of the current bucket and the end of the log, so that the next process need not read the
    /// bucket.
    fn checkpoint(&mut self) -> io::Result<()> {
        let (own, files) = (self.bucket.summary, &*self.shared.files);
        if own.count > 0 {
            files.open(&log_name(own.base))?.sync()?;
            replace(files, &index_name(own.base), &self.bucket.index(&self.topics, &self.once), true)?;
        }
        if self.next > 0 {
            recover::end_with(files, self.next)?;
        }
        Ok(())
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        // Callers that need the error call `close`.
        let _ = self.close();
    }
}
