//! The client's session for Python: encodes for one connection after the other, and decodes with `incoming`.

use std::cell::{RefCell, RefMut};
use std::rc::Rc;
use std::sync::Arc;

use busway_core::client::codec::{Limits, More, Outgoing};
use busway_core::client::inbox::Inbox as Messages;
use busway_core::matching::topic;
use busway_core::wire::frame::{code, flag, kind, Checked, Fault};
use busway_core::wire::splitter::Splitter;
use pyo3::exceptions::{PyStopIteration, PyTypeError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyList, PyMemoryView, PyString};

use crate::bytes::{with_buffer, with_bytes, Attached, Bin, Chunk};
use crate::client::inbox::Inbox;
use crate::client::incoming::{Arrivals, Event};
use crate::raised;

/// The maximum size of the ids in a delivery, beyond the longest frame of a client.
const IDS: usize = 512 << 10;

/// No fields or rules.
const NOTHING: &[u8] = &[];

/// A completed coroutine, the result of a publish that need not wait. `asyncio.create_task()` requires `send`, `throw`
/// and `close`; `await` uses none of them.
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

/// The instance that all such publishes return.
pub fn done(py: Python<'_>) -> PyResult<&Bound<'_, PyAny>> {
    static DONE: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    DONE.get_or_try_init(py, || Ok(Py::new(py, Done)?.into_any())).map(|done| done.bind(py))
}

pub use busway_core::clock::now;

struct State {
    out: Outgoing,
    open: bool,
    writable: bool,
    gather: usize,
    on_output: Option<Py<PyAny>>,
    /// The last topic, by identity, and its slot.
    last: Option<(Py<PyString>, u32)>,
    /// Fields of messages without fields of their own.
    defaults: Vec<u8>,
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
                // Not for a reserved topic, since a cached topic is not checked again.
                if !reserved {
                    self.last = Some((topic.clone().unbind(), slot));
                }
                Ok(slot)
            }
        }
    }

    /// True if a publish may be encoded now.
    fn ready(&self) -> bool {
        self.open && self.writable && self.out.out.len() < self.gather
    }

    /// Encodes a PUBLISH with its fields, or the default ones.
    #[inline]
    #[allow(clippy::too_many_arguments)] // the parts of a message
    fn publish(
        &mut self,
        topic: &Bound<'_, PyString>,
        time: i64,
        flags: u8,
        scope: u16,
        times: (i64, i64),
        fields: &[u8],
        payload: &[u8],
    ) -> PyResult<u64> {
        let State { out, defaults, .. } = self;
        let size = if fields.is_empty() { defaults.len() } else { fields.len() };
        let more = 16 * usize::from(times != (0, 0));
        out.fits(payload.len() + more, size).map_err(|fault| raised(topic.py(), &fault))?;
        let slot = self.slot(kind::PUBLISH, topic)?;
        let State { out, defaults, .. } = self;
        let fields = if fields.is_empty() { defaults } else { fields };
        let more = More { flags, each: scope, time, times, fields, ..More::default() };
        Ok(out.message(kind::PUBLISH, slot, more, payload))
    }

    fn closed(&self) -> Checked<()> {
        if self.open {
            Ok(())
        } else {
            Err(Fault::new(code::GOING_AWAY, "there is no connection now"))
        }
    }
}

