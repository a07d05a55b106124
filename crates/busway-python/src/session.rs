//! The client's side for Python: one connection after the other, encoded here and decoded by `incoming`.

use std::cell::{RefCell, RefMut};
use std::rc::Rc;
use std::time::{SystemTime, UNIX_EPOCH};

use busway_core::client::{Limits, Outgoing};
use busway_core::frame::{code, kind, Checked, Fault};
use busway_core::inbox::Inbox as Messages;
use busway_core::split::Splitter;
use busway_core::topic;
use pyo3::exceptions::{PyStopIteration, PyTypeError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyList, PyMemoryView, PyString};

use crate::bytes::{with_buffer, with_bytes, Attached, Bin, Chunk};
use crate::inbox::Inbox;
use crate::incoming::{Arrivals, Event};
use crate::raised;

/// What the ids in front of a delivery may add to the longest frame a client may send.
const IDS: usize = 512 << 10;

/// A coroutine that is done already: what a publish that needs no waiting answers. `send`, `throw` and `close` make it one
/// for `asyncio.create_task()`; `await` asks for none of them.
#[pyclass(frozen, module = "busway._core")]
struct Done;

#[pymethods]
impl Done {
    fn __await__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    fn __iter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    fn __next__(&self) -> Option<()> {
        None
    }

    fn send(&self, _value: &Bound<'_, PyAny>) -> PyResult<()> {
        Err(PyStopIteration::new_err(()))
    }

    #[pyo3(signature = (error, value = None, _trace = None))]
    fn throw(
        &self,
        error: Bound<'_, PyAny>,
        value: Option<Bound<'_, PyAny>>,
        _trace: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        Err(PyErr::from_value(value.unwrap_or(error)))
    }

    fn close(&self) {}
}

/// The one that all such publishes answer.
pub fn done(py: Python<'_>) -> PyResult<&Bound<'_, PyAny>> {
    static DONE: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    DONE.get_or_try_init(py, || Ok(Py::new(py, Done)?.into_any())).map(|done| done.bind(py))
}

pub fn now() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_nanos()).unwrap_or(i64::MAX)
}

struct State {
    out: Outgoing,
    open: bool,
    writable: bool,
    gather: usize,
    on_output: Option<Py<PyAny>>,
    /// The topic used last, by identity, and its slot.
    last: Option<(Py<PyString>, u32)>,
    arrivals: Arrivals,
}

impl State {
    fn slot(&mut self, kind: u8, topic: &Bound<'_, PyString>) -> PyResult<u32> {
        match &self.last {
            Some((last, slot)) if last.as_ptr() == topic.as_ptr() => Ok(*slot),
            _ => {
                let text = topic.to_str()?;
                let bare = text.strip_prefix('/').unwrap_or(text);
                let reserved = bare.starts_with(topic::RESERVED) && topic::is_reserved(bare);
                if reserved && kind != kind::REQUEST {
                    let text = format!("topic {text:?} belongs to the broker: only requests may name it");
                    return Err(raised(topic.py(), &Fault::new(code::RESERVED, text)));
                }
                let slot = self.out.slot(text).map_err(|fault| raised(topic.py(), &fault))?;
                // Not one that only requests may use: what is remembered here is not looked at again.
                if !reserved {
                    self.last = Some((topic.clone().unbind(), slot));
                }
                Ok(slot)
            }
        }
    }

    fn closed(&self) -> Checked<()> {
        if self.open {
            Ok(())
        } else {
            Err(Fault::new(code::GOING_AWAY, "there is no connection now"))
        }
    }
}

/// Client side of a connection: encodes what is sent, decodes what arrives.
#[pyclass(frozen, module = "busway._core")]
pub struct Session {
    state: Attached<RefCell<State>>,
    splitter: Attached<RefCell<Splitter>>,
    bin: Bin,
}

impl Session {
    fn state(&self) -> RefMut<'_, State> {
        self.state.0.borrow_mut()
    }

    /// Runs `write`, and tells the driver if output begins to wait by it.
    fn write<R>(&self, py: Python<'_>, write: impl FnOnce(&mut State) -> PyResult<R>) -> PyResult<R> {
        let mut state = self.state();
        let waited = !state.out.out.is_empty();
        let done = write(&mut state);
        let on_output = if waited || state.out.out.is_empty() { &None } else { &state.on_output };
        let on_output = on_output.as_ref().map(|call| call.clone_ref(py));
        drop(state);
        if let Some(on_output) = on_output {
            on_output.call0(py)?;
        }
        done
    }

    /// Encodes a PUBLISH, if one may go out now.
    #[inline]
    pub fn try_publish<'py>(
        &self,
        py: Python<'py>,
        topic: &Bound<'py, PyString>,
        payload: &Bound<'py, PyAny>,
    ) -> PyResult<bool> {
        self.write(py, |state| {
            if !state.open || !state.writable || state.out.out.len() >= state.gather {
                return Ok(false);
            }
            with_bytes(payload, |bytes| {
                state.out.fits(bytes.len()).map_err(|fault| raised(py, &fault))?;
                let slot = state.slot(kind::PUBLISH, topic)?;
                state.out.message(kind::PUBLISH, 0, slot, 0, now(), bytes);
                Ok(true)
            })
        })
    }

    fn checked<R>(&self, py: Python<'_>, write: impl FnOnce(&mut State) -> Checked<R>) -> PyResult<R> {
        self.write(py, |state| Ok(write(state)))?.map_err(|fault| raised(py, &fault))
    }
}

