//! A read-only view of a log in its current state, even while its broker writes to it.
//!
//! Opening a log repairs the effects of a crash: it cuts, removes, and rebuilds indexes. Here these changes go to a
//! layer in memory above the folder, which stays unchanged.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::append::Log;
use super::files::{File, Files};
use super::{Error, Settings};
use crate::log::files::memory::Simulated;
use crate::log::recover::{self, TORN};

/// Buckets may be removed between listing and opening them; then the view retries this many times.
const LOOKS: usize = 20;

struct Layer {
    folder: PathBuf,
    above: Simulated,
}

impl Files for Layer {
    fn lock(&self) -> io::Result<bool> {
        Ok(true)
    }

    fn unlock(&self) {}

    fn list(&self) -> io::Result<Vec<String>> {
        let names = fs::read_dir(&self.folder)?.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()));
        names.collect()
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn File>> {
        match self.above.open(name) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                Ok(Arc::new(Seen(fs::File::open(self.folder.join(name))?)))
            }
            found => found,
        }
    }

    fn create(&self, name: &str) -> io::Result<Arc<dyn File>> {
        self.above.create(name)
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.above.rename(from, to)
    }

    fn remove(&self, _: &str) -> io::Result<()> {
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }
}

/// A file that does not change.
struct Seen(fs::File);

impl File for Seen {
    fn size(&self) -> io::Result<u64> {
        self.0.size()
    }

    fn read_at(&self, out: &mut [u8], at: u64) -> io::Result<usize> {
        File::read_at(&self.0, out, at)
    }

    fn write_at(&self, _: &[u8], _: u64) -> io::Result<()> {
        Err(io::Error::new(io::ErrorKind::ReadOnlyFilesystem, "this log is only looked at"))
    }

    fn cut(&self, _: u64) -> io::Result<()> {
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }
}

impl Log {
    /// Opens the current state of a folder. Incomplete records are left out.
    pub fn view(folder: &Path) -> Result<Self, Error> {
        for look in 1.. {
            let layer = Layer { folder: folder.into(), above: Simulated::new(false) };
            match recover::open(&layer, 0) {
                // If the folder itself is missing, there is no log.
                Err(error) if error.kind() == io::ErrorKind::NotFound && folder.is_dir() && look < LOOKS => {}
                found => {
                    let mut found = found?;
                    found.damage.retain(|damage| damage.what != TORN);
                    // The owner of the log may remove buckets while they are read: the first one here tells where it begins.
                    found.begin = None;
                    return Ok(Self::start(Arc::new(layer), Settings::default(), None, found, true));
                }
            }
        }
        unreachable!("the last look returns")
    }
}
