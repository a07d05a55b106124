//! Decoding for a client: converts frames of the broker to messages in inboxes, and a few events for Python.

use std::sync::Arc;

use busway_core::client::codec::{read, Delivery, Incoming, Outgoing, Run, Stored};
use busway_core::log::record::Record;
use busway_core::wire::frame::{code, flag, kind, Body, Checked, Fault};
use busway_core::wire::splitter::Flow;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBytes, PyDict, PyString, PyTuple};
use rustc_hash::FxHashMap;

use crate::client::inbox::Shared;
use crate::client::retained_seen::Seen;
use crate::client::session::now;
use crate::event;
use crate::message::{copy, is, make, unpacked, Message, Parts, Place, Sender, NOTIFY};

/// The events of a decoded chunk.
pub enum Event {
    Welcome(u16, Vec<u8>),
    Challenge(Vec<u8>),
    Close(u16, String),
    Pong(u64),
    Away,
    Servers(Vec<u8>, bool),
    Flow(bool),
    Ready(u32),
    Full(u32),
    Missed(u32, u64),
    Call(u32, u64, Message),
    Ask(u32, u64, Message),
    Doubt(u32),
    Reply(u64, u16, u8, Message),
    Result(u64, u16, u64, String),
    Stored(u64, u32, Py<PyAny>, u64, u64, bool),
    Gap(u32, Py<PyAny>, u64, u64),
    Ended(u32, u16, String),
}

impl Event {
    /// True if it belongs to a subscription, so that it stays valid after the end of the connection.
    pub fn outlives(&self) -> bool {
        matches!(self, Self::Ready(_) | Self::Full(_) | Self::Missed(..))
    }

    pub fn into_tuple(self, py: Python<'_>) -> PyResult<Bound<'_, PyTuple>> {
        match self {
            Self::Challenge(map) => (event::CHALLENGE, PyBytes::new(py, &map)).into_pyobject(py),
            Self::Welcome(version, map) => (event::WELCOME, version, PyBytes::new(py, &map)).into_pyobject(py),
            Self::Close(code, text) => (event::CLOSE, code, text).into_pyobject(py),
            Self::Pong(token) => (event::PONG, token).into_pyobject(py),
            Self::Away => (event::AWAY,).into_pyobject(py),
            Self::Servers(list, apart) => (event::SERVERS, PyBytes::new(py, &list), apart).into_pyobject(py),
            Self::Flow(stop) => (event::FLOW, stop).into_pyobject(py),
            Self::Ready(sub) => (event::READY, sub).into_pyobject(py),
            Self::Full(sub) => (event::FULL, sub).into_pyobject(py),
            Self::Missed(sub, count) => (event::MISSED, sub, count).into_pyobject(py),
            Self::Call(service, call, message) => (event::CALL, service, call, message).into_pyobject(py),
            Self::Doubt(sub) => (event::DOUBT, sub).into_pyobject(py),
            Self::Ask(service, call, message) => (event::ASK, service, call, message).into_pyobject(py),
            Self::Reply(number, code, flags, message) => (event::REPLY, number, code, flags, message).into_pyobject(py),
            Self::Stored(number, count, stream, offset, sequence, again) => {
                (event::STORED, number, count, stream, offset, sequence, again).into_pyobject(py)
            }
            Self::Ended(id, code, text) => (event::ENDED, id, code, text).into_pyobject(py),
            Self::Gap(sub, stream, from, to) => (event::GAP, sub, stream, from, to).into_pyobject(py),
            Self::Result(number, code, value, text) => (event::RESULT, number, code, value, text).into_pyobject(py),
        }
    }
}

/// The longest frame before the broker's limits are known.
const FIRST: usize = 1 << 20;

/// A stream, and the offset after its last message.
type Reached = (Arc<Py<PyAny>>, u64);

/// The stream of a stored message, and the channel that delivered it.
type Of = (Arc<Py<PyAny>>, Option<Arc<Py<PyAny>>>);

/// The state of this connection, and events for Python.
pub struct Arrivals {
    /// The longest accepted frame.
    pub limit: usize,
    topics: Vec<Option<Py<PyString>>>,
    senders: Vec<Option<Sender>>,
    nobody: Sender,
    pub inboxes: FxHashMap<u32, Shared>,
    /// The retained messages that each subscription knows.
    seen: FxHashMap<u32, Seen>,
    /// SUBSCRIBE frames that wait for their RESULT: the subscription, and its pattern if a notice must follow the
    /// retained messages.
    entering: FxHashMap<u64, (u32, Option<Py<PyString>>)>,
    /// Streams by their number on this connection: (broker, name).
    streams: FxHashMap<u32, Arc<Py<PyAny>>>,
    /// Channels by their ids, which get the acknowledgements of their messages.
    pub channels: FxHashMap<u32, Arc<Py<PyAny>>>,
    /// The position of each subscription in each stream.
    pub reached: FxHashMap<u32, Vec<Reached>>,
    /// Topic and sender of the last stored message, which mostly are those of the next one.
    topic: Option<(String, Py<PyString>)>,
    sender: Option<(String, Sender)>,
    /// Topics of requests that wait for a reply.
    pub asked: FxHashMap<u64, Py<PyString>>,
    pub events: Vec<Event>,
}

impl Arrivals {
    pub fn new(py: Python<'_>, session: u64) -> Self {
        Self {
            limit: FIRST,
            topics: Vec::new(),
            senders: Vec::new(),
            nobody: Sender { name: PyString::new(py, "").unbind(), session },
            inboxes: FxHashMap::default(),
            streams: FxHashMap::default(),
            channels: FxHashMap::default(),
            reached: FxHashMap::default(),
            topic: None,
            sender: None,
            seen: FxHashMap::default(),
            entering: FxHashMap::default(),
            asked: FxHashMap::default(),
            events: Vec::new(),
        }
    }

