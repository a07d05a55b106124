//! The broker's engine for Python, with the `write` of each connection's transport.

use std::cell::{RefCell, RefMut};

use busway_core::client::codec::{read, Incoming};
use busway_core::engine::retained::{Kept, DRIVEN};
use busway_core::engine::{self as core, Event, Limits};
use busway_core::log::record::Message as Stored;
use busway_core::wire::fields::Fields;
use busway_core::wire::frame::{kind, Body, HEAD};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList, PyString, PyTuple};

use crate::bytes::{with_buffer, Attached, Bin, Chunk};
use crate::client::session::now;
use crate::event;
use crate::grants::Grants;
use crate::log::block::Block;
use crate::log::Log;
use crate::message::{make, Parts, Sender};
use crate::raised;
use crate::rules::Selection;
use crate::topics::TopicLevel;

type Events<'py> = PyResult<Option<Bound<'py, PyList>>>;

fn tuple(py: Python<'_>, event: Event) -> PyResult<Bound<'_, PyTuple>> {
    match event {
        Event::Hello { conn, version, map } => (event::HELLO, conn, version, PyBytes::new(py, &map)).into_pyobject(py),
        Event::Login { conn, map } => (event::LOGIN, conn, PyBytes::new(py, &map)).into_pyobject(py),
        Event::Refused { conn, verb, topic } => (event::REFUSED, conn, verb, topic).into_pyobject(py),
        Event::Subscribe { conn, sub, number, flags, policy, pattern, group, rules, since } => {
            let (rules, since) = (PyBytes::new(py, &rules), PyBytes::new(py, &since));
            (event::SUBSCRIBE, conn, sub, number, flags, policy, pattern, group, rules, since).into_pyobject(py)
        }
        Event::Behind { conn, sub, stream, offset } => (event::BEHIND, conn, sub, stream, offset).into_pyobject(py),
        Event::Later { stream, due, offset } => (event::LATER, stream, due, offset).into_pyobject(py),
        Event::Room(conn) => (event::ROOM, conn).into_pyobject(py),
        Event::Stored(stream) => (event::STORED, stream).into_pyobject(py),
        Event::Channel { conn, kind, id, number, rest } => {
            (event::CHANNEL, conn, kind, id, number, PyBytes::new(py, &rest)).into_pyobject(py)
        }
        Event::Own { ticket, code, text } => (event::OWN, ticket, code, text).into_pyobject(py),
        Event::Serve { conn, service, number, topic, flags } => {
            (event::SERVE, conn, service, number, topic, flags).into_pyobject(py)
        }
        Event::Unsubscribe { conn, sub } => (event::UNSUBSCRIBE, conn, sub).into_pyobject(py),
        Event::Unserve { conn, service, topic } => (event::UNSERVE, conn, service, topic).into_pyobject(py),
        Event::Keep { conn, topic, frame } => {
            let Body { time, number, fields, payload } = body_of(&frame);
            let (fields, payload) = (PyBytes::new(py, fields), PyBytes::new(py, payload));
            let (flags, frame) = (frame[5], PyBytes::new(py, &frame));
            (event::KEEP, conn, number, flags, topic, time, fields, payload, frame).into_pyobject(py)
        }
        Event::Welcome { conn, version, map } => {
            (event::WELCOME, conn, version, PyBytes::new(py, &map)).into_pyobject(py)
        }
        Event::Node { conn, kind, number, body } => {
            (event::NODE, conn, kind, number, PyBytes::new(py, &body)).into_pyobject(py)
        }
        Event::Synced(conn) => (event::SYNCED, conn).into_pyobject(py),
        Event::Pong { conn, token } => (event::PONG, conn, token).into_pyobject(py),
        Event::Conflict { conn, topic } => (event::CONFLICT, conn, topic).into_pyobject(py),
        Event::Provider { conn, service, topic, flags } => {
            (event::PROVIDER, conn, service, topic, flags).into_pyobject(py)
        }
        Event::Ask { conn, number, topic, frame } => {
            (event::ASK, conn, number, topic, PyBytes::new(py, &frame)).into_pyobject(py)
        }
        // From another node: its number is in the place of the limits, which that node applies itself.
        Event::Request { conn, number, topic, frame, remote: true } => {
            let (flags, frame) = (frame[5], PyBytes::new(py, &frame));
            (event::REQUEST, conn, number, flags, topic, 0, 0, frame).into_pyobject(py)
        }
        Event::Request { conn, number, topic, frame, remote: false } => {
            let each = u32::from(u16::from_le_bytes([frame[6], frame[7]])) * 10;
            let limit = u32::from_le_bytes([frame[12], frame[13], frame[14], frame[15]]);
            let (flags, frame) = (frame[5], PyBytes::new(py, &frame));
            (event::REQUEST, conn, number, flags, topic, each, limit, frame).into_pyobject(py)
        }
        Event::Cancel { conn, number } => (event::CANCEL, conn, number).into_pyobject(py),
        Event::Accept { conn, call, code } => (event::ACCEPT, conn, call, code).into_pyobject(py),
        Event::Answer { conn, frame } => {
            let Ok(Incoming::Reply { code, flags, number, fields, payload }) = read(&frame) else {
                return (event::ANSWER, conn).into_pyobject(py);
            };
            let (fields, payload) = (PyBytes::new(py, fields), PyBytes::new(py, payload));
            (event::ANSWER, conn, number & !DRIVEN, flags, code, fields, payload).into_pyobject(py)
        }
        Event::Call { conn, number, time, topic, payload } => {
            let from = Sender { name: PyString::new(py, "").unbind(), session: 0 };
            let (topic, frame, flags, fields) = (PyString::new(py, &topic).unbind(), kind::CALL, 0, None);
            let (topic, from, payload) = (&topic, &from, &payload);
            let parts = Parts { topic, from, time, number, frame, flags, fields, payload, place: None };
            let message = make(py, parts)?;
            (event::CALL, conn, number, message).into_pyobject(py)
        }
        Event::Close { conn, code, text } => (event::CLOSE, conn, code, text).into_pyobject(py),
        Event::Fail { conn, code, text } => (event::FAIL, conn, code, text).into_pyobject(py),
        Event::Pause(conn) => (event::PAUSE, conn).into_pyobject(py),
        Event::Read(conn) => (event::READ, conn).into_pyobject(py),
        Event::Wait(conn) => (event::WAIT, conn).into_pyobject(py),
        Event::Resume(conn) => (event::RESUME, conn).into_pyobject(py),
        Event::Yield(conn) => (event::YIELD, conn).into_pyobject(py),
    }
}

/// The body of a message, which the engine has checked.
fn body_of(frame: &[u8]) -> Body<'_> {
    Body::of(&frame[HEAD..], frame[5]).unwrap_or(Body { time: 0, number: 0, fields: &[], payload: &[] })
}

