//! The Python extension `busway._core`: the only crate that uses `PyO3`.
//!
//! Calls are coarse: a chunk of bytes goes in, and a list of the few events for Python comes out. No Python code runs
//! while a lock is held.

// PyO3 passes arguments by value, and needs methods where functions would do.
#![allow(clippy::needless_pass_by_value, clippy::unused_self)]

mod bytes;
mod client;
mod engine;
mod grants;
mod log;
mod message;
mod rules;
mod topics;
mod wakeup;

use busway_core::clock;
use busway_core::matching::{regex, topic};
use busway_core::wire::frame::{code, Fault, ERRORS, VERSION};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyTuple};

pub(crate) mod event {
    pub const HELLO: u8 = 1;
    pub const SUBSCRIBE: u8 = 2;
    pub const SERVE: u8 = 3;
    pub const CALL: u8 = 4;
    pub const CLOSE: u8 = 5;
    pub const FAIL: u8 = 6;
    pub const PAUSE: u8 = 7;
    pub const RESUME: u8 = 8;
    pub const WELCOME: u8 = 9;
    pub const READY: u8 = 10;
    pub const RESULT: u8 = 11;
    pub const REPLY: u8 = 12;
    pub const MISSED: u8 = 13;
    pub const PONG: u8 = 14;
    pub const AWAY: u8 = 15;
    pub const FULL: u8 = 16;
    pub const YIELD: u8 = 17;
    pub const ASK: u8 = 18;
    pub const UNSERVE: u8 = 19;
    pub const KEEP: u8 = 20;
    pub const REQUEST: u8 = 21;
    pub const CANCEL: u8 = 22;
    pub const ACCEPT: u8 = 23;
    pub const ANSWER: u8 = 24;
    pub const FLOW: u8 = 25;
    pub const WAIT: u8 = 26;
    pub const READ: u8 = 27;
    pub const UNSUBSCRIBE: u8 = 28;
    pub const BEHIND: u8 = 29;
    pub const ROOM: u8 = 30;
    pub const STORED: u8 = 31;
    pub const CHANNEL: u8 = 32;
    pub const GAP: u8 = 33;
    pub const LATER: u8 = 34;
    pub const DOUBT: u8 = 35;
    pub const OWN: u8 = 36;
    pub const ENDED: u8 = 37;
    pub const NODE: u8 = 38;
    pub const SYNCED: u8 = 39;
    pub const CONFLICT: u8 = 40;
    pub const PROVIDER: u8 = 41;
    pub const SERVERS: u8 = 42;
    pub const CHALLENGE: u8 = 43;
    pub const LOGIN: u8 = 44;
    pub const REFUSED: u8 = 45;
}

/// Converts a fault to the exception of its code in `busway.errors`.
pub(crate) fn raised(py: Python<'_>, fault: &Fault) -> PyErr {
    static FROM_CODE: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let make = || PyResult::Ok(py.import("busway.errors")?.getattr("from_code")?.unbind());
    let error = FROM_CODE.get_or_try_init(py, make).and_then(|make| make.call1(py, (fault.code, &fault.text)));
    error.map_or_else(|error| error, |error| PyErr::from_value(error.into_bound(py)))
}

/// True if some concrete topic belongs to both; one of them may be a `re:` pattern.
#[pyfunction]
fn matches(py: Python<'_>, a: &str, b: &str) -> PyResult<bool> {
    let checked = |text| topic::check(text).map_err(|fault| raised(py, &fault));
    let (expression, topic) = match (a.strip_prefix(regex::PREFIX), b.strip_prefix(regex::PREFIX)) {
        (None, None) => return Ok(topic::meet(checked(a)?, checked(b)?)),
        (Some(expression), None) => (expression, b),
        (None, Some(expression)) => (expression, a),
        (Some(_), Some(_)) => {
            let text = format!("{a:?} and {b:?}: two regular expressions can't be compared, give a topic for one");
            return Err(raised(py, &Fault::new(code::INVALID_PATTERN, text)));
        }
    };
    let topic = checked(topic)?;
    regex::Pattern::new(expression).map(|found| found.matches(topic)).map_err(|fault| raised(py, &fault))
}

/// Returns the topic without its leading slash.
#[pyfunction]
#[pyo3(signature = (topic, *, wildcards = true))]
fn check_topic<'a>(py: Python<'_>, topic: &'a str, wildcards: bool) -> PyResult<&'a str> {
    let checked = topic::check(topic).map_err(|fault| raised(py, &fault))?;
    if !wildcards && topic::has_wildcard(checked) {
        let text = format!("topic {checked:?} has a wildcard, which is not allowed here");
        return Err(raised(py, &Fault::new(code::WILDCARD, text)));
    }
    Ok(checked)
}

/// As `check_topic`, and also accepts `re:` patterns.
#[pyfunction]
fn check_pattern<'a>(py: Python<'_>, pattern: &'a str) -> PyResult<&'a str> {
    match pattern.strip_prefix(regex::PREFIX) {
        Some(text) => regex::Pattern::new(text).map(|_| pattern).map_err(|fault| raised(py, &fault)),
        None => check_topic(py, pattern, true),
    }
}

