//! A message as Python sees it: small, immutable, with parts that are made when asked for.

use std::rc::Rc;

use busway_core::frame::kind;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBytes, PyString};

use crate::bytes::Attached;

/// Who sent a message, shared by all messages of one sender.
pub struct Sender {
    pub name: Py<PyString>,
    pub session: u64,
}

/// One message, as it came.
#[pyclass(frozen, module = "busway._core", freelist = 4096)]
pub struct Message {
    #[pyo3(get)]
    pub topic: Py<PyString>,
    #[pyo3(get)]
    pub payload: Py<PyBytes>,
    pub from: Attached<Rc<Sender>>,
    /// UTC, nanoseconds since 1970.
    #[pyo3(get)]
    pub time_ns: i64,
    pub number: u64,
    /// How many messages of this subscription were dropped right before this one.
    #[pyo3(get)]
    pub missed: u64,
    pub frame: u8,
}

impl Message {
    /// The same message, told that others went missing before it.
    pub fn after(&self, py: Python<'_>, missed: u64) -> Self {
        Self {
            topic: self.topic.clone_ref(py),
            payload: self.payload.clone_ref(py),
            from: Attached(self.from.0.clone()),
            time_ns: self.time_ns,
            number: self.number,
            missed,
            frame: self.frame,
        }
    }
}

#[pymethods]
impl Message {
    /// The payload as text.
    #[getter]
    fn text(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        self.payload.call_method1(py, "decode", ("utf-8",))
    }

    /// The payload read as JSON.
    fn json(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        static DECODE: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        let decode = DECODE.import(py, "msgspec.json", "decode")?;
        Ok(decode.call1((&self.payload,))?.unbind())
    }

    /// 32 hexadecimal digits: the sender's session and its number for the message.
    #[getter]
    fn id(&self) -> String {
        format!("{:016x}{:016x}", self.from.0.session, self.number)
    }

    /// When it was sent, UTC.
    #[getter]
    fn time(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        static EPOCH: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        static DELTA: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        let delta = DELTA.import(py, "datetime", "timedelta")?;
        let epoch = EPOCH.get_or_try_init(py, || {
            let datetime = py.import("datetime")?;
            let utc = datetime.getattr("timezone")?.getattr("utc")?;
            PyResult::Ok(datetime.getattr("datetime")?.call1((1970, 1, 1, 0, 0, 0, 0, utc))?.unbind())
        })?;
        epoch.call_method1(py, "__add__", (delta.call1((0, 0, self.time_ns.div_euclid(1000)))?,))
    }

    /// Name of the client that sent it.
    #[getter]
    fn sender(&self, py: Python<'_>) -> Py<PyString> {
        self.from.0.name.clone_ref(py)
    }

    /// `publish`, `push`, `request` or `reply`.
    #[getter]
    fn kind(&self) -> &'static str {
        match self.frame {
            kind::OFFER => "push",
            kind::CALL => "request",
            kind::REPLY => "reply",
            _ => "publish",
        }
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let payload = self.payload.as_bytes(py);
        let shown = PyBytes::new(py, &payload[..payload.len().min(32)]).repr()?;
        let more = if payload.len() > 32 { format!("... {} bytes", payload.len()) } else { String::new() };
        Ok(format!("<Message {} {}: {shown}{more}>", self.kind(), self.topic.bind(py).repr()?))
    }
}
