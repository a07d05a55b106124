//! The stored log for Python: the broker's streams, tests and tools call it. The engine appends to it directly.

pub mod block;
pub mod block_reader;
pub mod columns;
pub mod options;

use std::collections::HashMap;
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use busway_core::log::append::Log as Core;
use busway_core::log::bucket::delayed::Parked;
use busway_core::log::columns::Wanted;
use busway_core::log::files::Real;
use busway_core::log::read::Reader;
use busway_core::log::record::{records, Message};
use busway_core::log::replica::Uncopied;
use busway_core::log::write_behind::{Kept, Sent};
use busway_core::log::{Damage, Error, Position, Refused, Settings};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::pybacked::{PyBackedBytes, PyBackedStr};
use pyo3::types::{PyBytes, PyDict};

use crate::log::columns::{asked, shown, Shown};
use crate::log::options::{read_settings, SimulatedFiles};
use crate::rules::Selection;
use crate::wakeup::Bell;

/// How many missing files a read skips.
const LOOKS: usize = 1000;

/// The maximum bytes of records for columns, whose arrays are limited to 2 GiB.
const MOST: usize = 1 << 30;

/// The maximum size of a buffer that is kept for reuse.
const KEPT: usize = 8 << 20;

/// Creates a `busway.errors.DataFailed`.
fn failed(py: Python<'_>, text: String) -> PyErr {
    let make = || py.import("busway.errors")?.getattr("DataFailed")?.call1((text,));
    make().map_or_else(|error| error, PyErr::from_value)
}

pub const TOO_LARGE: &str = "a record has at most 1 GiB, a topic 64 KiB, a sender 255 bytes";

type DamageTuple = (String, u64, u64, Option<u64>, &'static str);

fn as_tuples(damage: Vec<Damage>) -> Vec<DamageTuple> {
    damage.into_iter().map(|one| (one.file, one.position, one.from, one.to, one.what)).collect()
}

/// The stored log of a stream.
#[pyclass(frozen, module = "busway._core")]
pub struct Log {
    name: String,
    core: Arc<Mutex<Option<Core>>>,
    reader: Reader,
    bell: Mutex<Option<Bell>>,
    /// A reused buffer for temporary blocks.
    buffer: Mutex<Vec<u8>>,
}

/// topic, payload, fields, sender, session, number, time, expires, due
type Row = (PyBackedStr, PyBackedBytes, Option<PyBackedBytes>, PyBackedStr, u64, u64, i64, i64, i64);

fn message_of((topic, payload, fields, sender, session, number, time, expires, due): &Row) -> Message<'_> {
    let (session, number, time, expires, due) = (*session, *number, *time, *expires, *due);
    Message { topic, sender, time, session, number, expires, due, fields: fields.as_deref(), payload }
}

/// Where the log is: a folder, or files in memory that tests can damage.
#[derive(FromPyObject)]
enum Source {
    Simulated(Py<SimulatedFiles>),
    Folder(PathBuf),
}

impl Log {
    /// The shared log for the engine, which appends to it.
    pub fn shared(&self) -> Arc<Mutex<Option<Core>>> {
        self.core.clone()
    }

    fn slot(&self) -> MutexGuard<'_, Option<Core>> {
        self.core.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn bell(&self) -> MutexGuard<'_, Option<Bell>> {
        self.bell.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn buffer(&self) -> MutexGuard<'_, Vec<u8>> {
        self.buffer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs a function without the interpreter lock, since it may wait for a disk.
    fn with<R: Send>(&self, py: Python<'_>, run: impl FnOnce(&mut Core) -> R + Send) -> PyResult<R> {
        py.detach(|| self.slot().as_mut().map(run))
            .ok_or_else(|| failed(py, format!("stream {:?} is closed", self.name)))
    }

