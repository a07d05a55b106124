//! The broker's engine: every connection, subscription and service, and the way of a message between them.
//!
//! A driver gives it bytes with `feed` and takes bytes with `next_output`. Frames that need a decision (HELLO, SUBSCRIBE,
//! SERVE) come back as events and hold up their connection until they are answered; everything else is done here.
//! `publish` has the way of a message, `calls` requests and pushes, `flow` full outboxes and those who wait for them,
//! `aside` what those have sent meanwhile.

mod aside;
mod calls;
mod control;
pub mod copies;
mod flow;
mod publish;
pub mod streams;

use rustc_hash::FxHashMap;

use self::streams::Stream;
use crate::connection::{Connection, Counters, State};
use crate::expressions::ENOUGH;
use crate::fields::Pair;
use crate::frame::{code, kind, Checked, Fault, Writer};
use crate::index::{Index, Subscription};
use crate::outbox::Pool;
use crate::pending::Table;
use crate::route::Route;
use crate::split::Flow;
use crate::topics::Topics;

#[derive(Debug, Clone, Copy)]
pub struct Limits {
    pub frame: usize,
    pub topic: usize,
    pub fields: usize,
    pub subscriptions: usize,
    /// Those of them that are regular expressions.
    pub expressions: usize,
    pub outbox: usize,
    pub topics: usize,
    pub senders: usize,
    pub pending: usize,
    /// How long a consumer may take nothing before nobody waits for it, in milliseconds.
    pub patience: u64,
    /// How long a crowded connection may make no progress before `block` drops, in milliseconds.
    pub stall: u64,
}

impl Limits {
    /// Bytes in an outbox from which on `block` holds publishers up.
    fn mark(&self) -> usize {
        self.outbox.min(1 << 20)
    }

    /// Bytes in an outbox up to which the driver may add of a backlog.
    fn portion(&self) -> usize {
        self.outbox.min(flow::PORTION)
    }
}

/// What the driver has to do something about.
#[derive(Debug)]
pub enum Event {
    Hello {
        conn: u32,
        version: u16,
        map: Vec<u8>,
    },
    Subscribe {
        conn: u32,
        sub: u32,
        number: u64,
        flags: u8,
        policy: u8,
        pattern: String,
        group: String,
        rules: Vec<u8>,
        /// From where it wants stored messages, as `MessagePack`.
        since: Vec<u8>,
    },
    /// There is room again in the outbox of a connection that is behind, or for which that was asked.
    Room(u32),
    Serve {
        conn: u32,
        service: u32,
        number: u64,
        topic: String,
        flags: u8,
    },
    /// A shared service was given up.
    Unserve {
        conn: u32,
        service: u32,
        topic: String,
    },
    /// A message to be kept, or to be kept no longer.
    Keep {
        conn: u32,
        topic: String,
        frame: Vec<u8>,
    },
    /// A subscription fell behind on a stream, from this record on.
    Behind {
        conn: u32,
        sub: u32,
        stream: u32,
        offset: u64,
    },
    /// A record that is to be delivered later is safe.
    Later {
        stream: u32,
        due: i64,
        offset: u64,
    },
    /// A subscription that misses nothing of streams has ended.
    Unsubscribe {
        conn: u32,
        sub: u32,
    },
    /// More of a stream is safe; for a stream that the driver follows.
    Stored(u32),
    /// Frames about channels: kind, id, number, the rest.
    Channel {
        conn: u32,
        kind: u8,
        id: u32,
        number: u64,
        rest: Vec<u8>,
    },
    /// What became of a message of the driver.
    Own {
        ticket: u64,
        code: u16,
        text: String,
    },
    /// A request to a shared service.
    Request {
        conn: u32,
        topic: String,
        frame: Vec<u8>,
    },
    /// Who asked a shared service no longer waits.
    Cancel {
        conn: u32,
        number: u64,
    },
    /// The answer to an ASK.
    Accept {
        conn: u32,
        call: u64,
        code: u16,
    },
    /// The reply of a shared service.
    Answer {
        conn: u32,
        frame: Vec<u8>,
    },
    /// A request to the broker itself.
    Call {
        conn: u32,
        number: u64,
        time: i64,
        topic: String,
        payload: Vec<u8>,
    },
    /// The peer says goodbye.
    Close {
        conn: u32,
        code: u16,
        text: String,
    },
    /// The peer broke the rules; CLOSE is queued.
    Fail {
        conn: u32,
        code: u16,
        text: String,
    },
    /// It waits for somebody slow: let time pass.
    Wait(u32),
    /// Read again; only its publishes wait.
    Read(u32),
    /// Read no more from it,
    Pause(u32),
    /// go on with `resume` and read again.
    Resume(u32),
    /// Comparing with regular expressions took long: read no more from it, let others have their turn, then go on as above.
    Yield(u32),
}