    /// Resets the state of the last connection. Inboxes stay.
    pub fn reset(&mut self) {
        self.limit = FIRST;
        self.topics = Vec::new();
        self.senders = Vec::new();
        self.streams = FxHashMap::default();
        self.asked.clear();
        self.entering.clear();
    }

    /// Records a SUBSCRIBE: the broker delivers retained messages before its RESULT.
    pub fn entering(&mut self, number: u64, sub: u32, watch: bool, notify: Option<Py<PyString>>) {
        self.seen.entry(sub).or_insert_with(|| Seen::new(watch)).begin();
        self.entering.insert(number, (sub, notify));
    }

    /// Handles a RESULT: if it is of a SUBSCRIBE, all retained messages were delivered.
    fn entered(&mut self, py: Python<'_>, number: u64, code: u16) -> PyResult<()> {
        let Some((sub, notify)) = self.entering.remove(&number).filter(|_| code == code::OK) else { return Ok(()) };
        let Some(inbox) = self.inboxes.get(&sub) else { return Ok(()) };
        if self.seen.get(&sub).is_some_and(Seen::doubts) {
            self.events.push(Event::Doubt(sub));
        }
        let mut news = Vec::new();
        if let Some(topic) = notify {
            let (topic, from, time, frame) = (&topic, &self.nobody, now(), NOTIFY);
            let (number, flags, fields, payload) = (0, 0, None, &[][..]);
            news.push(make(py, Parts { topic, from, time, number, frame, flags, fields, payload, place: None })?);
        }
        let mut messages = inbox.borrow_mut();
        if messages.is_empty() && !news.is_empty() {
            self.events.push(Event::Ready(sub));
        }
        for one in news {
            messages.push(0, || one);
        }
        Ok(())
    }

