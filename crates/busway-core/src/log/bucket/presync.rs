//! Pre-sync: syncs a bucket while it grows, on its own thread, so that the sync of the full bucket is short.
//!
//! It only saves time. An error is reported when the bucket is full or the log is closed.

use std::io;
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};

use crate::log::files::File;

/// The minimum of bytes for a sync.
const WORTH: usize = 4 << 20;

#[derive(Default)]
pub struct Ahead {
    bytes: usize,
    thread: Option<JoinHandle<io::Result<()>>>,
    failed: Option<io::Error>,
}

impl Ahead {
    /// Counts written bytes that are not synced.
    pub fn wrote(&mut self, file: &Arc<dyn File>, size: usize) {
        self.bytes += size;
        if self.bytes < WORTH || self.thread.as_ref().is_some_and(|thread| !thread.is_finished()) {
            return;
        }
        self.wait();
        if self.failed.is_none() {
            let file = file.clone();
            // If no thread can be started, the sync at the end takes longer.
            self.thread = Builder::new().spawn(move || file.sync()).ok();
            self.bytes = 0;
        }
    }

    fn wait(&mut self) {
        if let Some(thread) = self.thread.take() {
            let ended = thread.join().unwrap_or_else(|_| Err(io::Error::other("a sync has ended")));
            self.failed = ended.err().or(self.failed.take());
        }
    }

    /// Waits for the running sync; an error if a sync failed.
    pub fn finish(&mut self) -> io::Result<()> {
        self.wait();
        self.bytes = 0;
        self.failed.take().map_or(Ok(()), Err)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::append::Log;
    use crate::log::files::memory::{Faults, Simulated};
    use crate::log::files::Files;
    use crate::log::record::Message;
    use crate::log::Settings;

    #[test]
    fn a_sync_that_fails_is_told_once() {
        let files = Simulated::new(true);
        let (file, mut ahead) = (files.create("a").unwrap(), Ahead::default());
        ahead.wrote(&file, WORTH);
        ahead.finish().unwrap();
        files.set(Faults { sync: true, ..Faults::default() });
        ahead.wrote(&file, WORTH - 1);
        ahead.finish().unwrap();
        ahead.wrote(&file, WORTH);
        assert!(ahead.finish().is_err());
        ahead.finish().unwrap();
    }

    #[test]
    fn a_log_that_is_closed_tells_of_it() {
        let files = Simulated::new(true);
        let mut log = Log::open(Arc::new(files.clone()), Settings::default(), Some(Box::new(|| {})), 0).unwrap();
        files.set(Faults { sync: true, ..Faults::default() });
        let payload = vec![0; WORTH];
        log.append(1, &Message { topic: "a", payload: &payload, ..Message::default() }).unwrap();
        let error = log.close().unwrap_err().to_string();
        assert_eq!(error, "1 acknowledged messages may be lost: the disk did not take it");
    }
}