/// A retained message: client number, session and name of the sender, flags, topic, body.
type KeptParts<'a> = (u32, u64, &'a str, u8, &'a str, &'a [u8]);

fn kept((client, session, name, flags, topic, body): KeptParts<'_>) -> Kept<'_> {
    Kept { client, session, name, flags, topic, body }
}

/// Broker side: all connections, subscriptions and services.
#[pyclass(frozen, module = "busway._core")]
pub struct Engine {
    core: Attached<RefCell<core::Engine>>,
    /// By connection; removed when its transport fails.
    writes: Attached<RefCell<Vec<Option<Py<PyAny>>>>>,
    bin: Bin,
}

impl Engine {
    fn core(&self) -> RefMut<'_, core::Engine> {
        self.core.0.borrow_mut()
    }

    fn keep(&self, conn: u32, write: Py<PyAny>) {
        let mut writes = self.writes.0.borrow_mut();
        if writes.len() <= conn as usize {
            writes.resize_with(conn as usize + 1, || None);
        }
        writes[conn as usize] = Some(write);
    }

    fn write_of(&self, py: Python<'_>, conn: u32) -> Option<Py<PyAny>> {
        self.writes.0.borrow_mut().get(conn as usize)?.as_ref().map(|write| write.clone_ref(py))
    }
}