    fn io<R: Send>(&self, py: Python<'_>, mut run: impl FnMut(&Reader) -> std::io::Result<R> + Send) -> PyResult<R> {
        // A bucket whose file is gone is removed from the list, so that the next read skips it.
        let gone = |error: &std::io::Error| error.kind() == std::io::ErrorKind::NotFound;
        let look = || {
            let again = (0..LOOKS).map(|_| run(&self.reader)).find(|found| !found.as_ref().is_err_and(gone));
            again.unwrap_or_else(|| run(&self.reader))
        };
        py.detach(look).map_err(|error| self.unusable(py, &error))
    }

    fn unusable(&self, py: Python<'_>, error: &dyn std::fmt::Display) -> PyErr {
        failed(py, format!("stream {:?}: {error}", self.name))
    }

    fn taken<'a>(
        &self,
        py: Python<'_>,
        now: i64,
        messages: impl Iterator<Item = Message<'a>> + Send,
    ) -> PyResult<Vec<(u64, u64)>> {
        let (taken, refused) = self.with(py, |log| {
            let mut taken = Vec::with_capacity(messages.size_hint().0);
            for message in messages {
                match log.append(now, &message) {
                    Ok(Position { offset, sequence, .. }) => taken.push((offset, sequence)),
                    Err(refused) => return (taken, Some(refused)),
                }
            }
            (taken, None)
        })?;
        match refused {
            None | Some(Refused::Full) => Ok(taken),
            Some(Refused::Failed(error)) => Err(self.unusable(py, &format!("a write or read failed: {error}"))),
            Some(Refused::TooOld) => {
                Err(PyValueError::new_err("too old to tell whether it was stored already; give it a new number"))
            }
            Some(Refused::NoSpace(why)) => Err(self.unusable(py, &why)),
            Some(Refused::TooLate) => Err(PyValueError::new_err("due later than its stream keeps messages")),
            Some(Refused::TooLarge) => Err(PyValueError::new_err(TOO_LARGE)),
        }
    }
}