    /// Withdraws known retained messages that were not delivered again. Returns true if there were any.
    pub fn withdraw_missing(&mut self, py: Python<'_>, sub: u32) -> PyResult<bool> {
        let missing = self.seen.get_mut(&sub).map(|seen| seen.end(py)).unwrap_or_default();
        let Some(inbox) = self.inboxes.get(&sub) else { return Ok(false) };
        let mut messages = inbox.borrow_mut();
        let some = !missing.gone.is_empty() || !missing.instead.is_empty();
        for one in &missing.gone {
            let gone = copy(py, one, 0, flag::WITHDRAWN)?;
            messages.push(0, || gone);
        }
        for one in missing.instead {
            messages.push(0, || one);
        }
        Ok(some)
    }

    pub fn forget(&mut self, sub: u32) -> (Option<Shared>, Option<Seen>) {
        self.reached.remove(&sub);
        (self.inboxes.remove(&sub), self.seen.remove(&sub))
    }

    fn slots(&self, delivery: &Delivery) -> Checked<(&Py<PyString>, &Sender)> {
        let topic = self.topics.get(delivery.topic as usize).and_then(Option::as_ref);
        let from = self.senders.get(delivery.sender as usize).and_then(Option::as_ref);
        topic.zip(from).ok_or_else(|| Fault::protocol("delivery with a slot that was not filled"))
    }

    fn message(&self, py: Python<'_>, frame: u8, delivery: &Delivery) -> Checked<Message> {
        let (topic, from) = self.slots(delivery)?;
        let Body { time, number, payload, fields } = delivery.body;
        let fields = (!fields.is_empty()).then(|| PyBytes::new(py, fields).into_any().unbind());
        let flags = delivery.flags;
        make(py, Parts { topic, from, time, number, frame, flags, fields, payload, place: None })
            .map_err(|_| Fault::protocol("no memory for a message"))
    }

    /// Adds plain deliveries with the same head after the first one to the same inbox, without further lookups. Returns
    /// the processed bytes.
    fn follow(&mut self, py: Python<'_>, first: &Delivery, head: u128, rest: &[u8]) -> Checked<usize> {
        let id = first.id();
        let Some(inbox) = self.inboxes.get(&id) else { return Ok(0) };
        let (topic, from) = self.slots(first)?;
        let mut messages = inbox.borrow_mut();
        let (waiting, full, before) = (!messages.is_empty(), messages.is_full(), messages.missed);
        let mut at = 0;
        let (frame, flags) = (kind::DELIVER, first.flags);
        while let Some(Run { size, time, number, payload }) = Run::next(head, &rest[at..], self.limit) {
            let message =
                make(py, Parts { topic, from, time, number, frame, flags, fields: None, payload, place: None })
                    .map_err(|_| Fault::protocol("no memory for a message"))?;
            messages.push(payload.len(), || message);
            at += size;
        }
        if !waiting && !messages.is_empty() {
            self.events.push(Event::Ready(id));
        }
        if messages.missed != before {
            missed(&mut self.events, id, messages.missed - before);
        }
        if messages.is_full() && !full {
            self.events.push(Event::Full(id));
        }
        Ok(at)
    }

    /// Adds a message to the inboxes of its subscriptions.
    fn deliver(&mut self, py: Python<'_>, delivery: &Delivery) -> Checked<()> {
        let message = self.message(py, kind::DELIVER, delivery)?;
        for id in delivery.ids() {
            // A message may be in flight while its subscription ends.
            let Some(inbox) = self.inboxes.get(&id) else { continue };
            let kept = delivery.flags & (flag::POST | flag::PIN) != 0;
            if kept && self.seen.get_mut(&id).is_some_and(|seen| seen.knows(py, delivery, &message)) {
                continue;
            }
            push(&mut self.events, id, inbox, delivery.body.payload.len(), || message.clone_ref(py));
        }
        Ok(())
    }

    fn stream(&self, stream: u32) -> Checked<Arc<Py<PyAny>>> {
        self.streams.get(&stream).cloned().ok_or_else(|| Fault::protocol("a stream that was not named"))
    }

