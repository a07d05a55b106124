//! A minimal driver of a broker, for fuzzing: three admitted clients and one that is not. A client whose HELLO is that
//! of a node becomes a link.
//!
//! Input is a script of steps `action u8, size u8, data`. It checks invariants for all input: outboxes are bounded, the
//! broker writes valid frames, and a reader of a stream gets no record twice or out of order. There are two streams:
//! one in memory, and one on a disk that may be full.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use busway_core::client::codec::{read, Incoming};
use busway_core::engine::retained::Kept;
use busway_core::engine::streams::Shared;
use busway_core::engine::{Engine, Event, Limits};
use busway_core::log::append::Log;
use busway_core::log::files::memory::{Faults, Simulated};
use busway_core::log::read::Reader as Records;
use busway_core::log::{Safety, Settings};
use busway_core::matching::selection::Selection;
use busway_core::wire::frame::{code, flag, kind, Writer, HEAD, MAGIC};
use busway_core::wire::splitter::{Flow, Splitter};

const LIMITS: Limits = Limits {
    frame: 2048,
    topic: 64,
    fields: 64,
    subscriptions: 8,
    expressions: 4,
    outbox: 4096,
    topics: 4,
    senders: 2,
    pending: 4,
    links: 8,
    patience: 500,
    stall: 50,
};
const CLIENTS: usize = 4;
const STREAMS: usize = 2;

/// The state of a client, from the frames of the broker.
#[derive(Default)]
struct Reader {
    splitter: Splitter,
    topics: [bool; LIMITS.topics],
    senders: [bool; LIMITS.senders],
    streams: [bool; STREAMS],
    /// The next possible offset, by subscription and stream, where the start is known.
    next: HashMap<(u32, u32), u64>,
}

/// A stream subscription.
struct Cursor {
    conn: u32,
    sub: u32,
    stream: u32,
    next: u64,
    held: Option<Vec<u8>>,
    behind: bool,
    selection: Selection,
}

struct Client {
    conn: u32,
    node: bool,
    reader: Reader,
    writable: bool,
}

pub struct Driver {
    engine: Engine,
    clients: Vec<Client>,
    now: u64,
    sessions: u64,
    /// The last retained message: client, flags, topic, body.
    kept: Option<(u32, u8, String, Vec<u8>)>,
    shared: Vec<(u32, u32)>,
    calls: u64,
    asked: Option<(u32, u64)>,
    logs: [Shared; STREAMS],
    readers: [Records; STREAMS],
    disk: Simulated,
    cursors: Vec<Cursor>,
}

fn hello(map: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    Writer::new(&mut out, kind::HELLO, 0).u16(1).bytes(MAGIC).bytes(map).end();
    out
}

impl Driver {
    pub fn new() -> Self {
        Self::of(&[b"in"; 3])
    }

    /// One of the clients is another node.
    pub fn linked() -> Self {
        Self::of(&[b"in", b"node", b"in"])
    }

    fn of(hellos: &[&[u8]; 3]) -> Self {
        let settings = Settings {
            safety: Safety::Written,
            bucket_bytes: 600,
            max_count: 12,
            pending_bytes: 1500,
            ..Settings::default()
        };
        let disk = Simulated::new(false);
        let stored = Log::open(Arc::new(disk.clone()), settings, None, 0).expect("an empty disk");
        let logs = [Log::memory(settings, 0), stored];
        let readers = [logs[0].reader(), logs[1].reader()];
        let mut driver = Self {
            engine: Engine::new(LIMITS),
            clients: Vec::new(),
            now: 0,
            sessions: 0,
            kept: None,
            shared: Vec::new(),
            calls: 0,
            asked: None,
            logs: logs.map(|log| Arc::new(Mutex::new(Some(log)))),
            readers,
            disk,
            cursors: Vec::new(),
        };
        driver.engine.internal("$bus/info");
        for (at, patterns) in [None, Some(vec!["a/**".into()])].into_iter().enumerate() {
            driver.engine.add_stream(at as u32, "name", [7; 16], driver.logs[at].clone(), patterns);
        }
        for i in 0..CLIENTS {
            let conn = driver.engine.connect();
            driver.clients.push(Client { conn, node: false, reader: Reader::default(), writable: true });
            if let Some(map) = hellos.get(i) {
                driver.feed(i, &hello(map));
            }
        }
        driver
    }

