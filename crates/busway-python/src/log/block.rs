//! Blocks of stored records for Python: encodes, cuts, reads and searches them.

use busway_core::log::record::{records, Message, Record};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::pybacked::{PyBackedBytes, PyBackedStr};
use pyo3::types::PyBytes;

use crate::log::TOO_LARGE;
use crate::rules::Selection;

/// A stored message: offset, sequence, stored, topic, payload, fields, sender, session, number, time, expires, due.
type StoredRow =
    (u64, u64, i64, PyBackedStr, PyBackedBytes, Option<PyBackedBytes>, PyBackedStr, u64, u64, i64, i64, i64);

/// Encodes messages as a block.
#[pyfunction]
pub fn encode_records(py: Python<'_>, rows: Vec<StoredRow>) -> PyResult<Bound<'_, PyBytes>> {
    let mut out = Vec::new();
    for (offset, sequence, stored, topic, payload, fields, sender, session, number, time, expires, due) in &rows {
        let fields = fields.as_deref();
        let (session, number, time, expires, due) = (*session, *number, *time, *expires, *due);
        let message = Message { topic, sender, time, session, number, expires, due, fields, payload };
        if message.size().is_none() {
            return Err(PyValueError::new_err(TOO_LARGE));
        }
        message.encode(*offset, *sequence, *stored, &mut out);
    }
    Ok(PyBytes::new(py, &out))
}

/// Returns the part of a block from an offset on, at most so many bytes but at least one record: the first offset, the
/// next one to read, and the bytes.
#[pyfunction]
pub fn block_part<'py>(py: Python<'py>, block: &[u8], offset: u64, most: usize) -> (u64, u64, Bound<'py, PyBytes>) {
    let (mut start, mut end, mut first, mut next) = (0, 0, offset, offset);
    for record in records(block) {
        let size = record.bytes.len();
        if record.offset() < offset {
            (start, end) = (start + size, end + size);
        } else if end == start {
            (end, first, next) = (end + size, record.offset(), record.offset() + 1);
        } else if end + size - start <= most {
            (end, next) = (end + size, record.offset() + 1);
        } else {
            break;
        }
    }
    (first, next, PyBytes::new(py, &block[start..end]))
}

/// A block whose records channels deliver a few at a time.
#[pyclass(frozen, module = "busway._core")]
pub struct Block(pub busway_core::log::block::Block);

/// First offset, and count.
type Span = (u64, u64);

#[pymethods]
impl Block {
    #[new]
    fn new(block: &[u8]) -> Self {
        Self(busway_core::log::block::Block::new(block))
    }

    fn __len__(&self) -> usize {
        self.0.len()
    }

    /// The message with this offset, or None.
    fn get<'py>(&self, py: Python<'py>, offset: u64) -> PyResult<Option<Bound<'py, PyAny>>> {
        self.0.get(offset).map(|record| row(py, &record)).transpose()
    }

    /// The matching records from an offset on.
    fn find(&self, begin: u64, selection: &Bound<'_, Selection>, but: &str, now: i64) -> Vec<Span> {
        self.0.find(begin, &selection.get().0, but, now)
    }
}

/// A message: offset, sequence, stored, topic, payload, fields, sender, session, number, time, expires, due.
fn row<'py>(py: Python<'py>, record: &Record<'_>) -> PyResult<Bound<'py, PyAny>> {
    let bytes = |bytes: &[u8]| PyBytes::new(py, bytes);
    let place = (record.offset(), record.sequence(), record.stored(), record.topic);
    let body = (bytes(record.payload), record.fields.map(bytes), record.sender);
    let rest = (record.session(), record.number(), record.time(), record.expires(), record.due());
    let row = (place.0, place.1, place.2, place.3, body.0, body.1, body.2, rest.0, rest.1, rest.2, rest.3, rest.4);
    row.into_pyobject(py).map(Bound::into_any)
}

/// Decodes the messages of a block.
#[pyfunction]
pub fn block_records<'py>(py: Python<'py>, block: &[u8]) -> PyResult<Vec<Bound<'py, PyAny>>> {
    let mut all = records(block);
    let rows = all.by_ref().map(|record| row(py, &record)).collect();
    if all.rest.is_empty() {
        rows
    } else {
        Err(PyValueError::new_err("not a block of whole records"))
    }
}