#[pymethods]
impl Log {
    #[staticmethod]
    #[pyo3(signature = (folder, *, name = "stream", begin = 0, by_hand = false, **settings))]
    fn open(
        py: Python<'_>,
        folder: Option<Source>,
        name: &str,
        begin: u64,
        by_hand: bool,
        settings: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Self> {
        let settings = read_settings(Settings::default(), settings)?;
        if by_hand && !matches!(folder, Some(Source::Simulated(_))) {
            return Err(PyValueError::new_err("only a log on simulated files is written by hand"));
        }
        // No Python object may be dropped while detached.
        let (simulated, folder) = match folder {
            None => (None, None),
            Some(Source::Simulated(files)) => (Some(files.get().files.clone()), None),
            Some(Source::Folder(folder)) => (None, Some(folder)),
        };
        let opened = py.detach(|| -> Result<_, Error> {
            Ok(match (simulated, folder) {
                (Some(files), _) if by_hand => {
                    // The caller of the writer calls `clear_signal`.
                    let (bell, _) = Bell::new()?;
                    (Core::open(Arc::new(files), settings, None, begin)?.by_hand(), Some(bell))
                }
                (Some(files), _) => (Core::open(Arc::new(files), settings, None, begin)?, None),
                (None, Some(folder)) => {
                    let (bell, ring) = Bell::new()?;
                    (Core::open(Arc::new(Real::new(&folder)?), settings, Some(ring), begin)?, Some(bell))
                }
                (None, None) => (Core::memory(settings, begin), None),
            })
        });
        let (log, bell) = opened.map_err(|error| failed(py, format!("stream {name:?} can't be opened: {error}")))?;
        Ok(Self {
            name: name.into(),
            reader: log.reader(),
            core: Arc::new(Mutex::new(Some(log))),
            bell: Mutex::new(bell),
            buffer: Mutex::default(),
        })
    }

    /// Opens the current state of a folder read-only; another process may write to it.
    #[staticmethod]
    #[pyo3(signature = (folder, *, name = "stream"))]
    fn view(py: Python<'_>, folder: PathBuf, name: &str) -> PyResult<Self> {
        let opened = py.detach(|| Core::view(&folder));
        let log = opened.map_err(|error| failed(py, format!("stream {name:?} can't be read: {error}")))?;
        Ok(Self {
            name: name.into(),
            reader: log.reader(),
            core: Arc::new(Mutex::new(Some(log))),
            bell: Mutex::default(),
            buffer: Mutex::default(),
        })
    }

    /// Opens a front: the write buffer of a stream whose records a database stores.
    #[staticmethod]
    #[pyo3(signature = (*, name, next, stored, sequences, sent, waiting, keep_bytes = 16 << 20, **settings))]
    #[allow(clippy::too_many_arguments)]
    fn front(
        py: Python<'_>,
        name: &str,
        next: u64,
        stored: i64,
        sequences: HashMap<String, u64>,
        sent: Vec<(u64, u64, u64, u64, u64)>,
        waiting: Vec<(i64, u64, u64, u64)>,
        keep_bytes: u64,
        settings: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Self> {
        let settings = read_settings(Settings::default(), settings)?;
        let run = |(session, number, offset, sequence, count)| Sent { session, number, offset, sequence, count };
        let parked = |(due, offset, session, number)| Parked { due, offset, session, number };
        let (sequences, sent) = (sequences.into_iter().collect(), sent.into_iter().map(run).collect());
        let kept = Kept { next, stored, sequences, sent, waiting: waiting.into_iter().map(parked).collect() };
        let made = py.detach(|| {
            let (bell, ring) = Bell::new()?;
            std::io::Result::Ok((Core::front(settings, keep_bytes, kept, ring), bell))
        });
        let (log, bell) = made.map_err(|error| failed(py, format!("stream {name:?} can't be opened: {error}")))?;
        Ok(Self {
            name: name.into(),
            reader: log.reader(),
            core: Arc::new(Mutex::new(Some(log))),
            bell: Mutex::new(Some(bell)),
            buffer: Mutex::default(),
        })
    }

    /// Takes about `most` bytes of appended records of a front: first offset, offset after the last, records.
    #[allow(clippy::type_complexity)]
    fn unstored<'py>(&self, py: Python<'py>, most: usize) -> PyResult<Option<(u64, u64, Bound<'py, PyBytes>)>> {
        let block = self.with(py, |log| log.unstored(most))?;
        Ok(block.map(|block| (block.first, block.next, PyBytes::new(py, &block.bytes))))
    }

    /// Reports that all records of a front below this offset are stored.
    fn stored(&self, py: Python<'_>, upto: u64) -> PyResult<()> {
        self.with(py, |log| log.stored(upto))
    }

    /// Reports that waiting records of a front can't be stored: all, or only those not taken yet.
    #[pyo3(signature = (error, *, taken = true))]
    fn fail(&self, py: Python<'_>, error: &str, taken: bool) -> PyResult<()> {
        self.with(py, |log| log.fail(error, taken))
    }

    /// Changes settings, by their names in `open`.
    #[pyo3(signature = (**settings))]
    fn set(&self, py: Python<'_>, settings: Option<&Bound<'_, PyDict>>) -> PyResult<()> {
        let current = self.with(py, |log| log.settings())?;
        let settings = read_settings(current, settings)?;
        self.with(py, |log| log.set(settings))
    }

    /// A file descriptor that is readable when `safe` has advanced or a write has failed; None if writes are
    /// synchronous.
    fn fileno(&self) -> Option<i32> {
        self.bell().as_ref().map(|bell| bell.ear.as_raw_fd())
    }

    /// Clears `fileno` when it is readable, before the engine's `commit`.
    fn clear_signal(&self) {
        if let Some(bell) = &*self.bell() {
            bell.clear();
        }
    }

    /// Removes the records that could not be written: (from, to, why), or None. Call it when `fileno` is readable.
    fn remove_unwritten(&self, py: Python<'_>) -> PyResult<Option<(u64, u64, String)>> {
        if let Some(bell) = &*self.bell() {
            bell.clear();
        }
        self.with(py, |log| log.remove_unwritten().map(|lost| (lost.from, lost.to, lost.error)))
    }

    /// Appends rows, and returns the position of each accepted one: fewer if too much waits to be written.
    fn append(&self, py: Python<'_>, rows: Vec<Row>, now: i64) -> PyResult<Vec<(u64, u64)>> {
        self.taken(py, now, rows.iter().map(message_of))
    }

    /// Appends the messages of a block after the first `skip` with new offsets and sequences. Returns how many.
    #[pyo3(signature = (block, now, skip = 0))]
    fn append_block(&self, py: Python<'_>, block: &[u8], now: i64, skip: usize) -> PyResult<usize> {
        Ok(self.taken(py, now, records(block).skip(skip).map(|record| record.message()))?.len())
    }

    /// Appends the records of a block of another log unchanged; false: too much waits to be written.
    fn copy(&self, py: Python<'_>, block: &[u8]) -> PyResult<bool> {
        self.with(py, |log| log.copy(block))?.map_err(|error| match error {
            Uncopied::Refused(refused) => self.unusable(py, &format!("a write failed: {refused:?}")),
            Uncopied::Wrong(why) => PyValueError::new_err(why),
        })
    }

    /// Ends a repair, which makes restored records visible.
    fn mended(&self, py: Python<'_>) -> PyResult<()> {
        self.with(py, Core::mended)?.map_err(|error| self.unusable(py, &error))
    }

    /// Restores records in a hole. Returns how many.
    fn mend(&self, py: Python<'_>, block: &[u8]) -> PyResult<u64> {
        self.with(py, |log| log.mend(block))?.map_err(|error| self.unusable(py, &error))
    }

    /// Removes the buckets of a mirror's copy before this offset. Returns how many records, bytes and buckets.
    fn trim_to(&self, py: Python<'_>, first: u64) -> PyResult<(u64, u64, usize)> {
        let gone = self.with(py, |log| log.trim_to(first))?.map_err(|error| self.unusable(py, &error))?;
        Ok((gone.records, gone.bytes, gone.buckets))
    }

    /// Limits `safe` to this offset; None: only the disk counts.
    fn confirm(&self, py: Python<'_>, upto: Option<u64>) -> PyResult<()> {
        self.with(py, |log| log.confirm(upto))
    }

    /// Suspends the log: it accepts no records, as if too much waited to be written.
    fn rest(&self, py: Python<'_>, yes: bool) -> PyResult<()> {
        self.with(py, |log| log.rest(yes))
    }

    /// As `safe`, whether or not a mirror confirmed it.
    #[getter]
    fn written(&self) -> u64 {
        self.reader.written()
    }

    /// As `read`, up to `written`.
    fn read_written<'py>(
        &self,
        py: Python<'py>,
        offset: u64,
        most: usize,
    ) -> PyResult<(u64, u64, Bound<'py, PyBytes>)> {
        let block = self.io(py, |reader| reader.read_written(offset, most))?;
        Ok((block.first, block.next, PyBytes::new(py, &block.bytes)))
    }