    pub fn run(&mut self, mut script: &[u8]) {
        while let [action, size, rest @ ..] = script {
            let (data, rest) = rest.split_at((*size as usize).min(rest.len()));
            script = rest;
            self.step(*action, data);
        }
        for i in 0..CLIENTS {
            self.replace(i);
        }
        let kept = [
            "subscriptions",
            "services",
            "groups",
            "pending",
            "outbox_bytes",
            "aside_bytes",
            "slow_consumers",
            "topics",
        ];
        let left: Vec<_> = self.engine.totals().into_iter().filter(|(name, _)| kept.contains(name)).collect();
        let (topics, rest): (Vec<_>, Vec<_>) = left.into_iter().partition(|(name, _)| *name == "topics");
        assert_eq!(topics, [("topics", 1)], "topics besides the broker's own are left");
        assert!(rest.iter().all(|(_, count)| *count == 0), "left behind: {rest:?}");
    }

    fn step(&mut self, action: u8, data: &[u8]) {
        let i = usize::from(action) % CLIENTS;
        match action / 4 % 12 {
            0 | 1 => self.feed(i, data),
            2 | 3 => {
                // A frame with a valid length, however the rest was mutated.
                let mut frame = (data.len() as u32).to_le_bytes().to_vec();
                frame.extend_from_slice(data);
                self.feed(i, &frame);
            }
            4 => data.chunks(1).for_each(|byte| self.feed(i, byte)),
            5 => {
                self.now += 10 * data.len() as u64;
                self.engine.tick(self.now);
                self.work();
            }
            6 => {
                let client = &mut self.clients[i];
                client.writable = !client.writable;
                self.engine.set_writable(client.conn, client.writable);
                self.work();
            }
            7 => self.replace(i),
            8 => {
                self.engine.clock += data.len() as i64 * 1_000_000_000;
                for (at, log) in self.logs.iter().enumerate() {
                    if let Some(log) = log.lock().expect("nobody panicked").as_mut() {
                        log.trim(self.engine.clock, u64::MAX).expect("no files to remove that could fail");
                    }
                    self.engine.commit(at as u32);
                }
                self.work();
            }
            9 => {
                let room = data.first().map(|&room| usize::from(room) * 8);
                self.disk.set(Faults { room, ..Faults::default() });
                self.work();
            }
            10 => self.read(usize::from(data.first().copied().unwrap_or(9))),
            _ => {
                self.engine.commit(1);
                self.work();
            }
        }
    }

    /// Passes blocks of this size to subscriptions that are behind.
    fn read(&mut self, most: usize) {
        let (engine, readers) = (&mut self.engine, &self.readers);
        for cursor in self.cursors.iter_mut().filter(|cursor| cursor.behind) {
            for _ in 0..4 {
                if !engine.has_room(cursor.conn, cursor.sub) {
                    break;
                }
                let Ok(block) = readers[cursor.stream as usize].read(cursor.next, most) else { break };
                if block.first > cursor.next {
                    engine.send_gap(cursor.conn, cursor.sub, cursor.stream, cursor.next, block.first);
                }
                let to = (cursor.conn, cursor.sub, cursor.stream);
                let got = engine.replay(to, &block.bytes, (block.next, true), &cursor.selection, cursor.held.take());
                (cursor.next, cursor.held, cursor.behind) = (got.next, got.held, !got.live);
                if got.live {
                    break;
                }
            }
        }
        self.work();
    }

    fn feed(&mut self, i: usize, data: &[u8]) {
        self.engine.feed(self.clients[i].conn, data);
        self.work();
    }

    /// Ends the connection. The next one of this client is admitted if the old one was.
    fn replace(&mut self, i: usize) {
        let conn = self.clients[i].conn;
        self.shared.retain(|&(other, _)| other != conn);
        self.asked = self.asked.filter(|&(other, _)| other != conn);
        self.cursors.retain(|cursor| cursor.conn != conn);
        self.engine.disconnect(conn);
        self.work();
        let conn = self.engine.connect();
        self.clients[i] = Client { conn, node: false, reader: Reader::default(), writable: true };
    }