    /// Converts a stored message for Python, with its stream and the channel that delivered it.
    fn stored(&mut self, py: Python<'_>, of: &Of, flags: u8, deliveries: u32, record: &Record) -> Checked<Message> {
        if self.topic.as_ref().is_none_or(|(text, _)| text != record.topic) {
            self.topic = Some((record.topic.into(), PyString::new(py, record.topic).unbind()));
        }
        let session = record.session();
        if self.sender.as_ref().is_none_or(|(text, from)| text != record.sender || from.session != session) {
            let name = PyString::new(py, record.sender).unbind();
            self.sender = Some((record.sender.into(), Sender { name, session }));
        }
        let at = (record.offset(), record.sequence(), record.stored(), deliveries);
        let place = Some(Place::new(py, &of.0, of.1.as_deref(), at));
        let (Some((_, topic)), Some((_, from))) = (&self.topic, &self.sender) else { unreachable!("set above") };
        let fields = record.fields.map(|fields| PyBytes::new(py, fields).into_any().unbind());
        let (time, number, payload) = (record.time(), record.number(), record.payload);
        make(py, Parts { topic, from, time, number, frame: kind::RECORD, flags, fields, payload, place })
            .map_err(|_| Fault::protocol("no memory for a message"))
    }

    fn of(&self, stored: &Stored) -> Checked<Of> {
        let owner = if stored.flags & flag::CHANNEL == 0 { None } else { self.channels.get(&stored.id()) };
        Ok((self.stream(stored.stream)?, owner.cloned()))
    }

    /// Adds stored messages with the same head after the first one to the same inbox, without further lookups. Returns
    /// the processed bytes.
    fn follow_stored(&mut self, py: Python<'_>, first: &Stored, of: &Of, head: u128, rest: &[u8]) -> Checked<usize> {
        let id = first.id();
        let Some(inbox) = self.inboxes.get(&id).cloned() else { return Ok(0) };
        let mut messages = inbox.borrow_mut();
        let (waiting, full, before) = (!messages.is_empty(), messages.is_full(), messages.missed);
        let (mut at, mut last) = (0, None);
        while let Some((size, record)) = Stored::next(head, &rest[at..], self.limit) {
            let message = self.stored(py, of, first.flags, first.deliveries, &record)?;
            messages.push(record.payload.len(), || message);
            last = Some(record.offset());
            at += size;
        }
        if let Some(offset) = last {
            self.reach(py, &of.0, [id].into_iter(), offset + 1);
        }
        if !waiting && !messages.is_empty() {
            self.events.push(Event::Ready(id));
        }
        if messages.missed != before {
            missed(&mut self.events, id, messages.missed - before);
        }
        if messages.is_full() && !full {
            self.events.push(Event::Full(id));
        }
        Ok(at)
    }

    fn reach(&mut self, py: Python<'_>, stream: &Arc<Py<PyAny>>, ids: impl Iterator<Item = u32>, next: u64) {
        for id in ids {
            let Some(all) = self.reached.get_mut(&id) else { continue };
            if let Some((_, reached)) = all.iter_mut().find(|(other, _)| Arc::ptr_eq(other, stream)) {
                *reached = next;
                continue;
            }
            // Each connection names its streams again.
            let same = |other: &Arc<Py<PyAny>>| other.bind(py).eq(stream.bind(py)).unwrap_or(false);
            match all.iter_mut().find(|(other, _)| same(other)) {
                Some(one) => *one = (stream.clone(), next),
                None => all.push((stream.clone(), next)),
            }
        }
    }

    /// Adds a message to the inboxes of these subscriptions.
    fn put(&mut self, py: Python<'_>, ids: impl Iterator<Item = u32>, size: usize, message: &Message) {
        for id in ids {
            // A message may be in flight while its subscription ends.
            let Some(inbox) = self.inboxes.get(&id) else { continue };
            push(&mut self.events, id, inbox, size, || message.clone_ref(py));
        }
    }