#[derive(Debug, Clone, Copy)]
enum Service {
    Internal,
    Client {
        conn: u32,
        id: u32,
    },
    /// So many serve it; who they are, the driver knows.
    Shared(u32),
}

impl Service {
    fn count(&self) -> u64 {
        match self {
            Self::Internal => 0,
            Self::Client { .. } => 1,
            Self::Shared(count) => u64::from(*count),
        }
    }
}

#[derive(Debug)]
struct Group {
    name: Box<str>,
    uses: u32,
    turn: usize,
}

/// Totals over all connections, past ones included.
#[derive(Debug, Default, Clone, Copy)]
pub struct Stats {
    pub count: Counters,
    pub unroutable: u64,
    pub rejected: u64,
    pub late_replies: u64,
    pub requests: u64,
    pub pushes: u64,
    pub protocol_errors: u64,
    pub rule_errors: u64,
    pub opened: u64,
    pub closed: u64,
}

pub struct Engine {
    pub limits: Limits,
    conns: Vec<Option<Box<Connection>>>,
    free: Vec<u32>,
    sessions: FxHashMap<u64, u32>,
    topics: Topics,
    index: Index,
    groups: Vec<Group>,
    free_groups: Vec<u32>,
    group_names: FxHashMap<Box<str>, u32>,
    services: FxHashMap<u32, Service>,
    pending: Table,
    push_turn: usize,
    pub pool: Pool,
    /// Connections with output.
    ready: Vec<u32>,
    /// Connections whose outbox is crowded.
    crowded: Vec<u32>,
    /// Connections with subscriptions that their client has no room for.
    holding: Vec<u32>,
    events: Vec<Event>,
    now: u64,
    beat: u32,
    /// What was set aside is being handled.
    late: bool,
    pub stats: Stats,
    /// Ids of one delivery, put together.
    scratch: Vec<u32>,
    /// Those who want one message, and the way to them.
    wanted: Vec<Subscription>,
    narrowed: Box<Route>,
    /// Fields that every message gets.
    pub defaults: Vec<Pair>,
    streams: Vec<Option<Box<Stream>>>,
    /// What a client is told of each stream: the broker's guid and its name.
    stream_names: Vec<Box<[u8]>>,
    /// Streams with records that were not handed to their writer.
    touched: Vec<u32>,
    /// UTC, nanoseconds since 1970; the driver sets it when there are streams.
    pub clock: i64,
}