    fn work(&mut self) {
        loop {
            while let Some((conn, bytes)) = self.engine.next_output() {
                let client = self.clients.iter_mut().find(|client| client.conn == conn).expect("output for nobody");
                assert!(client.writable, "output while the transport is full");
                client.reader.check(&bytes, client.node);
            }
            for client in &self.clients {
                let waits = self.engine.outbox_bytes(client.conn);
                // Answers are never dropped: each connection may have some for its own requests.
                assert!(waits <= LIMITS.outbox + 64 * 1024, "{waits} bytes wait");
            }
            let events = self.engine.take_events();
            if events.is_empty() {
                return;
            }
            for event in events {
                self.handle(event);
            }
        }
    }

    fn handle(&mut self, event: Event) {
        let engine = &mut self.engine;
        match event {
            Event::Hello { conn, map, .. } if map == b"node" => {
                assert!(engine.admit_node(conn, 7, "node", conn, 1, b"map"));
                engine.node(conn, 1, 2, b"proof", false);
                engine.link(conn).expect("it was let in");
                self.clients.iter_mut().filter(|client| client.conn == conn).for_each(|client| client.node = true);
            }
            Event::Hello { conn, .. } => {
                self.sessions += 1;
                let taken = engine.accept(conn, 1 + self.sessions % 3, "name", conn, 1, b"map", None);
                if let Some(old) = taken {
                    engine.close(old, code::SESSION_TAKEN, "taken");
                }
            }
            Event::Subscribe { conn, sub, number, flags, policy, pattern, group, rules, since } => {
                let kept = self.kept.as_ref().map(|(client, flags, topic, body)| Kept {
                    client: *client,
                    session: 9,
                    name: "kept",
                    flags: flags | flag::KEPT,
                    topic,
                    body,
                });
                let kept: Vec<_> = kept.into_iter().collect();
                let code = engine.subscribe(conn, sub, number, flags, policy, &pattern, &group, &rules, &kept);
                if code == code::OK && flags & flag::SINCE != 0 && group.is_empty() {
                    for stream in 0..STREAMS as u32 {
                        let selection = Selection::new(&pattern, &rules).expect("the engine has taken it");
                        let first = self.readers[stream as usize].first();
                        let next = if since.is_empty() { first } else { self.readers[stream as usize].safe() };
                        engine.add_cursor(conn, sub, stream);
                        engine.send_gap(conn, sub, stream, next, next);
                        self.cursors.push(Cursor { conn, sub, stream, next, held: None, behind: true, selection });
                    }
                }
            }
            Event::Behind { conn, sub, stream, offset } => {
                let mut all = self.cursors.iter_mut();
                let found = all.find(|one| (one.conn, one.sub, one.stream) == (conn, sub, stream));
                let cursor = found.expect("nobody else can fall behind");
                (cursor.next, cursor.behind, cursor.held) = (offset, true, None);
            }
            Event::Unsubscribe { conn, sub } => self.cursors.retain(|one| (one.conn, one.sub) != (conn, sub)),
            Event::Serve { conn, service, number, topic, flags } => {
                if engine.serve(conn, service, number, &topic, flags) == code::OK && flags & flag::SHARED != 0 {
                    self.shared.push((conn, service));
                }
            }
            Event::Unserve { conn, service, .. } => self.shared.retain(|&one| one != (conn, service)),
            Event::Keep { conn, topic, frame } => {
                if frame[5] & flag::UNKEEP == 0 {
                    let lives = flag::FIELDS | flag::POST | flag::PIN;
                    let (flags, body) = (frame[5] & lives, &frame[HEAD..]);
                    let kept = Kept { client: conn, session: 9, name: "kept", flags, topic: &topic, body };
                    let (_, served) = engine.publish_kept(&kept, None);
                    engine.publish_kept(&kept, Some(&served));
                    self.kept = Some((conn, frame[5] & lives, topic, frame[HEAD..].into()));
                }
                engine.settle_held(conn);
            }
            Event::Request { conn, number, topic, frame, .. } => {
                self.calls += 1;
                self.asked = Some((conn, number));
                let taken = self.shared.last().is_some_and(|&to| {
                    engine.pass(true, to, self.calls, conn, &topic, &frame)
                        && engine.pass(false, to, self.calls, conn, &topic, &frame)
                });
                if !taken {
                    engine.answer(conn, number, flag::ERROR, code::NO_RESPONDERS, &[], b"");
                }
            }
            Event::Answer { frame, .. } => {
                if let Some((conn, number)) = self.asked.take() {
                    engine.answer(conn, number, frame[5] & flag::PARTIAL, 0, &[], b"reply");
                }
            }
            Event::Cancel { .. }
            | Event::Accept { .. }
            | Event::Room(_)
            | Event::Later { .. }
            | Event::Stored(_)
            | Event::Own { .. }
            | Event::Channel { .. }
            | Event::Welcome { .. }
            | Event::Node { .. }
            | Event::Synced(_)
            | Event::Pong { .. }
            | Event::Conflict { .. }
            | Event::Login { .. }
            | Event::Refused { .. } => {}
            Event::Provider { conn, service, .. } => self.shared.push((conn, service)),
            Event::Ask { conn, number, .. } => engine.willing(conn, number, code::OK),
            Event::Call { conn, number, payload, .. } => engine.reply_internal(conn, number, 0, &payload),
            Event::Resume(conn) | Event::Yield(conn) => engine.resume(conn),
            Event::Close { .. } | Event::Fail { .. } | Event::Wait(_) | Event::Read(_) | Event::Pause(_) => {}
        }
    }
}

