//! The broker's engine: all connections, subscriptions and services, and the routing of messages between them.
//!
//! A driver feeds it bytes with `feed` and gets bytes from `next_output`. Frames that need a decision (HELLO,
//! SUBSCRIBE, SERVE) are returned as events, and block their connection until the driver answers; the engine handles
//! all others. `publish` delivers messages, `streams` and `cursors` store and read them, `requests` forwards requests
//! and pushes, `retained` handles posts and pins, `flow` blocks publishers of full outboxes, and `deferred` sets their
//! publishes aside. `grants` refuses what a user may not do. `links` are the connections to other nodes.

pub(crate) mod connection;
mod control;
mod counters;
pub mod cursors;
mod deferred;
mod event;
mod flow;
mod grants;
mod links;
pub mod outbox;
mod pending;
mod publish;
mod requests;
pub mod retained;
pub mod streams;

use rustc_hash::FxHashMap;

pub use self::event::Event;
use self::streams::Stream;
use crate::engine::connection::{Connection, Role, State};
pub use crate::engine::counters::Stats;
use crate::engine::links::interest::Interest;
use crate::engine::links::requests::RemoteService;
use crate::engine::outbox::Pool;
use crate::engine::pending::Table;
use crate::matching::index::{Index, Subscription};
use crate::matching::regex_index::ENOUGH;
use crate::matching::route::Route;
use crate::matching::topic_table::Topics;
use crate::wire::fields::Pair;
use crate::wire::frame::{code, kind, Checked, Fault, Writer};
use crate::wire::splitter::Flow;

/// The longest frame of a handshake.
const HANDSHAKE: usize = 64 << 10;

#[derive(Debug, Clone, Copy)]
pub struct Limits {
    pub frame: usize,
    pub topic: usize,
    pub fields: usize,
    pub subscriptions: usize,
    /// The maximum number of regular expressions among them.
    pub expressions: usize,
    pub outbox: usize,
    pub topics: usize,
    pub senders: usize,
    pub pending: usize,
    /// The maximum interest of another node; 0: there are no other nodes.
    pub links: usize,
    /// How long a consumer may take nothing before it blocks no publisher, in milliseconds.
    pub patience: u64,
    /// How long a crowded connection may make no progress before `block` drops, in milliseconds.
    pub stall: u64,
}

impl Limits {
    /// Bytes in an outbox from which on `block` blocks publishers.
    fn mark(&self) -> usize {
        self.outbox.min(1 << 20)
    }

    /// Bytes in an outbox up to which the driver may add parts of a backlog.
    fn portion(&self) -> usize {
        self.outbox.min(flow::PORTION)
    }
}

#[derive(Debug, Clone, Copy)]
enum Service {
    Internal,
    Client {
        conn: u32,
        id: u32,
        scope: u8,
    },
    /// The number of providers, which the driver knows.
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
    /// Connections with subscriptions without room at the client.
    holding: Vec<u32>,
    events: Vec<Event>,
    now: u64,
    beat: u32,
    /// Publishes that were set aside are being processed.
    late: bool,
    pub stats: Stats,
    /// The merged ids of a delivery.
    scratch: Vec<u32>,
    /// The subscriptions for one message, and the route to them.
    wanted: Vec<Subscription>,
    narrowed: Box<Route>,
    /// Fields that are added to every message.
    pub defaults: Vec<Pair>,
    streams: Vec<Option<Box<Stream>>>,
    /// The guid of the broker and the name of each stream, as clients get them.
    stream_names: Vec<Box<[u8]>>,
    /// The safety level of each stream, as in STREAM; 0: unknown.
    levels: Vec<u16>,
    /// Streams with records that were not passed to their writer.
    touched: Vec<u32>,
    /// UTC, nanoseconds since 1970; the driver sets it when there are streams.
    pub clock: i64,
    /// The interest that other nodes know.
    interest: Interest,
    /// Connections that are links.
    links: Vec<u32>,
    /// Services of other nodes.
    remote_services: FxHashMap<u32, Vec<RemoteService>>,
    /// Groups in a message of a link.
    named: Vec<u32>,
    /// How many clients of other nodes have numbers.
    remote_clients: u32,
    /// The remote streams, as clients get them.
    remote_streams: Vec<streams::RemoteStream>,
    /// True if the current record of a link is also for stream subscriptions.
    whole: bool,
    /// The longest frame that all nodes accepted that were ever linked.
    shortest: usize,
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
            levels: Vec::new(),
            touched: Vec::new(),
            clock: 0,
            interest: Interest::default(),
            links: Vec::new(),
            remote_services: FxHashMap::default(),
            named: Vec::new(),
            remote_clients: 0,
            remote_streams: Vec::new(),
            whole: true,
            shortest: usize::MAX,
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