#[pymethods]
impl Session {
    #[new]
    #[pyo3(signature = (session, *, gather = 131_072))]
    fn new(py: Python<'_>, session: u64, gather: usize) -> Self {
        let state = State {
            out: Outgoing::new(),
            open: false,
            writable: true,
            gather,
            on_output: None,
            last: None,
            arrivals: Arrivals::new(py, session),
        };
        Self { state: Attached(RefCell::new(state)), splitter: Attached::default(), bin: Bin::default() }
    }

    #[pyo3(signature = (on_output))]
    fn attach(&self, on_output: Option<Py<PyAny>>) {
        let mut state = self.state();
        state.out.reset();
        state.open = false;
        state.writable = true;
        state.last = None;
        state.arrivals.reset();
        state.on_output = on_output;
        *self.splitter.0.borrow_mut() = Splitter::default();
    }

    #[pyo3(signature = (*, frame, topic, fields, topics))]
    fn open(&self, frame: usize, topic: usize, fields: usize, topics: usize) {
        // Version 1 clients write no fields.
        let _ = fields;
        let mut state = self.state();
        state.out.open(Limits { frame, topic, topics });
        state.arrivals.limit = frame.saturating_add(IDS);
        state.open = true;
    }

    fn writable(&self, yes: bool) {
        self.state().writable = yes;
    }