#[pymethods]
impl Engine {
    #[new]
    #[pyo3(signature = (*, frame, topic, fields, subscriptions, expressions, outbox, topics, senders, pending, patience_ms, stall_ms, links = 0, defaults = None))]
    #[allow(clippy::too_many_arguments)] // named by keyword in Python
    fn new(
        py: Python<'_>,
        frame: usize,
        topic: usize,
        fields: usize,
        subscriptions: usize,
        expressions: usize,
        outbox: usize,
        topics: usize,
        senders: usize,
        pending: usize,
        patience_ms: u64,
        stall_ms: u64,
        links: usize,
        defaults: Option<&[u8]>,
    ) -> PyResult<Self> {
        let (stall, patience) = (stall_ms, patience_ms);
        let limits = Limits {
            frame,
            topic,
            fields,
            subscriptions,
            expressions,
            outbox,
            topics,
            senders,
            pending,
            links,
            patience,
            stall,
        };
        let mut core = core::Engine::new(limits);
        let fields = Fields::read(defaults.unwrap_or_default()).map_err(|fault| raised(py, &fault))?;
        core.defaults = fields.iter().map(|(name, value)| (name.into(), value.into())).collect();
        Ok(Self { core: Attached(RefCell::new(core)), writes: Attached::default(), bin: Bin::default() })
    }

    fn connect(&self, write: Py<PyAny>) -> u32 {
        let conn = self.core().connect();
        self.keep(conn, write);
        conn
    }

    /// Adds an outgoing connection to another node, and queues HELLO.
    fn dial(&self, write: Py<PyAny>, hello: &[u8]) -> u32 {
        let conn = self.core().dial(hello);
        self.keep(conn, write);
        conn
    }

    /// Admits another node after its HELLO; false: there was none.
    fn admit_node(&self, conn: u32, session: u64, name: &str, client: u32, version: u16, welcome: &[u8]) -> bool {
        self.core().admit_node(conn, session, name, client, version, welcome)
    }

    /// Turns a connection to another node into a link.
    fn link(&self, py: Python<'_>, conn: u32) -> PyResult<()> {
        self.core().link(conn).map_err(|fault| raised(py, &fault))
    }

    /// Sets the longest frame that another node accepts for its clients.
    fn limit_link(&self, conn: u32, frame: usize) {
        self.core().limit_link(conn, frame);
    }

