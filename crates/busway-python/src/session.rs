//! The client's side for Python: `Session` encodes and decodes one connection, `Inbox` holds what arrived.

use std::cell::{Cell, RefCell, RefMut};
use std::rc::Rc;
use std::time::{SystemTime, UNIX_EPOCH};

use busway_core::client::{read, Delivery, Incoming, Limits, Outgoing};
use busway_core::frame::{code, kind, policy, Body, Checked, Fault};
use busway_core::inbox::Inbox as Box_;
use busway_core::split::{Flow, Splitter};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBytes, PyList, PyMemoryView, PyString, PyTuple};
use rustc_hash::FxHashMap;

use crate::bytes::{with_buffer, with_bytes, Attached, Bin, Chunk};
use crate::message::{after, make, Message, Parts, Sender};
use crate::{event, raised};

/// What the ids in front of a delivery may add to the longest frame a client may send.
const IDS: usize = 512 << 10;
/// Longest frame before the broker told its limits.
const FIRST: usize = 1 << 20;

/// An awaitable that is done already: what a publish that needs no waiting answers.
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
}

fn now() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_nanos()).unwrap_or(i64::MAX)
}

/// One subscription's messages, and how many inboxes of its session are over their limit.
struct Held {
    messages: RefCell<Box_<Message>>,
    full: Rc<Cell<usize>>,
    /// Whether being full makes the client stop reading.
    holds: bool,
}

impl Held {
    /// Runs a change and keeps the count of full inboxes right.
    fn change<R>(&self, change: impl FnOnce(&mut Box_<Message>) -> R) -> R {
        let mut messages = self.messages.borrow_mut();
        let before = messages.is_full();
        let done = change(&mut messages);
        match (before, messages.is_full()) {
            (false, true) if self.holds => self.full.set(self.full.get() + 1),
            (true, false) if self.holds => self.full.set(self.full.get() - 1),
            _ => {}
        }
        done
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if self.holds && self.messages.borrow_mut().is_full() {
            self.full.set(self.full.get() - 1);
        }
    }
}

/// What has arrived for one subscription and was not taken yet.
#[pyclass(frozen, module = "busway._core")]
pub struct Inbox(Attached<Rc<Held>>);

#[pymethods]
impl Inbox {
    fn take<'py>(&self, py: Python<'py>, most: usize) -> PyResult<Bound<'py, PyList>> {
        let mut taken = Vec::new();
        self.0 .0.change(|messages| {
            taken.reserve(most.min(messages.len()));
            while taken.len() < most {
                let Some((message, missed)) = messages.pop() else { break };
                taken.push(if missed == 0 { message } else { after(py, &message, missed)? });
            }
            PyResult::Ok(())
        })?;
        PyList::new(py, taken)
    }

    fn __len__(&self) -> usize {
        self.0 .0.messages.borrow().len()
    }

    #[getter]
    fn bytes(&self) -> usize {
        self.0 .0.messages.borrow().bytes()
    }

    #[getter]
    fn missed(&self) -> u64 {
        self.0 .0.messages.borrow().missed
    }

    #[getter]
    fn received(&self) -> u64 {
        self.0 .0.messages.borrow().received
    }
}

/// What a decoded chunk has for Python.
enum Event {
    Welcome(u16, Vec<u8>),
    Close(u16, String),
    Pong(u64),
    Away,
    Ready(u32),
    Missed(u32, u64),
    Call(u32, u64, Message),
    Reply(u64, u16, Message),
    Result(u64, u16, u64, String),
}