    /// Handles a reply. With several replies the broker adds a field with the provider.
    fn replied(
        &self,
        py: Python<'_>,
        topic: &Py<PyString>,
        number: u64,
        flags: u8,
        fields: &[u8],
        payload: &[u8],
    ) -> PyResult<Message> {
        let mut named = None;
        let mut made = None;
        if !fields.is_empty() {
            let dict = unpacked(&PyBytes::new(py, fields).into_any())?.cast_into::<PyDict>()?;
            if let Some(name) = dict.get_item(".id")? {
                dict.del_item(".id")?;
                named = Some(Sender { name: name.cast_into::<PyString>()?.unbind(), session: self.nobody.session });
            }
            made = Some(dict.into_any().unbind());
        }
        let (time, frame, from) = (now(), kind::REPLY, named.as_ref().unwrap_or(&self.nobody));
        make(py, Parts { topic, from, time, number, frame, flags, fields: made, payload, place: None })
    }

    fn offered(&mut self, py: Python<'_>, out: &mut Outgoing, delivery: &Delivery) -> Checked<()> {
        let message = self.message(py, kind::OFFER, delivery)?;
        let id = delivery.id();
        let answer = self.inboxes.get(&id).map_or(code::REFUSED, |inbox| {
            let mut messages = inbox.borrow_mut();
            let (waiting, full) = (!messages.is_empty(), messages.is_full());
            if !(messages.has_room() && messages.push(delivery.body.payload.len(), || message)) {
                return code::TOO_MANY_PENDING;
            }
            if !waiting {
                self.events.push(Event::Ready(id));
            }
            if messages.is_full() && !full {
                self.events.push(Event::Full(id));
            }
            code::OK
        });
        out.answer_offer(delivery.answer, answer);
        Ok(())
    }