    /// Passes appended records to the writer. `here`: writes them before it returns, if nothing else waits and they need
    /// no sync.
    #[pyo3(signature = (*, here = false))]
    fn flush(&self, py: Python<'_>, here: bool) -> PyResult<()> {
        self.with(py, |log| if here { log.flush_here() } else { log.flush() })
    }

    /// Writes flushed records of a log with `by_hand`. Then call `clear_signal` and the engine's `commit`.
    fn write(&self, py: Python<'_>) -> PyResult<()> {
        self.with(py, Core::write)
    }

    /// Bytes that are flushed and not written yet.
    #[getter]
    fn unwritten(&self, py: Python<'_>) -> PyResult<usize> {
        self.with(py, |log| log.unwritten())
    }

    #[getter]
    fn safe(&self) -> u64 {
        self.reader.safe()
    }

    /// Why safe records are not written yet, and how many; None: they are, or will be soon.
    #[getter]
    fn stuck(&self, py: Python<'_>) -> PyResult<Option<(String, u64)>> {
        self.with(py, |log| log.stuck())
    }

    /// Refuses new messages with this reason, but confirms duplicates of stored ones. None: accepts messages again.
    fn refuse(&self, py: Python<'_>, why: Option<String>) -> PyResult<()> {
        self.with(py, |log| log.refuse(why))
    }