    /// Sends a control frame to another node.
    #[pyo3(signature = (conn, r#type, number, body, ordered=false))]
    fn node(&self, conn: u32, r#type: u16, number: u64, body: &[u8], ordered: bool) {
        self.core().node(conn, r#type, number, body, ordered);
    }

    /// Answers `EVENT_ASK` of another node.
    fn willing(&self, conn: u32, number: u64, code: u16) {
        self.core().willing(conn, number, code);
    }

    fn disconnect(&self, conn: u32) {
        self.core().disconnect(conn);
        let gone = self.writes.0.borrow_mut().get_mut(conn as usize).and_then(Option::take);
        drop(gone);
    }

    fn feed<'py>(&self, py: Python<'py>, conn: u32, data: &Bound<'py, PyAny>, size: usize) -> Events<'py> {
        with_buffer(data, Some(size), |bytes| {
            let mut core = self.core();
            core.clock = now();
            core.feed(conn, bytes);
            Ok(())
        })?;
        self.flush(py)
    }

    fn resume<'py>(&self, py: Python<'py>, conn: u32) -> Events<'py> {
        self.core().resume(conn);
        self.flush(py)
    }

    fn flush<'py>(&self, py: Python<'py>) -> Events<'py> {
        loop {
            // Not locked while Python writes, since the transport may call back to pause or resume.
            let next = {
                let mut core = self.core();
                core.pool.refill(&mut self.bin.0.borrow_mut());
                core.next_output()
            };
            let Some((conn, bytes)) = next else { break };
            let Some(write) = self.write_of(py, conn) else { continue };
            if write.call1(py, (Chunk::view(py, bytes, &self.bin)?,)).is_err() {
                // The transport failed; its driver disconnects it.
                self.core().set_writable(conn, false);
            }
        }
        let events = self.core().take_events();
        if events.is_empty() {
            return Ok(None);
        }
        let tuples = events.into_iter().map(|event| tuple(py, event)).collect::<PyResult<Vec<_>>>()?;
        PyList::new(py, tuples).map(Some)
    }

    fn writing<'py>(&self, py: Python<'py>, conn: u32, yes: bool) -> Events<'py> {
        self.core().set_writable(conn, yes);
        if yes {
            self.flush(py)
        } else {
            Ok(None)
        }
    }

    fn tick<'py>(&self, py: Python<'py>, now_ms: u64) -> Events<'py> {
        self.core().tick(now_ms);
        self.flush(py)
    }

    fn blocked(&self) -> bool {
        self.core().has_blocked()
    }

    /// Connections whose publishes wait.
    fn waiting(&self) -> Vec<u32> {
        self.core().waiting()
    }

    fn idle(&self, ticks: u32) -> Vec<u32> {
        self.core().idle(ticks)
    }

    fn beat(&self) {
        self.core().pass_beat();
    }

    fn ping(&self, conn: u32, token: u64) {
        self.core().ping(conn, token);
    }

    /// Admits a client after its HELLO or LOGIN, with the grants of its user; None: it may do everything.
    #[pyo3(signature = (conn, session, name, client, version, welcome, grants = None))]
    #[allow(clippy::too_many_arguments)] // the parts of the frame
    fn accept(
        &self,
        conn: u32,
        session: u64,
        name: &str,
        client: u32,
        version: u16,
        welcome: &[u8],
        grants: Option<&Grants>,
    ) -> Option<u32> {
        self.core().accept(conn, session, name, client, version, welcome, grants.map(|grants| grants.0.clone()))
    }

    /// Asks a client to prove who it is; its answer is `EVENT_LOGIN`.
    fn challenge(&self, conn: u32, map: &[u8]) {
        self.core().challenge(conn, map);
    }

    /// Sets other grants for a connection, which must allow all its subscriptions and services.
    fn regrant(&self, conn: u32, grants: Option<&Grants>) {
        self.core().regrant(conn, grants.map(|grants| grants.0.clone()));
    }

    /// Counts a refusal by the driver. Returns the text of the error.
    fn forbid(&self, conn: u32, verb: u8, requested: &str) -> String {
        self.core().forbid(conn, verb, requested).text
    }

    /// How many refusals there were on a connection since the last call.
    fn take_refusals(&self, conn: u32) -> u64 {
        self.core().take_refusals(conn)
    }

    #[allow(clippy::too_many_arguments)] // the parts of the frame
    fn subscribe(
        &self,
        conn: u32,
        sub: u32,
        number: u64,
        flags: u8,
        policy: u8,
        pattern: &str,
        group: &str,
        rules: &[u8],
        retained: Option<&Bound<'_, PyList>>,
    ) -> PyResult<u16> {
        let Some(retained) = retained else {
            return Ok(self.core().subscribe(conn, sub, number, flags, policy, pattern, group, rules, &[]));
        };
        let retained: Vec<_> = retained.iter().collect();
        let retained =
            retained.iter().map(|one| Ok(kept(one.extract::<KeptParts>()?))).collect::<PyResult<Vec<_>>>()?;
        Ok(self.core().subscribe(conn, sub, number, flags, policy, pattern, group, rules, &retained))
    }

    /// Reports to watching clients that a retained message is gone.
    fn withdraw(&self, message: KeptParts<'_>, remote: bool) {
        self.core().withdraw(&kept(message), remote);
    }

    /// Requests `EVENT_ROOM` for when a connection has room.
    #[pyo3(signature = (conn, sub=None))]
    fn want_room(&self, conn: u32, sub: Option<u32>) {
        self.core().want_room(conn, sub);
    }

    /// Delivers a retained message to subscriptions of a connection.
    fn deliver_retained(&self, conn: u32, subs: Vec<u32>, message: KeptParts<'_>) -> bool {
        self.core().deliver_retained(conn, &subs, &kept(message))
    }

    /// Counts a message that these subscriptions miss for lack of room, and reports it.
    fn miss(&self, conn: u32, subs: Vec<u32>) {
        self.core().miss(conn, &subs);
    }

    /// Sends a retained message to its subscribers. Returns how many connections, and the groups.
    #[pyo3(signature = (message, served=None))]
    fn publish(&self, message: KeptParts<'_>, served: Option<Vec<String>>) -> (u64, Vec<String>) {
        self.core().publish_kept(&kept(message), served.as_deref())
    }

    /// Resumes a connection that `EVENT_KEEP` blocked.
    fn unblock(&self, conn: u32) {
        self.core().settle_held(conn);
    }

    fn serve(&self, conn: u32, service: u32, number: u64, topic: &str, flags: u8) -> u16 {
        self.core().serve(conn, service, number, topic, flags)
    }

    /// Asks a provider of a shared service if it is willing; false: it has no room.
    fn ask(&self, conn: u32, service: u32, call: u64, origin: u32, topic: &str, frame: &[u8]) -> bool {
        self.core().pass(true, (conn, service), call, origin, topic, frame)
    }

    /// Sends a request to a provider of a shared service; false: it has no room.
    fn call(&self, conn: u32, service: u32, call: u64, origin: u32, topic: &str, frame: &[u8]) -> bool {
        self.core().pass(false, (conn, service), call, origin, topic, frame)
    }

    /// Reports to another node that no requester waits for its answer.
    fn call_off(&self, conn: u32, call: u64) {
        self.core().call_off(conn, call | DRIVEN);
    }

    /// Answers the requester of a shared service.
    fn answer(&self, conn: u32, number: u64, flags: u8, code: u16, fields: &[u8], payload: &[u8]) {
        self.core().answer(conn, number, flags, code, fields, payload);
    }

    /// Refuses a SUBSCRIBE or SERVE.
    fn refuse(&self, conn: u32, number: u64, code: u16, text: &str) {
        self.core().refuse(conn, number, code, text);
    }

    fn internal(&self, topic: &str) {
        self.core().internal(topic);
    }

    fn reply(&self, conn: u32, call: u64, code: u16, payload: &[u8]) {
        self.core().reply_internal(conn, call, code, payload);
    }

    fn result(&self, conn: u32, number: u64, code: u16, value: u64, text: &str) {
        self.core().result(conn, number, code, value, text);
    }

    fn close(&self, conn: u32, code: u16, text: &str) {
        self.core().close(conn, code, text);
    }

    fn away(&self) {
        self.core().away();
    }

    fn send_servers(&self, list: &[u8], apart: bool) {
        self.core().send_servers(list, apart);
    }

    fn pending(&self, conn: u32) -> usize {
        self.core().outbox_bytes(conn)
    }

    /// Adds a stream, or changes its topics; `patterns` None: all topics that match no other stream.
    #[pyo3(signature = (stream, name, guid, log, patterns))]
    fn add_stream(&self, stream: u32, name: &str, guid: [u8; 16], log: &Bound<'_, Log>, patterns: Option<Vec<String>>) {
        self.core().add_stream(stream, name, guid, log.get().shared(), patterns);
    }

    /// Sets the safety level of messages of a stream, as the number in STREAM.
    fn set_level(&self, stream: u32, level: u16) {
        self.core().set_level(stream, level);
    }

    fn remove_stream(&self, stream: u32) {
        self.core().remove_stream(stream);
    }

    /// Sets whether `EVENT_STORED` reports a new `safe` of a stream.
    fn follow_stream(&self, stream: u32, yes: bool) {
        self.core().follow_stream(stream, yes);
    }

    /// Reports that the lost end of a stream is restored up to here; `whole`: it is complete.
    fn recovered(&self, stream: u32, end: u64, whole: bool) {
        self.core().recovered(stream, end, whole);
    }

    /// Delivers and confirms messages that have become safe.
    fn commit<'py>(&self, py: Python<'py>, stream: u32) -> Events<'py> {
        {
            let mut core = self.core();
            core.clock = now();
            core.commit(stream);
        }
        self.flush(py)
    }

    /// The number of a remote stream.
    fn remote_stream(&self, py: Python<'_>, guid: [u8; 16], name: &str) -> PyResult<u32> {
        self.core().remote_stream(&[&guid[..], name.as_bytes()].concat()).map_err(|fault| raised(py, &fault))
    }

    /// Reports that the route to a remote stream is lost: its live subscriptions fall behind.
    fn remote_behind(&self, stream: u32) {
        self.core().remote_behind(stream);
    }

    /// Everything below this offset of a stream was delivered to subscribers.
    fn delivered(&self, stream: u32) -> u64 {
        self.core().delivered(stream)
    }

    fn add_cursor(&self, conn: u32, sub: u32, stream: u32) {
        self.core().add_cursor(conn, sub, stream);
    }

    /// True if a subscription, or the consumer of a channel, has room.
    fn has_room(&self, conn: u32, sub: u32) -> bool {
        self.core().has_room(conn, sub)
    }

    /// Delivers the matching records of a block to a subscription; (next offset, held-back record, live now).
    #[pyo3(signature = (conn, sub, stream, block, next, selection, held, end=true))]
    #[allow(clippy::too_many_arguments)] // the receiver, and the block
    fn replay<'py>(
        &self,
        py: Python<'py>,
        conn: u32,
        sub: u32,
        stream: u32,
        block: &[u8],
        next: u64,
        selection: &Bound<'py, Selection>,
        held: Option<Vec<u8>>,
        end: bool,
    ) -> (u64, Option<Bound<'py, PyBytes>>, bool) {
        let mut core = self.core();
        core.clock = now();
        let done = core.replay((conn, sub, stream), block, (next, end), &selection.get().0, held);
        (done.next, done.held.map(|held| PyBytes::new(py, &held)), done.live)
    }

    /// Delivers records (first offset, count) to the consumer of a channel. Returns how many, and the missing ones.
    fn deliver_records(
        &self,
        conn: u32,
        id: u32,
        stream: u32,
        block: &Bound<'_, Block>,
        spans: Vec<(u64, u64)>,
        deliveries: u32,
    ) -> (u64, Vec<(u64, u64)>) {
        let mut core = self.core();
        core.clock = now();
        core.deliver_records((conn, id, stream), &block.get().0, &spans, deliveries)
    }

    /// Stores a message of the broker itself; `EVENT_OWN` reports the result.
    #[allow(clippy::too_many_arguments)] // a whole message
    fn store(
        &self,
        py: Python<'_>,
        ticket: u64,
        topic: &str,
        sender: &str,
        time: i64,
        session: u64,
        fields: &[u8],
        payload: &[u8],
    ) -> PyResult<()> {
        let (number, expires, due, fields) = (1, 0, 0, Some(fields));
        let message = Stored { topic, sender, time, session, number, expires, due, fields, payload };
        let mut core = self.core();
        core.clock = now();
        core.store_own(ticket, &message).map_err(|fault| raised(py, &fault))
    }

    /// Reports to a client that a channel has ended.
    fn send_ended(&self, conn: u32, id: u32, code: u16, text: &str) {
        self.core().send_ended(conn, id, code, text);
    }

    /// Appends delayed messages that are due. Returns false if they could not be stored.
    fn release(&self, stream: u32, block: &[u8]) -> bool {
        let mut core = self.core();
        core.clock = now();
        core.release_due(stream, block)
    }

    /// Reports offsets that a subscription will never get.
    fn send_gap(&self, conn: u32, sub: u32, stream: u32, begin: u64, end: u64) {
        self.core().send_gap(conn, sub, stream, begin, end);
    }

    /// Adds at most `most` topics to a report. Returns false after the last one.
    fn scan_topics(&self, level: &TopicLevel, most: usize) -> bool {
        self.core().scan_topics(&mut level.core(), most)
    }

    /// The messages of a topic, the connections that publish on it, and connection, id and group of its subscriptions.
    #[allow(clippy::type_complexity)] // a tuple for Python
    fn topic_users(&self, topic: &str) -> (u64, Vec<u32>, Vec<(u32, u32, String)>) {
        let users = self.core().topic_users(topic);
        let subscriptions = users.subscriptions.into_iter().map(|(conn, id, group)| (conn, id, group.into()));
        (users.messages, users.publishers, subscriptions.collect())
    }

    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        dict(py, self.core().totals())
    }

    fn connection<'py>(&self, py: Python<'py>, conn: u32) -> PyResult<Bound<'py, PyDict>> {
        dict(py, self.core().figures(conn))
    }
}

fn dict<'py>(py: Python<'py>, figures: Vec<(&'static str, u64)>) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    for (name, value) in figures {
        dict.set_item(name, value)?;
    }
    Ok(dict)
}