    /// Processes the frame at the start of `data`, and similar frames after it; `out` gets the answers. Returns the
    /// processed bytes.
    pub fn frame(&mut self, py: Python<'_>, out: &mut Outgoing, data: &[u8], size: usize) -> Checked<(Flow, usize)> {
        let (frame, rest) = data.split_at(size);
        match read(frame)? {
            Incoming::Deliver(delivery) => {
                self.deliver(py, &delivery)?;
                let more = Run::head(frame).map(|head| self.follow(py, &delivery, head, rest)).transpose()?;
                return Ok((Flow::Go, size + more.unwrap_or(0)));
            }
            Incoming::Offer(delivery) => self.offered(py, out, &delivery)?,
            Incoming::Call(delivery) => {
                let message = self.message(py, kind::CALL, &delivery)?;
                self.events.push(Event::Call(delivery.id(), delivery.answer, message));
            }
            Incoming::Ask(delivery) => {
                let message = self.message(py, kind::ASK, &delivery)?;
                self.events.push(Event::Ask(delivery.id(), delivery.answer, message));
            }
            Incoming::Reply { code, flags, number, fields, payload } => {
                let topic = if flags & flag::PARTIAL == 0 {
                    self.asked.remove(&number)
                } else {
                    self.asked.get(&number).map(|topic| topic.clone_ref(py))
                };
                let Some(topic) = topic else { return Ok((Flow::Go, size)) };
                let message = self.replied(py, &topic, number, flags, fields, payload);
                let message = message.map_err(|_| Fault::protocol("a reply with fields that are none"))?;
                self.events.push(Event::Reply(number, code, flags, message));
            }
            Incoming::Topic { slot, text } => fill(&mut self.topics, slot, PyString::new(py, text).unbind())?,
            Incoming::Sender { slot, session, name } => {
                let name = PyString::new(py, name).unbind();
                fill(&mut self.senders, slot, Sender { name, session })?;
            }
            Incoming::Record(stored) => {
                let of = self.of(&stored)?;
                let message = self.stored(py, &of, stored.flags, stored.deliveries, &stored.record)?;
                self.reach(py, &of.0, stored.ids(), stored.record.offset() + 1);
                self.put(py, stored.ids(), stored.record.payload.len(), &message);
                let head = Stored::head(frame);
                let more = head.map(|head| self.follow_stored(py, &stored, &of, head, rest)).transpose()?;
                return Ok((Flow::Go, size + more.unwrap_or(0)));
            }
            Incoming::Stream { level, stream, guid, name } => {
                static PLACE: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
                let guid = format!("{:032x}", u128::from_be_bytes(guid.try_into().unwrap_or_default()));
                let place =
                    PLACE.import(py, "busway.positions", "Origin").and_then(|kind| kind.call1((guid, name, level)));
                let named = place.map_err(|_| Fault::protocol("no memory for a name"))?;
                if self.streams.len() >= SLOTS as usize {
                    return Err(Fault::protocol(format!("more than {SLOTS} streams")));
                }
                // Remote streams have much higher numbers, so this is no list.
                self.streams.insert(stream, Arc::new(named.unbind()));
            }
            Incoming::Stored { stream, number, count, offset, sequence, again } => {
                let stream = self.stream(stream)?.clone_ref(py);
                self.events.push(Event::Stored(number, count, stream, offset, sequence, again));
            }
            Incoming::Gap { sub, stream, from, to } => {
                let stream = self.stream(stream)?.clone_ref(py);
                self.events.push(Event::Gap(sub, stream, from, to));
            }
            Incoming::Ended { id, code, text } => self.events.push(Event::Ended(id, code, text.into())),
            Incoming::Missed { sub, count } => {
                if let Some(inbox) = self.inboxes.get(&sub) {
                    inbox.borrow_mut().miss(count);
                    self.events.push(Event::Missed(sub, count));
                }
            }
            Incoming::Withdraw { sub, session, number } => {
                if let Some(inbox) = self.inboxes.get(&sub) {
                    let mut messages = inbox.borrow_mut();
                    let full = messages.is_full();
                    messages.withdraw(|message| is(message, session, number));
                    if messages.is_full() != full {
                        self.events.push(Event::Full(sub));
                    }
                }
            }
            Incoming::Ping(token) => out.beat(kind::PONG, token),
            Incoming::Pong(token) => self.events.push(Event::Pong(token)),
            Incoming::Away => self.events.push(Event::Away),
            Incoming::Servers { apart, list } => self.events.push(Event::Servers(list.into(), apart)),
            Incoming::Flow { stop } => self.events.push(Event::Flow(stop)),
            Incoming::Challenge(map) => self.events.push(Event::Challenge(map.into())),
            Incoming::Welcome { version, map } => {
                self.events.push(Event::Welcome(version, map.into()));
                // The limits in it apply to the frames after it.
                return Ok((Flow::Stop, size));
            }
            Incoming::Close { code, text } => self.events.push(Event::Close(code, text.into())),
            Incoming::Result { code, number, value, text } => {
                self.entered(py, number, code).map_err(|_| Fault::protocol("no memory for a message"))?;
                self.events.push(Event::Result(number, code, value, text.into()));
            }
        }
        Ok((Flow::Go, size))
    }
}

/// Adds a message to an inbox, and reports the effects. Inlined, since every single message passes here.
#[inline]
fn push(events: &mut Vec<Event>, id: u32, inbox: &Shared, size: usize, message: impl FnOnce() -> Message) {
    let mut messages = inbox.borrow_mut();
    let (waiting, full, before) = (!messages.is_empty(), messages.is_full(), messages.missed);
    let taken = messages.push(size, message);
    if messages.missed != before {
        missed(events, id, messages.missed - before); // this message, or older ones that it replaced
    }
    if taken && !waiting {
        events.push(Event::Ready(id));
    }
    if messages.is_full() && !full {
        events.push(Event::Full(id));
    }
}

/// Reports a run of dropped messages as one event.
fn missed(events: &mut Vec<Event>, id: u32, more: u64) {
    match events.last_mut() {
        Some(Event::Missed(sub, count)) if *sub == id => *count += more,
        _ => events.push(Event::Missed(id, more)),
    }
}

/// Slots that a broker may fill; more than any reasonable limit.
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