/// Client side of a connection: encodes outgoing frames and decodes incoming ones.
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

    /// Runs `write`, and notifies the driver if output begins to wait.
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

    /// Encodes a PUBLISH, if possible now.
    #[inline]
    pub fn try_publish<'py>(
        &self,
        py: Python<'py>,
        topic: &Bound<'py, PyString>,
        payload: &Bound<'py, PyAny>,
        fields: &[u8],
        scope: u16,
    ) -> PyResult<bool> {
        self.write(py, |state| {
            if !state.ready() {
                return Ok(false);
            }
            with_bytes(payload, |bytes| state.publish(topic, now(), 0, scope, (0, 0), fields, bytes))?;
            Ok(true)
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
            defaults: Vec::new(),
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
        let mut state = self.state();
        state.out.open(Limits { frame, topic, fields, topics });
        state.arrivals.limit = frame.saturating_add(IDS);
        state.open = true;
    }

    fn writable(&self, yes: bool) {
        self.state().writable = yes;
    }

    /// Fields of messages that are published without fields.
    fn defaults(&self, fields: &[u8]) {
        self.state().defaults = fields.to_vec();
    }

    #[pyo3(signature = (topic, payload, fields = NOTHING, scope = 0))]
    fn publish<'py>(
        &self,
        py: Python<'py>,
        topic: &Bound<'py, PyString>,
        payload: &Bound<'py, PyAny>,
        fields: &[u8],
        scope: u16,
    ) -> PyResult<Option<&'py Bound<'py, PyAny>>> {
        if self.try_publish(py, topic, payload, fields, scope)? {
            done(py).map(Some)
        } else {
            Ok(None)
        }
    }

    /// Returns how many were accepted, and the number of the first one.
    #[pyo3(signature = (topic, payloads, start, fields = NOTHING, flags = 0, times = (0, 0), scope = 0))]
    #[allow(clippy::too_many_arguments)] // the common parts of the messages
    fn publish_many<'py>(
        &self,
        py: Python<'py>,
        topic: &Bound<'py, PyString>,
        payloads: &Bound<'py, PyAny>,
        start: usize,
        fields: &[u8],
        flags: u8,
        times: (i64, i64),
        scope: u16,
    ) -> PyResult<(usize, u64)> {
        let list = payloads.cast::<PyList>().ok();
        let size = payloads.len()?;
        let time = now();
        self.write(py, |state| {
            let (mut at, mut first) = (start, 0);
            while at < size && state.ready() {
                let payload = match list {
                    Some(list) => list.get_item(at)?,
                    None => payloads.get_item(at)?,
                };
                match with_bytes(&payload, |bytes| state.publish(topic, time, flags, scope, times, fields, bytes)) {
                    Ok(number) => {
                        first = if at == start { number } else { first };
                        at += 1;
                    }
                    // The accepted messages before it count; the next call reports the error.
                    Err(_) if at > start => break,
                    Err(error) => return Err(error),
                }
            }
            Ok((at, first))
        })
    }

    #[pyo3(signature = (kind, topic, payload, *, flags = 0, aux = 0, each = 0, fields = NOTHING, number = 0, time = 0, times = (0, 0)))]
    #[allow(clippy::too_many_arguments)] // named by keyword in Python
    fn send<'py>(
        &self,
        py: Python<'py>,
        kind: u8,
        topic: &Bound<'py, PyString>,
        payload: &Bound<'py, PyAny>,
        flags: u8,
        aux: u32,
        each: u16,
        fields: &[u8],
        number: u64,
        time: i64,
        times: (i64, i64),
    ) -> PyResult<u64> {
        if !(kind::PUBLISH..=kind::REQUEST).contains(&kind) {
            return Err(PyTypeError::new_err("kind must be PUBLISH, PUSH or REQUEST"));
        }
        self.write(py, |state| {
            state.closed().map_err(|fault| raised(py, &fault))?;
            with_bytes(payload, |bytes| {
                state
                    .out
                    .fits(bytes.len() + 16 * usize::from(times != (0, 0)), fields.len())
                    .map_err(|fault| raised(py, &fault))?;
                let slot = state.slot(kind, topic)?;
                let time = if time == 0 { now() } else { time };
                let number =
                    state.out.message(kind, slot, More { flags, aux, each, time, fields, number, times }, bytes);
                if kind == kind::REQUEST {
                    state.arrivals.asked.insert(number, topic.clone().unbind());
                }
                Ok(number)
            })
        })
    }

    #[pyo3(signature = (call, payload, *, code = 0, flags = 0, fields = NOTHING))]
    fn reply(
        &self,
        py: Python<'_>,
        call: u64,
        payload: &Bound<'_, PyAny>,
        code: u16,
        flags: u8,
        fields: &[u8],
    ) -> PyResult<()> {
        self.write(py, |state| {
            let out = &mut state.out;
            with_bytes(payload, |bytes| out.reply(call, code, flags, fields, bytes).map_err(|fault| raised(py, &fault)))
        })
    }

    /// Answers an ASK.
    fn accept(&self, py: Python<'_>, call: u64, code: u16) -> PyResult<()> {
        self.checked(py, |state| {
            state.out.answer_offer(call, code);
            Ok(())
        })
    }

    /// Skips all numbers up to this one.
    fn skip(&self, number: u64) {
        self.state().out.skip(number);
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

    fn login(&self, py: Python<'_>, map_bytes: &[u8]) -> PyResult<()> {
        self.checked(py, |state| {
            state.out.login(map_bytes);
            Ok(())
        })
    }

    #[pyo3(signature = (sub, pattern, *, group = "", flags = 0, policy = 0, rules = NOTHING, notify = false, since = NOTHING))]
    #[allow(clippy::too_many_arguments)] // named by keyword in Python
    fn subscribe(
        &self,
        py: Python<'_>,
        sub: u32,
        pattern: &str,
        group: &str,
        flags: u8,
        policy: u8,
        rules: &[u8],
        notify: bool,
        since: &[u8],
    ) -> PyResult<u64> {
        self.checked(py, |state| {
            let number = state.out.subscribe(sub, pattern, group, flags, policy, rules, since)?;
            let notify = notify.then(|| PyString::new(py, pattern).unbind());
            state.arrivals.entering(number, sub, flags & flag::WATCH != 0, notify);
            if flags & flag::SINCE != 0 {
                state.arrivals.reached.entry(sub).or_default();
            }
            Ok(number)
        })
    }

    fn unsubscribe(&self, py: Python<'_>, sub: u32) -> PyResult<u64> {
        self.checked(py, |state| Ok(state.out.end(kind::UNSUBSCRIBE, sub)))
    }

    #[pyo3(signature = (service, topic, flags = 0))]
    fn serve(&self, py: Python<'_>, service: u32, topic: &str, flags: u8) -> PyResult<u64> {
        self.checked(py, |state| state.out.serve(service, topic, flags))
    }

    fn unserve(&self, py: Python<'_>, service: u32) -> PyResult<u64> {
        self.checked(py, |state| Ok(state.out.end(kind::UNSERVE, service)))
    }

    /// The position of a subscription: ((broker, stream), next offset).
    fn reached(&self, py: Python<'_>, sub: u32) -> Vec<(Py<PyAny>, u64)> {
        let state = self.state();
        let all = state.arrivals.reached.get(&sub);
        all.map_or_else(Vec::new, |all| all.iter().map(|(stream, next)| (stream.clone_ref(py), *next)).collect())
    }

    /// Sends a frame about a channel: CHANNEL, UNCHANNEL, TAKE, ACK or NACK.
    fn channel(&self, py: Python<'_>, kind: u8, id: u32, rest: &[u8]) -> PyResult<u64> {
        if !(kind::CHANNEL..=kind::NACK).contains(&kind) {
            return Err(PyTypeError::new_err("kind must be CHANNEL, UNCHANNEL, TAKE, ACK or NACK"));
        }
        self.checked(py, |state| {
            state.closed()?;
            Ok(state.out.channel(kind, id, rest))
        })
    }

    /// Sets the owner of a channel, which gets the acknowledgements of its messages; None: none.
    #[pyo3(signature = (id, owner))]
    fn own(&self, id: u32, owner: Option<Py<PyAny>>) {
        let gone = match owner {
            Some(owner) => self.state().arrivals.channels.insert(id, Arc::new(owner)),
            None => self.state().arrivals.channels.remove(&id),
        };
        drop(gone);
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

    /// Withdraws retained messages that were not delivered again. Returns true if there were any.
    fn withdraw_missing(&self, py: Python<'_>, sub: u32) -> PyResult<bool> {
        self.state().arrivals.withdraw_missing(py, sub)
    }

    /// Takes all output that waits.
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
            // Earlier messages are in their inboxes, so the next connection must still wake their consumers. On this
            // side every fault is a violation by the broker.
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
        let gone = self.state().arrivals.forget(sub);
        drop(gone);
    }
}