/// Stops the engine's clocks at a time in nanoseconds since 1970; 0 lets them run.
#[pyfunction]
fn hold_clock(at: i64) {
    clock::hold(at);
}

#[pymodule(name = "_core")]
fn fill(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add("__version__", env!("CARGO_PKG_VERSION"))?;
    m.add("PROTOCOL", VERSION)?;
    let errors = PyDict::new(m.py());
    for (name, code, survives) in ERRORS {
        errors.set_item(name, (code, survives))?;
    }
    m.add("ERRORS", errors)?;
    for (name, kind) in [
        ("EVENT_HELLO", event::HELLO),
        ("EVENT_SUBSCRIBE", event::SUBSCRIBE),
        ("EVENT_SERVE", event::SERVE),
        ("EVENT_CALL", event::CALL),
        ("EVENT_CLOSE", event::CLOSE),
        ("EVENT_FAIL", event::FAIL),
        ("EVENT_PAUSE", event::PAUSE),
        ("EVENT_RESUME", event::RESUME),
        ("EVENT_WELCOME", event::WELCOME),
        ("EVENT_READY", event::READY),
        ("EVENT_RESULT", event::RESULT),
        ("EVENT_REPLY", event::REPLY),
        ("EVENT_MISSED", event::MISSED),
        ("EVENT_PONG", event::PONG),
        ("EVENT_AWAY", event::AWAY),
        ("EVENT_CHALLENGE", event::CHALLENGE),
        ("EVENT_LOGIN", event::LOGIN),
        ("EVENT_REFUSED", event::REFUSED),
        ("EVENT_SERVERS", event::SERVERS),
        ("EVENT_FULL", event::FULL),
        ("EVENT_YIELD", event::YIELD),
        ("EVENT_ASK", event::ASK),
        ("EVENT_UNSERVE", event::UNSERVE),
        ("EVENT_UNSUBSCRIBE", event::UNSUBSCRIBE),
        ("EVENT_BEHIND", event::BEHIND),
        ("EVENT_ROOM", event::ROOM),
        ("EVENT_STORED", event::STORED),
        ("EVENT_CHANNEL", event::CHANNEL),
        ("EVENT_GAP", event::GAP),
        ("EVENT_LATER", event::LATER),
        ("EVENT_DOUBT", event::DOUBT),
        ("EVENT_OWN", event::OWN),
        ("EVENT_ENDED", event::ENDED),
        ("EVENT_NODE", event::NODE),
        ("EVENT_SYNCED", event::SYNCED),
        ("EVENT_CONFLICT", event::CONFLICT),
        ("EVENT_PROVIDER", event::PROVIDER),
        ("EVENT_KEEP", event::KEEP),
        ("EVENT_REQUEST", event::REQUEST),
        ("EVENT_CANCEL", event::CANCEL),
        ("EVENT_ACCEPT", event::ACCEPT),
        ("EVENT_ANSWER", event::ANSWER),
        ("EVENT_FLOW", event::FLOW),
        ("EVENT_WAIT", event::WAIT),
        ("EVENT_READ", event::READ),
    ] {
        m.add(name, kind)?;
    }
    m.add("Message", message::class_object(m.py())?)?;
    m.add_class::<bytes::Chunk>()?;
    m.add_class::<client::session::Session>()?;
    m.add_class::<client::publisher::Publisher>()?;
    m.add_class::<client::inbox::Inbox>()?;
    m.add_class::<engine::Engine>()?;
    m.add_class::<grants::GrantSet>()?;
    m.add_class::<grants::Grants>()?;
    m.add("VERBS", PyTuple::new(m.py(), busway_core::matching::grants::VERBS)?)?;
    m.add_class::<topics::TopicLevel>()?;
    m.add_class::<rules::Rules>()?;
    m.add_class::<rules::Selection>()?;
    m.add_class::<bytes::ColumnBuffer>()?;
    m.add_class::<log::Log>()?;
    m.add_class::<log::block::Block>()?;
    m.add_class::<log::options::SimulatedFiles>()?;
    m.add_function(wrap_pyfunction!(matches, m)?)?;
    m.add_function(wrap_pyfunction!(check_topic, m)?)?;
    m.add_function(wrap_pyfunction!(hold_clock, m)?)?;
    m.add_function(wrap_pyfunction!(check_pattern, m)?)?;
    m.add_function(wrap_pyfunction!(rules::check_fields, m)?)?;
    m.add_function(wrap_pyfunction!(message::furthest, m)?)?;
    m.add_function(wrap_pyfunction!(message::delivered_offsets, m)?)?;
    m.add_function(wrap_pyfunction!(log::block::block_records, m)?)?;
    m.add_function(wrap_pyfunction!(log::block::block_part, m)?)?;
    m.add_function(wrap_pyfunction!(log::block::encode_records, m)?)?;
    m.add_function(wrap_pyfunction!(log::columns::columns, m)?)?;
    m.add_function(wrap_pyfunction!(log::block_reader::block_messages, m)?)?;
    m.add_function(wrap_pyfunction!(log::block_reader::select_records, m)?)?;
    Ok(())
}