    /// Processes all frames of `data`.
    pub fn feed(&mut self, conn: u32, data: &[u8]) {
        let beat = self.beat;
        let Some(this) = self.conn(conn) else { return };
        this.heard = beat;
        this.count.received_bytes += data.len() as u64;
        let deferred =
            this.deferred.as_ref().is_some_and(|deferred| !deferred.is_full()) && this.blocked_by != Some(conn);
        let stopped = this.blocked_by.is_some() && !deferred;
        if this.waiting || stopped {
            this.splitter.hold(data);
            return;
        }
        self.run(conn, Some(data));
        self.flush_streams();
    }

    /// Continues with the data of a connection that was stopped.
    pub fn resume(&mut self, conn: u32) {
        let Some(this) = self.conn(conn) else { return };
        if !this.waiting {
            this.blocked_by = None;
            this.waited = false;
            // A message to retain may have been passed to the driver in the meantime.
            if self.catch_up(conn) && self.conn(conn).is_some_and(|this| !this.waiting) {
                self.run(conn, None);
            }
        }
        self.flush_streams();
    }

    fn run(&mut self, conn: u32, data: Option<&[u8]>) {
        let mut limit = self.limits.frame;
        let Some(this) = self.conn(conn) else { return };
        match this.state {
            // A peer that has not proved who it is must not make the broker hold much.
            State::New | State::Challenged => limit = limit.min(HANDSHAKE),
            _ if this.role != Role::Client => limit += links::LONGER,
            _ => {}
        }
        let mut splitter = std::mem::take(&mut this.splitter);
        let mut each = |data: &[u8], size: usize| {
            let (flow, used) = self.frame(conn, data, size)?;
            let stop = flow == Flow::Go && self.index.expressions.steps >= ENOUGH;
            if stop {
                self.yield_to_others(conn);
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

    /// Processes the frame at the start of `data`, and publishes on the same topic after it. Returns the processed
    /// bytes.
    fn frame(&mut self, conn: u32, data: &[u8], size: usize) -> Checked<(Flow, usize)> {
        let frame = &data[..size];
        let Some(this) = self.conns.get(conn as usize).and_then(Option::as_ref) else { return Ok((Flow::Go, size)) };
        let flow = match this.state {
            State::Open if this.role != Role::Client => return self.link_frame(conn, data, size),
            // A retained message is kept unchanged; the driver adds the server's fields.
            State::Open
                if !self.defaults.is_empty()
                    && (kind::PUBLISH..=kind::REQUEST).contains(&frame[4])
                    && !(frame[4] == kind::PUBLISH && frame[5] & publish::LIVES != 0) =>
            {
                return self.dress(conn, frame);
            }
            State::Open if frame[4] == kind::PUBLISH => return self.publish(conn, data, size),
            State::Open => self.other(conn, frame)?,
            State::New => self.hello(conn, frame)?,
            State::Challenged => self.login(conn, frame)?,
            State::Dialled => self.welcomed(conn, frame)?,
            // Ignore everything after a fault or a close.
            State::Greeted | State::Closing => Flow::Go,
        };
        Ok((flow, size))
    }

    /// Ends a connection because of a protocol error of its peer.
    pub fn fail(&mut self, conn: u32, fault: &Fault) {
        if self.state(conn).is_none_or(|state| state == State::Closing) {
            return;
        }
        self.stats.protocol_errors += u64::from(fault.code != code::SLOW_CONSUMER);
        self.close(conn, fault.code, &fault.text);
        self.events.push(Event::Fail { conn, code: fault.code, text: fault.text.clone() });
    }

    /// Queues CLOSE. From now on the engine processes nothing of the connection and delivers nothing to it.
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

    /// Advances the clock of `idle` by one beat.
    pub fn pass_beat(&mut self) {
        self.beat = self.beat.wrapping_add(1);
    }

    /// Connections that sent nothing during the last `beats`.
    pub fn idle(&self, beats: u32) -> Vec<u32> {
        let live = self.conns.iter().enumerate().filter_map(|(i, conn)| Some((i as u32, conn.as_ref()?)));
        live.filter(|(_, conn)| self.beat.wrapping_sub(conn.heard) >= beats).map(|(i, _)| i).collect()
    }
}