impl Default for Driver {
    fn default() -> Self {
        Self::new()
    }
}

impl Reader {
    fn check(&mut self, bytes: &[u8], node: bool) {
        let (topics, senders) = (&mut self.topics, &mut self.senders);
        let (streams, next) = (&mut self.streams, &mut self.next);
        // The ids in a delivery may make it longer than the received frame.
        let longest = LIMITS.frame + 4 * LIMITS.subscriptions + 64;
        let understood = self.splitter.feed(bytes, longest, &mut |data, size| {
            let mut frame = data[..size].to_vec();
            if node {
                // Frames that only nodes receive.
                if [kind::NODE, kind::INTEREST, kind::ACCEPT, kind::CANCEL, kind::HOLD].contains(&frame[4]) {
                    return Ok((Flow::Go, size));
                }
                frame[5] &= if frame[4] == kind::CALL { !flag::GATHER } else { !0 };
            }
            match read(&frame)? {
                Incoming::Topic { slot, .. } => topics[slot as usize] = true,
                Incoming::Sender { slot, .. } => senders[slot as usize] = true,
                Incoming::Deliver(delivery)
                | Incoming::Offer(delivery)
                | Incoming::Call(delivery)
                | Incoming::Ask(delivery) => {
                    assert!(topics[delivery.topic as usize], "a topic slot that was not told");
                    assert!(senders[delivery.sender as usize], "a sender slot that was not told");
                    assert!(delivery.ids().count() <= LIMITS.subscriptions);
                }
                Incoming::Missed { count, .. } => assert!(count > 0),
                Incoming::Stream { stream, .. } => streams[stream as usize] = true,
                Incoming::Stored { stream, count, .. } => assert!(streams[stream as usize] && count > 0),
                Incoming::Gap { sub, stream, from, to } => {
                    assert!(streams[stream as usize] && from <= to);
                    next.insert((sub, stream), to);
                }
                Incoming::Record(stored) => {
                    assert!(streams[stored.stream as usize], "a stream that was not told");
                    for id in stored.ids() {
                        if let Some(next) = next.get_mut(&(id, stored.stream)) {
                            let offset = stored.record.offset();
                            assert!(offset >= *next, "offset {offset} of subscription {id} comes after {next}");
                            *next = offset + 1;
                        }
                    }
                }
                _ => {}
            }
            Ok((Flow::Go, size))
        });
        assert_eq!(understood, Ok(true), "the broker wrote what a client refuses");
        assert!(self.splitter.is_empty(), "half a frame was written");
    }
}