    fn publish<'py>(
        &self,
        py: Python<'py>,
        topic: &Bound<'py, PyString>,
        payload: &Bound<'py, PyAny>,
    ) -> PyResult<Option<&'py Bound<'py, PyAny>>> {
        if self.try_publish(py, topic, payload)? {
            done(py).map(Some)
        } else {
            Ok(None)
        }
    }

    fn publish_many<'py>(
        &self,
        py: Python<'py>,
        topic: &Bound<'py, PyString>,
        payloads: &Bound<'py, PyAny>,
        start: usize,
    ) -> PyResult<usize> {
        let list = payloads.cast::<PyList>().ok();
        let size = payloads.len()?;
        let time = now();
        self.write(py, |state| {
            let mut at = start;
            while at < size && state.open && state.writable && state.out.out.len() < state.gather {
                let payload = match list {
                    Some(list) => list.get_item(at)?,
                    None => payloads.get_item(at)?,
                };
                let taken = with_bytes(&payload, |bytes| {
                    state.out.fits(bytes.len()).map_err(|fault| raised(py, &fault))?;
                    let slot = state.slot(kind::PUBLISH, topic)?;
                    state.out.message(kind::PUBLISH, 0, slot, 0, time, bytes);
                    Ok(())
                });
                match taken {
                    Ok(()) => at += 1,
                    // What was taken before it counts; the call that begins with it tells what is wrong.
                    Err(_) if at > start => break,
                    Err(error) => return Err(error),
                }
            }
            Ok(at)
        })
    }

    #[pyo3(signature = (kind, topic, payload, *, flags = 0, aux = 0))]
    fn send<'py>(
        &self,
        py: Python<'py>,
        kind: u8,
        topic: &Bound<'py, PyString>,
        payload: &Bound<'py, PyAny>,
        flags: u8,
        aux: u32,
    ) -> PyResult<u64> {
        if !(kind::PUBLISH..=kind::REQUEST).contains(&kind) {
            return Err(PyTypeError::new_err("kind must be PUBLISH, PUSH or REQUEST"));
        }
        self.write(py, |state| {
            state.closed().map_err(|fault| raised(py, &fault))?;
            with_bytes(payload, |bytes| {
                state.out.fits(bytes.len()).map_err(|fault| raised(py, &fault))?;
                let slot = state.slot(kind, topic)?;
                let number = state.out.message(kind, flags, slot, aux, now(), bytes);
                if kind == kind::REQUEST {
                    state.arrivals.asked.insert(number, topic.clone().unbind());
                }
                Ok(number)
            })
        })
    }

    #[pyo3(signature = (call, payload, *, code = 0))]
    fn reply(&self, py: Python<'_>, call: u64, payload: &Bound<'_, PyAny>, code: u16) -> PyResult<()> {
        self.write(py, |state| {
            let reply = |bytes: &[u8]| state.out.reply(call, code, bytes).map_err(|fault| raised(py, &fault));
            with_bytes(payload, reply)
        })
    }

    fn cancel(&self, py: Python<'_>, number: u64) -> PyResult<()> {
        self.checked(py, |state| {
            state.arrivals.asked.remove(&number);
            state.out.cancel(number);
            Ok(())
        })
    }

    fn hello(&self, py: Python<'_>, map_bytes: &[u8]) -> PyResult<()> {
        self.checked(py, |state| {
            state.out.hello(map_bytes);
            Ok(())
        })
    }

    #[pyo3(signature = (sub, pattern, *, group = "", flags = 0, policy = 0))]
    fn subscribe(&self, py: Python<'_>, sub: u32, pattern: &str, group: &str, flags: u8, policy: u8) -> PyResult<u64> {
        self.checked(py, |state| state.out.subscribe(sub, pattern, group, flags, policy))
    }

    fn unsubscribe(&self, py: Python<'_>, sub: u32) -> PyResult<u64> {
        self.checked(py, |state| Ok(state.out.end(kind::UNSUBSCRIBE, sub)))
    }

    fn serve(&self, py: Python<'_>, service: u32, topic: &str) -> PyResult<u64> {
        self.checked(py, |state| state.out.serve(service, topic))
    }

    fn unserve(&self, py: Python<'_>, service: u32) -> PyResult<u64> {
        self.checked(py, |state| Ok(state.out.end(kind::UNSERVE, service)))
    }

    fn hold(&self, py: Python<'_>, sub: u32, full: bool, taken: u64) -> PyResult<()> {
        self.checked(py, |state| {
            if state.open {
                state.out.hold(sub, full, taken);
            }
            Ok(())
        })
    }

    fn ping(&self, py: Python<'_>, token: u64) -> PyResult<()> {
        self.checked(py, |state| {
            state.out.beat(kind::PING, token);
            Ok(())
        })
    }

    fn close(&self, py: Python<'_>, code: u16, text: &str) -> PyResult<()> {
        self.checked(py, |state| {
            state.out.close(code, text);
            Ok(())
        })
    }

    /// Everything that waits to be written.
    fn take<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyMemoryView>>> {
        let data = {
            let mut state = self.state();
            if state.out.out.is_empty() {
                return Ok(None);
            }
            let empty = self.bin.0.borrow_mut().get(0);
            std::mem::replace(&mut state.out.out, empty)
        };
        Chunk::view(py, data, &self.bin).map(Some)
    }

    /// Bytes of output that wait.
    #[getter]
    fn waiting(&self) -> usize {
        self.state().out.out.len()
    }

    fn feed<'py>(
        &self,
        py: Python<'py>,
        data: &Bound<'py, PyAny>,
        size: usize,
    ) -> PyResult<Option<Bound<'py, PyList>>> {
        let mut splitter = std::mem::take(&mut *self.splitter.0.borrow_mut());
        let done = self.write(py, |state| {
            with_buffer(data, Some(size), |bytes| {
                let State { out, arrivals, .. } = state;
                let limit = arrivals.limit;
                let mut each = |data: &[u8], size: usize| arrivals.frame(py, out, data, size);
                let mut go = splitter.feed(bytes, limit, &mut each);
                while matches!(go, Ok(false)) {
                    go = splitter.again(limit, &mut each);
                }
                Ok(go)
            })
        })?;
        *self.splitter.0.borrow_mut() = splitter;
        let events = std::mem::take(&mut self.state().arrivals.events);
        if let Err(fault) = done {
            // Messages that came before it are in their inboxes, so whoever waits for them must still be woken, with the
            // next connection. Whatever the fault is called, here it is the broker that broke the rules.
            self.state().arrivals.events = events.into_iter().filter(Event::outlives).collect();
            return Err(raised(py, &Fault::protocol(fault.text)));
        }
        if events.is_empty() {
            return Ok(None);
        }
        let tuples = events.into_iter().map(|event| event.into_tuple(py)).collect::<PyResult<Vec<_>>>()?;
        PyList::new(py, tuples).map(Some)
    }

    #[pyo3(signature = (sub, *, messages, bytes, policy))]
    fn inbox(&self, sub: u32, messages: usize, bytes: usize, policy: u8) -> Inbox {
        let mut state = self.state();
        let messages = Rc::new(RefCell::new(Messages::new(messages, bytes, policy)));
        state.arrivals.inboxes.insert(sub, messages.clone());
        Inbox(Attached(messages))
    }

    fn forget(&self, sub: u32) {
        let gone = self.state().arrivals.inboxes.remove(&sub);
        drop(gone);
    }
}
