//! Blocks for readers of streams: selects matching records, and converts them to messages for Python.

use busway_core::log::columns::{select, Wanted};
use busway_core::log::record::records;
use busway_core::wire::frame::{flag, kind};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyString};

use crate::message::{make, Message, Parts, Place, Sender};
use crate::rules::Selection;

/// Returns a block of the matching records only.
#[pyfunction]
#[pyo3(signature = (block, selection = None, begin = 0, end = u64::MAX, now = 0))]
pub fn select_records<'py>(
    py: Python<'py>,
    block: &[u8],
    selection: Option<&Bound<'_, Selection>>,
    begin: u64,
    end: u64,
    now: i64,
) -> Bound<'py, PyBytes> {
    let wanted = Wanted { selection: selection.map(|given| &given.get().0), range: begin..end, now };
    PyBytes::new(py, &py.detach(|| select(block, &wanted)))
}

/// Returns the matching messages of a block; `place` is (broker, stream), `head` the number of bytes before the block.
#[pyfunction]
#[pyo3(signature = (block, place, selection = None, begin = 0, end = u64::MAX, now = 0, head = 0))]
#[allow(clippy::too_many_arguments)]
pub fn block_messages(
    py: Python<'_>,
    block: &[u8],
    place: Py<PyAny>,
    selection: Option<&Bound<'_, Selection>>,
    begin: u64,
    end: u64,
    now: i64,
    head: usize,
) -> PyResult<Vec<Message>> {
    let block = block.get(head..).unwrap_or_default();
    let wanted = Wanted { selection: selection.map(|given| &given.get().0), range: begin..end, now };
    let mut out = Vec::new();
    // Topic and sender of the last record, which mostly are those of the next one.
    let mut topic: Option<(&str, Py<PyString>)> = None;
    let mut sender: Option<(&str, Sender)> = None;
    let mut all = records(block);
    for record in all.by_ref().filter(|record| wanted.has(record)) {
        let topic = match topic.take().filter(|(text, _)| *text == record.topic) {
            Some(known) => topic.insert(known),
            None => topic.insert((record.topic, PyString::new(py, record.topic).unbind())),
        };
        let session = record.session();
        let known = sender.take().filter(|(text, from)| *text == record.sender && from.session == session);
        let sender =
            sender.insert(known.unwrap_or_else(|| {
                (record.sender, Sender { name: PyString::new(py, record.sender).unbind(), session })
            }));
        let at = (record.offset(), record.sequence(), record.stored(), 0);
        out.push(make(
            py,
            Parts {
                topic: &topic.1,
                from: &sender.1,
                time: record.time(),
                number: record.number(),
                frame: kind::RECORD,
                flags: flag::REPLAY,
                fields: record.fields.map(|fields| PyBytes::new(py, fields).into_any().unbind()),
                payload: record.payload,
                place: Some(Place::new(py, &place, None, at)),
            },
        )?);
    }
    if all.rest.is_empty() {
        Ok(out)
    } else {
        Err(PyValueError::new_err("not a block of whole records"))
    }
}
