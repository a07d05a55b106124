//! `publish()` of a bus as one native call, since the Python code before it would cost more than the work itself.

use std::convert::Infallible;

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBytes, PyDict, PyString, PyTuple};

use crate::client::session::{done, Session};

/// A payload, which may be None, or a missing one.
struct Payload<'a, 'py>(Option<Borrowed<'a, 'py, PyAny>>);

impl<'a, 'py> FromPyObject<'a, 'py> for Payload<'a, 'py> {
    type Error = Infallible;

    fn extract(payload: Borrowed<'a, 'py, PyAny>) -> Result<Self, Infallible> {
        Ok(Self(Some(payload)))
    }
}

/// Base class of a bus: encodes a message at once if possible, and else calls `_publish` of the subclass.
#[pyclass(frozen, subclass, module = "busway._core")]
pub struct Publisher {
    session: PyOnceLock<Py<Session>>,
}

#[pymethods]
impl Publisher {
    #[new]
    #[pyo3(signature = (*_args, **_keywords))]
    fn new(_args: &Bound<'_, PyTuple>, _keywords: Option<&Bound<'_, PyDict>>) -> Self {
        Self { session: PyOnceLock::new() }
    }

    /// Sets the session that encodes the messages. Only the first call has an effect.
    fn _bind(&self, py: Python<'_>, session: Py<Session>) {
        let _ = self.session.set(py, session);
    }

    /// Send a message to all subscribers of its topic.
    ///
    /// With `confirm` it returns how many connections received the message. `offline` overrides the behaviour of
    /// `connect()` while disconnected. `durable` stores the message in the stream of its topic, and returns its
    /// position when it has the stream's safety; such a message may expire, and may be delayed; `timeout` limits the
    /// wait for the position. `scope` is "global", "local" (clients of the same node of a cluster) or "remote" (of
    /// other nodes).
    #[pyo3(
        signature = (topic, payload = Payload(None), *, fields = None, confirm = None, offline = None, durable = None, **more),
        text_signature = "($self, topic, payload=b'', *, fields=None, confirm=False, offline=None, durable=False, expires=None, delay=None, deliver_at=None, scope='global', timeout=None)"
    )]
    #[allow(clippy::too_many_arguments)] // named by keyword in Python
    fn publish<'py>(
        slf: &Bound<'py, Self>,
        topic: &Bound<'py, PyAny>,
        payload: Payload<'_, 'py>,
        fields: Option<&Bound<'py, PyAny>>,
        confirm: Option<&Bound<'py, PyAny>>,
        offline: Option<&Bound<'py, PyAny>>,
        durable: Option<&Bound<'py, PyAny>>,
        more: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let py = slf.py();
        let payload = match payload.0 {
            Some(payload) => payload.to_owned(),
            None => PyBytes::new(py, b"").into_any(),
        };
        let plain = payload.is_exact_instance_of::<PyBytes>() || payload.is_exact_instance_of::<PyString>();
        let simple = fields.is_none() && confirm.is_none() && offline.is_none() && durable.is_none() && more.is_none();
        if let (true, true, Some(session), Ok(topic)) =
            (plain, simple, slf.get().session.get(py), topic.cast::<PyString>())
        {
            if session.get().try_publish(py, topic, &payload, &[], 0)? {
                return done(py).cloned();
            }
        }
        slf.call_method(intern!(py, "_publish"), (topic, payload, fields, confirm, offline, durable), more)
    }
}
