//! The file system of a log as a trait, and the real one.
//!
//! A file only grows at its end or is cut; lost data inside may be restored. Names are relative to the log's folder.

pub mod memory;

use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

const LOCK: &str = "LOCK";

pub trait File: Send + Sync {
    fn size(&self) -> io::Result<u64>;
    /// Reads the available bytes, up to the size of the buffer.
    fn read_at(&self, out: &mut [u8], at: u64) -> io::Result<usize>;
    fn write_at(&self, bytes: &[u8], at: u64) -> io::Result<()>;
    fn cut(&self, size: u64) -> io::Result<()>;
    /// Returns when the content would survive a power cut.
    fn sync(&self) -> io::Result<()>;
}

pub trait Files: Send + Sync {
    /// Locks the folder until `unlock`; false: another process has locked it.
    fn lock(&self) -> io::Result<bool>;
    fn unlock(&self);
    fn list(&self) -> io::Result<Vec<String>>;
    fn open(&self, name: &str) -> io::Result<Arc<dyn File>>;
    /// Creates an empty file, in place of an existing one.
    fn create(&self, name: &str) -> io::Result<Arc<dyn File>>;
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;
    fn remove(&self, name: &str) -> io::Result<()>;
    /// Returns when the names would survive a power cut.
    fn sync(&self) -> io::Result<()>;
}

/// Reads all bytes of a file from an offset on.
pub fn rest(file: &dyn File, at: u64, end: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let size = fill(file, at, end, &mut bytes)?;
    bytes.truncate(size);
    Ok(bytes)
}

/// As `rest`, into a reused buffer that only grows. Returns the number of bytes.
pub fn fill(file: &dyn File, at: u64, end: u64, buffer: &mut Vec<u8>) -> io::Result<usize> {
    let size = end.saturating_sub(at) as usize;
    if buffer.len() < size {
        *buffer = vec![0; size];
    }
    file.read_at(&mut buffer[..size], at)
}

/// Replaces a small file atomically.
pub fn replace(files: &dyn Files, name: &str, bytes: &[u8], sync: bool) -> io::Result<()> {
    let temporary = format!("{name}.tmp");
    let file = files.create(&temporary)?;
    file.write_at(bytes, 0)?;
    if sync {
        file.sync()?;
    }
    files.rename(&temporary, name)?;
    if sync {
        files.sync()?;
    }
    Ok(())
}

/// A folder of the file system.
#[derive(Debug)]
pub struct Real {
    folder: PathBuf,
    lock: std::sync::Mutex<Option<fs::File>>,
}

impl Real {
    /// Creates the folder if it is missing. Only this user can access it and its files.
    pub fn new(folder: &Path) -> io::Result<Self> {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
        Ok(Self { folder: folder.into(), lock: std::sync::Mutex::default() })
    }

    fn slot(&self) -> std::sync::MutexGuard<'_, Option<fs::File>> {
        self.lock.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn options() -> OpenOptions {
        let mut options = OpenOptions::new();
        options.read(true).write(true).mode(0o600);
        options
    }
}

impl Files for Real {
    fn lock(&self) -> io::Result<bool> {
        let file = Self::options().create(true).truncate(false).open(self.folder.join(LOCK))?;
        match rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => *self.slot() = Some(file),
            Err(rustix::io::Errno::WOULDBLOCK) => return Ok(false),
            Err(error) => return Err(error.into()),
        }
        Ok(true)
    }

    fn unlock(&self) {
        self.slot().take();
    }

    fn list(&self) -> io::Result<Vec<String>> {
        let names = fs::read_dir(&self.folder)?.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()));
        names.collect()
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn File>> {
        Ok(Arc::new(Self::options().open(self.folder.join(name))?))
    }

    fn create(&self, name: &str) -> io::Result<Arc<dyn File>> {
        Ok(Arc::new(Self::options().create(true).truncate(true).open(self.folder.join(name))?))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        fs::rename(self.folder.join(from), self.folder.join(to))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        fs::remove_file(self.folder.join(name))
    }

    fn sync(&self) -> io::Result<()> {
        fs::File::open(&self.folder)?.sync_all()
    }
}

impl File for fs::File {
    fn size(&self) -> io::Result<u64> {
        Ok(self.metadata()?.len())
    }

    fn read_at(&self, mut out: &mut [u8], mut at: u64) -> io::Result<usize> {
        let all = out.len();
        while !out.is_empty() {
            match FileExt::read_at(self, out, at) {
                Ok(0) => break,
                Ok(size) => (out, at) = (&mut out[size..], at + size as u64),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(all - out.len())
    }

    fn write_at(&self, bytes: &[u8], at: u64) -> io::Result<()> {
        self.write_all_at(bytes, at)
    }

    fn cut(&self, size: u64) -> io::Result<()> {
        self.set_len(size)
    }

    fn sync(&self) -> io::Result<()> {
        self.sync_data()
    }
}