impl Engine {
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            conns: Vec::new(),
            free: Vec::new(),
            sessions: FxHashMap::default(),
            topics: Topics::default(),
            index: Index::default(),
            groups: Vec::new(),
            free_groups: Vec::new(),
            group_names: FxHashMap::default(),
            services: FxHashMap::default(),
            pending: Table::default(),
            push_turn: 0,
            pool: Pool::default(),
            ready: Vec::new(),
            crowded: Vec::new(),
            holding: Vec::new(),
            events: Vec::new(),
            now: 0,
            beat: 0,
            late: false,
            stats: Stats::default(),
            scratch: Vec::new(),
            wanted: Vec::new(),
            narrowed: Box::default(),
            defaults: Vec::new(),
            streams: Vec::new(),
            stream_names: Vec::new(),
            touched: Vec::new(),
            clock: 0,
        }
    }

    #[inline]
    fn conn(&mut self, conn: u32) -> Option<&mut Connection> {
        self.conns.get_mut(conn as usize).and_then(Option::as_deref_mut)
    }

    fn state(&self, conn: u32) -> Option<State> {
        self.conns.get(conn as usize).and_then(Option::as_ref).map(|conn| conn.state)
    }

    pub fn is_open(&self, conn: u32) -> bool {
        self.state(conn) == Some(State::Open)
    }

    pub fn connect(&mut self) -> u32 {
        self.stats.opened += 1;
        let new = Box::new(Connection::new(self.limits.topics, self.limits.senders, self.beat));
        if let Some(conn) = self.free.pop() {
            self.conns[conn as usize] = Some(new);
            return conn;
        }
        self.conns.push(Some(new));
        self.conns.len() as u32 - 1
    }

    /// Handles every frame of `data`.
    pub fn feed(&mut self, conn: u32, data: &[u8]) {
        let beat = self.beat;
        let Some(this) = self.conn(conn) else { return };
        this.heard = beat;
        this.count.received_bytes += data.len() as u64;
        let aside = this.aside.as_ref().is_some_and(|aside| !aside.is_full()) && this.blocked_by != Some(conn);
        let stopped = this.blocked_by.is_some() && !aside;
        if this.waiting || stopped {
            this.splitter.hold(data);
            return;
        }
        self.run(conn, Some(data));
        self.flush_streams();
    }

    /// Goes on with what a connection had sent when it was stopped.
    pub fn resume(&mut self, conn: u32) {
        let Some(this) = self.conn(conn) else { return };
        if !this.waiting {
            this.blocked_by = None;
            this.waited = false;
            // A message that is to be kept may have gone to the driver meanwhile.
            if self.catch_up(conn) && self.conn(conn).is_some_and(|this| !this.waiting) {
                self.run(conn, None);
            }
        }
        self.flush_streams();
    }

    fn run(&mut self, conn: u32, data: Option<&[u8]>) {
        let limit = self.limits.frame;
        let Some(this) = self.conn(conn) else { return };
        let mut splitter = std::mem::take(&mut this.splitter);
        let mut each = |data: &[u8], size: usize| {
            let (flow, used) = self.frame(conn, data, size)?;
            let stop = flow == Flow::Go && self.index.expressions.steps >= ENOUGH;
            if stop {
                self.let_others(conn);
            }
            Ok((if stop { Flow::Stop } else { flow }, used))
        };
        let done = match data {
            Some(data) => splitter.feed(data, limit, &mut each),
            None => splitter.again(limit, &mut each),
        };
        match done {
            Ok(_) => {
                if let Some(this) = self.conn(conn) {
                    this.splitter = splitter;
                }
            }
            Err(fault) => self.fail(conn, &fault),
        }
    }

    /// Handles the frame of this size that `data` begins with, and publishes on the same topic behind it; how far it got.
    fn frame(&mut self, conn: u32, data: &[u8], size: usize) -> Checked<(Flow, usize)> {
        let frame = &data[..size];
        let flow = match self.state(conn) {
            // What is kept is kept as it came: the driver adds the server's fields.
            Some(State::Open)
                if !self.defaults.is_empty()
                    && (kind::PUBLISH..=kind::REQUEST).contains(&frame[4])
                    && !(frame[4] == kind::PUBLISH && frame[5] & publish::LIVES != 0) =>
            {
                return self.dress(conn, frame);
            }
            Some(State::Open) if frame[4] == kind::PUBLISH => return self.publish(conn, data, size),
            Some(State::Open) => self.other(conn, frame)?,
            Some(State::New) => self.hello(conn, frame)?,
            // What comes after a fault or a goodbye is not looked at.
            _ => Flow::Go,
        };
        Ok((flow, size))
    }

    /// Ends a connection for what its peer did.
    pub fn fail(&mut self, conn: u32, fault: &Fault) {
        if self.state(conn).is_none_or(|state| state == State::Closing) {
            return;
        }
        self.stats.protocol_errors += u64::from(fault.code != code::SLOW_CONSUMER);
        self.close(conn, fault.code, &fault.text);
        self.events.push(Event::Fail { conn, code: fault.code, text: fault.text.clone() });
    }

    /// Queues CLOSE; from now on nothing of the connection is handled and nothing delivered to it.
    pub fn close(&mut self, conn: u32, code: u16, text: &str) {
        let Some(this) = self.conns.get_mut(conn as usize).and_then(Option::as_deref_mut) else { return };
        if this.state == State::Closing {
            return;
        }
        this.state = State::Closing;
        this.outbox.push(&mut self.pool, 64, |out| {
            Writer::new(out, kind::CLOSE, 0).u16(code).bytes(text.as_bytes()).end();
        });
        self.queue(conn);
        self.release(conn);
    }

    pub fn take_events(&mut self) -> Vec<Event> {
        std::mem::take(&mut self.events)
    }

    /// Time in beats, for `idle`.
    pub fn pass_beat(&mut self) {
        self.beat = self.beat.wrapping_add(1);
    }

    /// Connections that sent nothing during the last `beats`.
    pub fn idle(&self, beats: u32) -> Vec<u32> {
        let live = self.conns.iter().enumerate().filter_map(|(i, conn)| Some((i as u32, conn.as_ref()?)));
        live.filter(|(_, conn)| self.beat.wrapping_sub(conn.heard) >= beats).map(|(i, _)| i).collect()
    }

    pub fn totals(&self) -> Vec<(&'static str, u64)> {
        let mut count = self.stats.count;
        for conn in self.conns.iter().flatten() {
            add(&mut count, &conn.count);
        }
        let s = &self.stats;
        let outbox: usize = self.conns.iter().flatten().map(|conn| conn.outbox.bytes()).sum();
        let aside: usize = self.conns.iter().flatten().map(|conn| conn.aside_bytes()).sum();
        vec![
            ("connections", (self.conns.len() - self.free.len()) as u64),
            ("connections_opened", s.opened),
            ("connections_closed", s.closed),
            ("subscriptions", self.index.len() as u64),
            ("services", self.services.values().map(Service::count).sum()),
            ("topics", self.topics.len() as u64),
            ("groups", self.group_names.len() as u64),
            ("pending", self.pending.len() as u64),
            ("outbox_bytes", outbox as u64),
            ("aside_bytes", aside as u64),
            ("slow_consumers", self.slow().count() as u64),
            ("messages_received", count.received),
            ("received_bytes", count.received_bytes),
            ("messages_delivered", count.delivered),
            ("delivered_bytes", count.delivered_bytes),
            ("messages_dropped", count.dropped),
            ("messages_unroutable", s.unroutable),
            ("messages_rejected", s.rejected),
            ("pushes", s.pushes),
            ("requests", s.requests),
            ("late_replies", s.late_replies),
            ("protocol_errors", s.protocol_errors),
            ("rule_errors", s.rule_errors),
            ("listeners", self.index.listeners as u64),
            ("watchers", self.index.watchers as u64),
        ]
    }

    pub fn figures(&self, conn: u32) -> Vec<(&'static str, u64)> {
        let Some(conn) = self.conns.get(conn as usize).and_then(Option::as_ref) else { return Vec::new() };
        vec![
            ("client", u64::from(conn.who.client)),
            ("subscriptions", conn.subs.len() as u64),
            ("services", conn.services.len() as u64),
            ("pending", conn.asked.len() as u64),
            ("outbox_bytes", conn.outbox.bytes() as u64),
            ("aside_bytes", conn.aside_bytes() as u64),
            ("held", conn.held.len() as u64),
            ("messages_received", conn.count.received),
            ("received_bytes", conn.count.received_bytes),
            ("messages_delivered", conn.count.delivered),
            ("delivered_bytes", conn.count.delivered_bytes),
            ("messages_dropped", conn.count.dropped),
        ]
    }

    pub fn outbox_bytes(&self, conn: u32) -> usize {
        self.conns.get(conn as usize).and_then(Option::as_ref).map_or(0, |conn| conn.outbox.bytes())
    }
}

fn add(sum: &mut Counters, by: &Counters) {
    sum.received += by.received;
    sum.received_bytes += by.received_bytes;
    sum.delivered += by.delivered;
    sum.delivered_bytes += by.delivered_bytes;
    sum.dropped += by.dropped;
}