impl Event {
    fn into_tuple(self, py: Python<'_>) -> PyResult<Bound<'_, PyTuple>> {
        match self {
            Self::Welcome(version, map) => (event::WELCOME, version, PyBytes::new(py, &map)).into_pyobject(py),
            Self::Close(code, text) => (event::CLOSE, code, text).into_pyobject(py),
            Self::Pong(token) => (event::PONG, token).into_pyobject(py),
            Self::Away => (event::AWAY,).into_pyobject(py),
            Self::Ready(sub) => (event::READY, sub).into_pyobject(py),
            Self::Missed(sub, count) => (event::MISSED, sub, count).into_pyobject(py),
            Self::Call(service, call, message) => (event::CALL, service, call, message).into_pyobject(py),
            Self::Reply(number, code, message) => (event::REPLY, number, code, message).into_pyobject(py),
            Self::Result(number, code, value, text) => (event::RESULT, number, code, value, text).into_pyobject(py),
        }
    }
}

struct State {
    out: Outgoing,
    open: bool,
    writable: bool,
    gather: usize,
    on_output: Option<Py<PyAny>>,
    /// The topic used last, by identity, and its slot.
    last: Option<(Py<PyString>, u32)>,
    limit: usize,
    topics: Vec<Option<Py<PyString>>>,
    senders: Vec<Option<Rc<Sender>>>,
    nobody: Rc<Sender>,
    inboxes: FxHashMap<u32, Rc<Held>>,
    /// Topics of the requests that wait for their reply.
    asked: FxHashMap<u64, Py<PyString>>,
    full: Rc<Cell<usize>>,
    events: Vec<Event>,
}

impl State {
    fn slot(&mut self, topic: &Bound<'_, PyString>) -> PyResult<u32> {
        match &self.last {
            Some((last, slot)) if last.as_ptr() == topic.as_ptr() => Ok(*slot),
            _ => {
                let slot = self.out.slot(topic.to_str()?).map_err(|fault| raised(topic.py(), &fault))?;
                self.last = Some((topic.clone().unbind(), slot));
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

    fn message(&self, py: Python<'_>, frame: u8, delivery: &Delivery) -> Checked<Message> {
        let topic = self.topics.get(delivery.topic as usize).and_then(Option::as_ref);
        let from = self.senders.get(delivery.sender as usize).and_then(Option::as_ref);
        let (Some(topic), Some(from)) = (topic, from) else {
            return Err(Fault::protocol("delivery with a slot that was not filled"));
        };
        let Body { time, number, payload, .. } = delivery.body;
        make(py, &Parts { topic, from, time, number, frame, payload })
            .map_err(|_| Fault::protocol("no memory for a message"))
    }

    /// Puts a message into the inboxes of its subscriptions.
    fn deliver(&mut self, py: Python<'_>, delivery: &Delivery) -> Checked<()> {
        let message = self.message(py, kind::DELIVER, delivery)?;
        for id in delivery.ids() {
            // A message may be on its way while its subscription ends.
            let Some(held) = self.inboxes.get(&id) else { continue };
            let events = &mut self.events;
            held.change(|messages| {
                let waiting = !messages.is_empty();
                if messages.push(delivery.body.payload.len(), || message.clone_ref(py)) {
                    if !waiting {
                        events.push(Event::Ready(id));
                    }
                } else {
                    missed(events, id);
                }
            });
        }
        Ok(())
    }

    fn offered(&mut self, py: Python<'_>, delivery: &Delivery) -> Checked<()> {
        let message = self.message(py, kind::OFFER, delivery)?;
        let id = delivery.id();
        let taken = self.inboxes.get(&id).is_some_and(|held| {
            held.change(|messages| {
                if messages.is_empty() {
                    self.events.push(Event::Ready(id));
                }
                messages.has_room() && messages.push(delivery.body.payload.len(), || message)
            })
        });
        self.out.answer_offer(delivery.answer, if taken { code::OK } else { code::REFUSED });
        Ok(())
    }

    fn frame(&mut self, py: Python<'_>, frame: &[u8]) -> Checked<Flow> {
        match read(frame)? {
            Incoming::Deliver(delivery) => self.deliver(py, &delivery)?,
            Incoming::Offer(delivery) => self.offered(py, &delivery)?,
            Incoming::Call(delivery) => {
                let message = self.message(py, kind::CALL, &delivery)?;
                self.events.push(Event::Call(delivery.id(), delivery.answer, message));
            }
            Incoming::Reply { code, number, payload } => {
                let Some(topic) = self.asked.remove(&number) else { return Ok(Flow::Go) };
                let (topic, from) = (&topic, &*self.nobody);
                let parts = Parts { topic, from, time: now(), number, frame: kind::REPLY, payload };
                let message = make(py, &parts).map_err(|_| Fault::protocol("no memory for a message"))?;
                self.events.push(Event::Reply(number, code, message));
            }
            Incoming::Topic { slot, text } => fill(&mut self.topics, slot, PyString::new(py, text).unbind())?,
            Incoming::Sender { slot, session, name } => {
                let name = PyString::new(py, name).unbind();
                fill(&mut self.senders, slot, Rc::new(Sender { name, session }))?;
            }
            Incoming::Missed { sub, count } => {
                if let Some(held) = self.inboxes.get(&sub) {
                    held.change(|messages| messages.miss(count));
                    self.events.push(Event::Missed(sub, count));
                }
            }
            Incoming::Ping(token) => self.out.beat(kind::PONG, token),
            Incoming::Pong(token) => self.events.push(Event::Pong(token)),
            Incoming::Away => self.events.push(Event::Away),
            Incoming::Welcome { version, map } => {
                self.events.push(Event::Welcome(version, map.into()));
                // The limits it tells must hold for the frames behind it.
                return Ok(Flow::Stop);
            }
            Incoming::Close { code, text } => self.events.push(Event::Close(code, text.into())),
            Incoming::Result { code, number, value, text } => {
                self.events.push(Event::Result(number, code, value, text.into()));
            }
        }
        Ok(Flow::Go)
    }
}

/// One event tells of a whole run of dropped messages.
fn missed(events: &mut Vec<Event>, id: u32) {
    match events.last_mut() {
        Some(Event::Missed(sub, count)) if *sub == id => *count += 1,
        _ => events.push(Event::Missed(id, 1)),
    }
}

/// Slots a broker may fill; more than any sane limit it tells.
const SLOTS: u32 = 1 << 20;

fn fill<T>(slots: &mut Vec<Option<T>>, slot: u32, value: T) -> Checked<()> {
    if slot >= SLOTS {
        return Err(Fault::protocol(format!("slot {slot}")));
    }
    if slot as usize >= slots.len() {
        slots.resize_with(slot as usize + 1, || None);
    }
    slots[slot as usize] = Some(value);
    Ok(())
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

    fn checked<R>(&self, py: Python<'_>, write: impl FnOnce(&mut State) -> Checked<R>) -> PyResult<R> {
        self.write(py, |state| Ok(write(state)))?.map_err(|fault| raised(py, &fault))
    }
}

#[pymethods]
impl Session {
    #[new]
    #[pyo3(signature = (session, *, gather = 65536))]
    fn new(py: Python<'_>, session: u64, gather: usize) -> Self {
        let state = State {
            out: Outgoing::new(),
            open: false,
            writable: true,
            gather,
            on_output: None,
            last: None,
            limit: FIRST,
            topics: Vec::new(),
            senders: Vec::new(),
            nobody: Rc::new(Sender { name: PyString::new(py, "").unbind(), session }),
            inboxes: FxHashMap::default(),
            asked: FxHashMap::default(),
            full: Rc::default(),
            events: Vec::new(),
        };
        Self { state: Attached(RefCell::new(state)), splitter: Attached::default(), bin: Bin::default() }
    }

    #[pyo3(signature = (on_output))]
    fn attach(&self, on_output: Option<Py<PyAny>>) {
        let mut state = self.state();
        state.out.reset();
        state.open = false;
        state.writable = true;
        state.limit = FIRST;
        state.last = None;
        state.topics = Vec::new();
        state.senders = Vec::new();
        state.asked.clear();
        state.on_output = on_output;
        *self.splitter.0.borrow_mut() = Splitter::default();
    }

    #[pyo3(signature = (*, frame, topic, fields, topics))]
    fn open(&self, frame: usize, topic: usize, fields: usize, topics: usize) {
        // Version 1 clients write no fields.
        let _ = fields;
        let mut state = self.state();
        state.out.open(Limits { frame, topic, topics });
        state.limit = frame.saturating_add(IDS);
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
        static DONE: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        let taken = self.write(py, |state| {
            if !state.open || !state.writable || state.out.out.len() >= state.gather {
                return Ok(false);
            }
            with_bytes(payload, |bytes| {
                state.out.fits(bytes.len()).map_err(|fault| raised(py, &fault))?;
                let slot = state.slot(topic)?;
                state.out.message(kind::PUBLISH, 0, slot, 0, now(), bytes);
                Ok(true)
            })
        })?;
        if !taken {
            return Ok(None);
        }
        DONE.get_or_try_init(py, || Ok(Py::new(py, Done)?.into_any())).map(|done| Some(done.bind(py)))
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
                    let slot = state.slot(topic)?;
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
                let slot = state.slot(topic)?;
                let number = state.out.message(kind, flags, slot, aux, now(), bytes);
                if kind == kind::REQUEST {
                    state.asked.insert(number, topic.clone().unbind());
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
            state.asked.remove(&number);
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
            let empty = self.bin.0.borrow_mut().get();
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
                let limit = state.limit;
                let mut each = |frame: &[u8]| state.frame(py, frame);
                let mut go = splitter.feed(bytes, limit, &mut each);
                while matches!(go, Ok(false)) {
                    go = splitter.again(limit, &mut each);
                }
                Ok(go)
            })
        })?;
        *self.splitter.0.borrow_mut() = splitter;
        let events = std::mem::take(&mut self.state().events);
        if let Err(fault) = done {
            // Whatever it is called, here it is the broker that broke the rules.
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
        let holds = matches!(policy, policy::BLOCK | policy::DISCONNECT);
        let messages = RefCell::new(Box_::new(messages, bytes, policy));
        let held = Rc::new(Held { messages, full: state.full.clone(), holds });
        state.inboxes.insert(sub, held.clone());
        Inbox(Attached(held))
    }

    fn forget(&self, sub: u32) {
        let gone = self.state().inboxes.remove(&sub);
        drop(gone);
    }

    /// An inbox that makes the client stop reading is over its limit.
    #[getter]
    fn held(&self) -> bool {
        self.state().full.get() > 0
    }
}
