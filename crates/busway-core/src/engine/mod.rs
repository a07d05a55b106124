//! The broker's engine: every connection, subscription and service, and the way of a message between them.
//!
//! A driver gives it bytes with `feed` and takes bytes with `next_output`. Frames that need a decision (HELLO, SUBSCRIBE,
//! SERVE) come back as events and hold up their connection until they are answered; everything else is done here.
//! `publish` delivers a message, `streams` and `cursors` store and read one, `requests` carries requests and pushes,
//! `retained` posts and pins, `flow` limits publishers of full outboxes, and `deferred` keeps what those publishers sent
//! meanwhile. Other nodes are connections, too: `links`.

pub(crate) mod connection;
mod control;
mod counters;
pub mod cursors;
mod deferred;
mod event;
mod flow;
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
use crate::engine::links::requests::Afar;
use crate::engine::outbox::Pool;
use crate::engine::pending::Table;
use crate::matching::index::{Index, Subscription};
use crate::matching::regex_index::ENOUGH;
use crate::matching::route::Route;
use crate::matching::topic_table::Topics;
use crate::wire::fields::Pair;
use crate::wire::frame::{code, kind, Checked, Fault, Writer};
use crate::wire::splitter::Flow;

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
    /// What another node may ask for, in all; 0: there are no other nodes.
    pub links: usize,
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

#[derive(Debug, Clone, Copy)]
enum Service {
    Internal,
    Client {
        conn: u32,
        id: u32,
        scope: u8,
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
    /// By the same numbers, how safe stored messages are, as STREAM has it; 0: unknown.
    levels: Vec<u16>,
    /// Streams with records that were not handed to their writer.
    touched: Vec<u32>,
    /// UTC, nanoseconds since 1970; the driver sets it when there are streams.
    pub clock: i64,
    /// What other nodes are told.
    interest: Interest,
    /// Connections that are links.
    links: Vec<u32>,
    /// Services of other nodes.
    afar: FxHashMap<u32, Vec<Afar>>,
    /// Groups that one message of a link is for.
    named: Vec<u32>,
    /// How many clients of other nodes were given numbers.
    strangers: u32,
    /// What a client is told of the streams of other nodes.
    far_streams: Vec<streams::FarStream>,
    /// Whether the record of a link that is at hand is also for those who miss nothing.
    whole: bool,
    /// The longest frame that every node we were linked with takes.
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
            afar: FxHashMap::default(),
            named: Vec::new(),
            strangers: 0,
            far_streams: Vec::new(),
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
        let mut limit = self.limits.frame;
        let Some(this) = self.conn(conn) else { return };
        if this.role != Role::Client {
            limit += links::LONGER;
        }
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
        let Some(this) = self.conns.get(conn as usize).and_then(Option::as_ref) else { return Ok((Flow::Go, size)) };
        let flow = match this.state {
            State::Open if this.role != Role::Client => return self.link_frame(conn, data, size),
            // What is kept is kept as it came: the driver adds the server's fields.
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
            State::Dialled => self.welcomed(conn, frame)?,
            // What comes after a fault or a goodbye is not looked at.
            State::Greeted | State::Closing => Flow::Go,
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
}
