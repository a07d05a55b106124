//! Engines joined by their bytes, and clients on them, without sockets and Python.
#![allow(dead_code)] // each test uses a part of it

use std::collections::HashMap;

use busway_core::client::codec::{read, Delivery, Incoming, Limits as Told, More, Outgoing};
use busway_core::engine::{Engine, Event, Limits};
use busway_core::wire::fields::write_text;
use busway_core::wire::frame::{code, kind};
use busway_core::wire::splitter::{Flow, Splitter};

pub const LIMITS: Limits = Limits {
    frame: 1 << 20,
    topic: 256,
    fields: 4096,
    subscriptions: 1000,
    expressions: 100,
    outbox: 1 << 20,
    topics: 64,
    senders: 64,
    pending: 100,
    links: 10_000,
    patience: 500,
    stall: 200,
};

/// A frame that a client received.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Got {
    pub kind: u8,
    pub flags: u8,
    pub topic: String,
    pub sender: (u64, String),
    pub ids: Vec<u32>,
    /// Number of the offer, call, reply or result.
    pub number: u64,
    pub code: u16,
    pub payload: Vec<u8>,
}

#[derive(Default)]
pub struct Client {
    pub node: usize,
    pub conn: u32,
    pub out: Outgoing,
    splitter: Splitter,
    topics: HashMap<u32, String>,
    senders: HashMap<u32, (u64, String)>,
    streams: HashMap<u32, String>,
    got: Vec<Got>,
}

impl Client {
    fn hear(&mut self, bytes: &[u8]) {
        let (topics, senders, streams, got) = (&mut self.topics, &mut self.senders, &mut self.streams, &mut self.got);
        let mut splitter = std::mem::take(&mut self.splitter);
        let heard = splitter.feed(bytes, 2 << 20, &mut |data, size| {
            let mut one = Got {
                kind: data[4],
                flags: data[5],
                topic: String::new(),
                sender: (0, String::new()),
                ids: Vec::new(),
                number: 0,
                code: 0,
                payload: Vec::new(),
            };
            let message = |one: &mut Got, said: &Delivery| {
                one.topic.clone_from(&topics[&said.topic]);
                one.sender = senders[&said.sender].clone();
                (one.ids, one.number, one.payload) = (said.ids().collect(), said.answer, said.body.payload.into());
            };
            match read(&data[..size])? {
                Incoming::Topic { slot, text } => drop(topics.insert(slot, text.into())),
                Incoming::Sender { slot, session, name } => drop(senders.insert(slot, (session, name.into()))),
                Incoming::Stream { stream, name, .. } => drop(streams.insert(stream, name.into())),
                Incoming::Deliver(said) | Incoming::Offer(said) | Incoming::Call(said) | Incoming::Ask(said) => {
                    message(&mut one, &said);
                    got.push(one);
                }
                Incoming::Record(said) => {
                    one.topic = said.record.topic.into();
                    one.sender = (said.record.session(), streams[&said.stream].clone());
                    (one.ids, one.payload) = (said.ids().collect(), said.record.payload.into());
                    got.push(one);
                }
                Incoming::Reply { code, number, payload, fields, .. } => {
                    (one.code, one.number, one.payload) = (code, number, [fields, payload].concat());
                    got.push(one);
                }
                Incoming::Result { code, number, value, .. } => {
                    (one.code, one.number, one.ids) = (code, number, vec![value as u32]);
                    got.push(one);
                }
                Incoming::Missed { sub, count } => {
                    (one.ids, one.number) = (vec![sub], count);
                    got.push(one);
                }
                Incoming::Withdraw { sub, session, number } => {
                    (one.ids, one.number, one.sender.0) = (vec![sub], number, session);
                    got.push(one);
                }
                Incoming::Close { code, .. } => {
                    one.code = code;
                    got.push(one);
                }
                _ => {}
            }
            Ok((Flow::Go, size))
        });
        assert_eq!(heard, Ok(true), "the broker wrote what a client refuses");
        self.splitter = splitter;
    }
}

#[derive(Default)]
pub struct Mesh {
    pub nodes: Vec<Engine>,
    pub clients: Vec<Client>,
    /// The other end of each link.
    pub ends: HashMap<(usize, u32), (usize, u32)>,
    /// Events that the drivers ignored.
    pub events: Vec<(usize, Event)>,
    /// Bytes to links are kept back here instead of being delivered.
    pub cut: bool,
    pub kept: Vec<((usize, u32), Vec<u8>)>,
    /// How many bytes are delivered at once.
    pub step: usize,
}

impl Mesh {
    /// Creates nodes that are all linked with each other.
    pub fn new(nodes: usize) -> Self {
        let mut mesh = Self { step: 1 << 20, ..Self::default() };
        mesh.nodes.extend((0..nodes).map(|_| Engine::new(LIMITS)));
        for a in 0..nodes {
            for b in a + 1..nodes {
                mesh.join(a, b);
            }
        }
        mesh
    }

    pub fn dial(&mut self, a: usize, b: usize) -> (u32, u32) {
        let ends = (self.nodes[a].dial(b"node"), self.nodes[b].connect());
        self.ends.insert((a, ends.0), (b, ends.1));
        self.ends.insert((b, ends.1), (a, ends.0));
        self.pump();
        ends
    }

    /// Opens a link between two nodes, and returns its connections.
    pub fn join(&mut self, a: usize, b: usize) -> (u32, u32) {
        let ends = self.dial(a, b);
        self.nodes[a].link(ends.0).unwrap();
        self.nodes[b].link(ends.1).unwrap();
        self.pump();
        ends
    }