    /// Why the last write failed; None: no write failed, or a later one succeeded.
    #[getter]
    fn failure(&self, py: Python<'_>) -> PyResult<Option<String>> {
        self.with(py, |log| log.failure().map(str::to_owned))
    }

    #[getter]
    fn first(&self) -> u64 {
        self.reader.first()
    }

    #[getter]
    fn next(&self, py: Python<'_>) -> PyResult<u64> {
        self.with(py, |log| log.next())
    }

    /// Returns a block from an offset on: the first offset, the next one to read, and the bytes.
    fn read<'py>(&self, py: Python<'py>, offset: u64, most: usize) -> PyResult<(u64, u64, Bound<'py, PyBytes>)> {
        let block = self.io(py, |reader| reader.read(offset, most))?;
        Ok((block.first, block.next, PyBytes::new(py, &block.bytes)))
    }

    /// Returns the records of `read` up to `end` as plain columns: the first offset, the next one to read, the number
    /// of rows, and the columns in their order; see `busway.arrow`.
    #[pyo3(signature = (offset, most, wanted, selection = None, end = u64::MAX, now = 0))]
    #[allow(clippy::too_many_arguments)]
    fn columns<'py>(
        &self,
        py: Python<'py>,
        offset: u64,
        most: usize,
        wanted: Vec<PyBackedStr>,
        selection: Option<&Bound<'_, Selection>>,
        end: u64,
        now: i64,
    ) -> PyResult<(u64, u64, usize, Vec<Shown<'py>>)> {
        let mut columns = asked(&wanted, true)?;
        let wanted = Wanted { selection: selection.map(|given| &given.get().0), range: offset..end, now };
        let most = most.min(MOST);
        // A concurrent read allocates a new buffer.
        let mut buffer = std::mem::take(&mut *self.buffer());
        let (first, next) = self.io(py, |reader| {
            columns.reserve(most);
            reader.scan(offset, end, most, &mut buffer, |record| {
                if wanted.has(record) {
                    columns.add(record);
                }
            })
        })?;
        if buffer.len() <= KEPT {
            *self.buffer() = buffer;
        }
        let (rows, made) = shown(py, columns)?;
        Ok((first, next, rows, made))
    }

    fn find_time(&self, py: Python<'_>, stored: i64) -> PyResult<u64> {
        self.io(py, |reader| reader.find_time(stored))
    }

    fn find(&self, py: Python<'_>, topic: &str, sequence: u64) -> PyResult<Option<u64>> {
        self.io(py, |reader| reader.find(topic, sequence))
    }

    /// Number, offset and sequence of the stored messages of a session, of `count` numbers from `first` on.
    fn placed(&self, py: Python<'_>, session: u64, first: u64, count: u64) -> PyResult<Vec<(u64, u64, u64)>> {
        let found = self.with(py, |log| log.placed(session, first, count))?;
        let found = found.map_err(|_| self.unusable(py, &"it can't be looked up"))?;
        Ok(found.into_iter().map(|(number, place)| (number, place.offset, place.sequence)).collect())
    }

    /// The first offset that may have a record for a selection.
    fn skip(&self, py: Python<'_>, offset: u64, selection: &Bound<'_, Selection>) -> PyResult<u64> {
        let selection = &selection.get().0;
        self.io(py, |reader| reader.skip(offset, selection))
    }

    /// Stored topics: first and last sequence, number of records.
    fn topics(&self, py: Python<'_>) -> PyResult<Vec<(String, u64, u64, u64)>> {
        // Appending does not wait while all indexes are read.
        let (open, base) = self.with(py, |log| log.inside())?;
        self.io(py, |reader| reader.topics(&open, base))
    }

    /// The last sequence of each topic that was ever stored.
    fn sequences<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let all: Vec<_> =
            self.with(py, |log| log.sequences().map(|(topic, last)| (topic.to_owned(), last)).collect())?;
        let out = PyDict::new(py);
        for (topic, last) in all {
            out.set_item(topic, last)?;
        }
        Ok(out)
    }

    /// The number of topics that were ever stored.
    #[getter]
    fn topic_count(&self, py: Python<'_>) -> PyResult<usize> {
        self.with(py, |log| log.sequences().count())
    }

    /// Delayed messages: due time and offset, the next one first.
    fn waiting(&self, py: Python<'_>) -> PyResult<Vec<(i64, u64)>> {
        self.with(py, |log| log.waiting().sorted().iter().map(|parked| (parked.due, parked.offset)).collect())
    }

    /// The number of delayed messages, and of those that were removed before they were due.
    #[getter]
    fn waits(&self, py: Python<'_>) -> PyResult<(usize, u64)> {
        self.with(py, |log| (log.waiting().len(), log.waiting().dropped))
    }

    /// Drops the delayed messages of a front below this offset, since their records were removed.
    fn drop_waiting(&self, py: Python<'_>, first: u64) -> PyResult<()> {
        self.with(py, |log| log.drop_waiting(first))
    }

    /// Appends the delayed messages of a block that are due at `now` again. Returns how many.
    fn release(&self, py: Python<'_>, block: &[u8], now: i64) -> PyResult<usize> {
        let put = |log: &mut Core| {
            records(block).filter_map(|record| log.release(now, &record.message()).transpose()).collect()
        };
        let taken: Result<Vec<Position>, Refused> = self.with(py, put)?;
        taken.map(|all| all.len()).map_err(|refused| self.unusable(py, &format!("a write failed: {refused:?}")))
    }

    /// Removes old buckets. Returns how many records, bytes and buckets.
    #[pyo3(signature = (now, hold = u64::MAX))]
    fn trim(&self, py: Python<'_>, now: i64, hold: u64) -> PyResult<(u64, u64, usize)> {
        let gone = self.with(py, |log| log.trim(now, hold))?.map_err(|error| self.unusable(py, &error))?;
        Ok((gone.records, gone.bytes, gone.buckets))
    }

    /// Records and bytes beyond the limits that the last trim kept because of `hold`.
    #[getter]
    fn held(&self, py: Python<'_>) -> PyResult<(u64, u64)> {
        self.with(py, |log| log.held())
    }

    /// The known damage: file, position, first lost offset, offset after the last lost one, description.
    #[getter]
    fn damage(&self) -> Vec<DamageTuple> {
        as_tuples(self.reader.damage())
    }

    /// Reads all records to find all damage.
    fn check(&self, py: Python<'_>) -> PyResult<Vec<DamageTuple>> {
        self.io(py, Reader::check).map(as_tuples)
    }

    /// Bytes of records, number of buckets, bytes of index files.
    #[getter]
    fn usage(&self) -> (u64, usize, u64) {
        self.reader.usage()
    }

    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let closed = py.detach(|| self.slot().take().map_or(Ok(()), |mut log| log.close()));
        // The file descriptors are closed here: Python may free this object much later.
        *self.bell() = None;
        closed.map_err(|error| self.unusable(py, &error))
    }
}