    /// Ends the link between two nodes.
    pub fn part(&mut self, a: usize, conn: u32) {
        let (b, other) = self.ends.remove(&(a, conn)).unwrap();
        self.ends.remove(&(b, other));
        self.nodes[a].disconnect(conn);
        self.nodes[b].disconnect(other);
        self.pump();
    }

    /// Adds a client of a node, and returns its index.
    pub fn client(&mut self, node: usize, name: &str) -> usize {
        let mut client = Client { node, conn: self.nodes[node].connect(), ..Client::default() };
        client.out.hello(name.as_bytes());
        client.out.open(Told { frame: 1 << 20, topic: 256, fields: 4096, topics: 64 });
        self.clients.push(client);
        self.pump();
        self.clients.len() - 1
    }

    pub fn leave(&mut self, client: usize) {
        let Client { node, conn, .. } = self.clients[client];
        self.nodes[node].disconnect(conn);
        self.clients[client].conn = u32::MAX;
        self.pump();
    }

    pub fn subscribe(&mut self, client: usize, sub: u32, pattern: &str, group: &str, flags: u8, rules: &[u8]) {
        self.clients[client].out.subscribe(sub, pattern, group, flags, 0, rules, &[]).unwrap();
        assert_eq!(self.result(client).code, code::OK);
    }

    pub fn serve(&mut self, client: usize, id: u32, topic: &str, flags: u8) -> u16 {
        self.clients[client].out.serve(id, topic, flags).unwrap();
        self.result(client).code
    }

    pub fn end(&mut self, client: usize, kind: u8, id: u32) {
        self.clients[client].out.end(kind, id);
        assert_eq!(self.result(client).code, code::OK);
    }

    /// The RESULT that arrives now.
    pub fn result(&mut self, client: usize) -> Got {
        self.pump();
        let at = self.clients[client].got.iter().position(|got| got.kind == kind::RESULT).expect("no RESULT");
        self.clients[client].got.remove(at)
    }

    pub fn publish(&mut self, client: usize, topic: &str, payload: &str) {
        self.send(client, kind::PUBLISH, topic, More::default(), payload);
        self.pump();
    }

    /// Encodes a message without delivering it.
    pub fn send(&mut self, client: usize, kind: u8, topic: &str, more: More, payload: &str) -> u64 {
        let out = &mut self.clients[client].out;
        let slot = out.slot(topic).unwrap();
        out.message(kind, slot, more, payload.as_bytes())
    }

    /// The frames that a client received since the last call.
    pub fn take(&mut self, client: usize) -> Vec<Got> {
        self.pump();
        std::mem::take(&mut self.clients[client].got)
    }

    /// The payloads of these frames, with their ids.
    pub fn payloads(&mut self, client: usize) -> Vec<(Vec<u32>, String)> {
        let got = self.take(client).into_iter();
        got.map(|got| (got.ids, String::from_utf8(got.payload).unwrap())).collect()
    }

    /// Delivers all bytes until no engine has output.
    pub fn pump(&mut self) {
        loop {
            let mut moved = false;
            for at in 0..self.clients.len() {
                let client = &mut self.clients[at];
                let out = std::mem::take(&mut client.out.out);
                let (node, conn) = (client.node, client.conn);
                if !out.is_empty() {
                    moved = true;
                    self.feed(node, conn, &out);
                }
            }
            for node in 0..self.nodes.len() {
                while let Some((conn, bytes)) = self.nodes[node].next_output() {
                    moved = true;
                    if let Some(&(other, end)) = self.ends.get(&(node, conn)) {
                        if self.cut {
                            self.kept.push(((other, end), bytes));
                        } else {
                            self.feed(other, end, &bytes);
                        }
                    } else if let Some(client) =
                        self.clients.iter_mut().find(|client| (client.node, client.conn) == (node, conn))
                    {
                        client.hear(&bytes);
                    }
                }
                for event in self.nodes[node].take_events() {
                    moved = true;
                    self.handle(node, event);
                }
            }
            if !moved {
                return;
            }
        }
    }

    fn feed(&mut self, node: usize, conn: u32, bytes: &[u8]) {
        for piece in bytes.chunks(self.step) {
            self.nodes[node].feed(conn, piece);
        }
    }

    fn handle(&mut self, node: usize, event: Event) {
        let engine = &mut self.nodes[node];
        match event {
            Event::Hello { conn, map, .. } if self.ends.contains_key(&(node, conn)) => {
                assert_eq!(map, b"node");
                assert!(engine.admit_node(conn, 1, "node", conn + 1, 1, b"welcome"));
            }
            Event::Hello { conn, map, .. } => {
                let name = String::from_utf8(map).unwrap();
                let session = name.bytes().fold(1, |sum, byte| sum * 31 + u64::from(byte));
                engine.accept(conn, session, &name, conn + 1, 1, b"map", None);
            }
            Event::Subscribe { conn, sub, number, flags, policy, pattern, group, rules, .. } => {
                engine.subscribe(conn, sub, number, flags, policy, &pattern, &group, &rules, &[]);
            }
            Event::Serve { conn, service, number, topic, flags } => {
                engine.serve(conn, service, number, &topic, flags);
            }
            Event::Resume(conn) | Event::Yield(conn) => engine.resume(conn),
            Event::Wait(_) | Event::Pause(_) | Event::Read(_) => {}
            other => self.events.push((node, other)),
        }
    }
}

/// Rules: this field equals this text.
pub fn equal(name: &str, value: &str) -> Vec<u8> {
    let mut out = vec![0x81];
    write_text("where", &mut out);
    out.extend([0x91, 0x93]);
    for text in [name, "eq", value] {
        write_text(text, &mut out);
    }
    out
}

/// Fields: only this one.
pub fn field(name: &str, value: &str) -> Vec<u8> {
    let mut out = vec![0x81];
    write_text(name, &mut out);
    write_text(value, &mut out);
    out
}
