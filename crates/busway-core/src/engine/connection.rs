//! The state that the broker's engine keeps per connection.

use rustc_hash::{FxHashMap, FxHashSet};
use std::sync::Arc;

use crate::engine::deferred::Deferred;
use crate::engine::outbox::Outbox;
use crate::matching::grants::Grants;
use crate::wire::fields::{write_text, Pair};
use crate::wire::frame::policy;
use crate::wire::slots::Numbers;
use crate::wire::splitter::Splitter;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// Before HELLO.
    New,
    /// The driver decides on HELLO, or on LOGIN.
    Greeted,
    /// CHALLENGE was sent; LOGIN is awaited.
    Challenged,
    /// HELLO was sent to another node.
    Dialled,
    Open,
    /// CLOSE is queued; the engine reads and delivers nothing more.
    Closing,
}

/// The kind of peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    Client,
    /// Another node before authentication.
    Node,
    /// An authenticated node of the same cluster.
    Link,
}

/// The meaning of a slot of the peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Named {
    Nothing,
    /// A topic, with bits of verbs: on which the grants were asked, and which they allow.
    Topic {
        topic: u32,
        asked: u8,
        allowed: u8,
    },
    /// The topic was refused with this code.
    Refused(u16),
}

/// The sender of messages, as receivers see it.
#[derive(Debug, Clone)]
pub struct Who {
    pub client: u32,
    pub session: u64,
    pub name: Arc<str>,
}

impl Who {
    /// The field with the provider of one of several replies.
    pub fn named(&self) -> Pair {
        let mut value = Vec::new();
        if self.name.is_empty() {
            write_text(&format!("{:016x}", self.session), &mut value);
        } else {
            write_text(&self.name, &mut value);
        }
        (".id".into(), value.into())
    }
}

#[derive(Debug, Default, Clone, Copy)]
pub struct Counters {
    pub received: u64,
    pub received_bytes: u64,
    pub delivered: u64,
    pub delivered_bytes: u64,
    /// Bytes of all sent frames.
    pub sent_bytes: u64,
    pub dropped: u64,
}

/// A subscription whose client sent HOLD.
#[derive(Debug, Clone, Copy)]
pub struct Hold {
    pub policy: u8,
    /// The number of messages that its consumer had taken at the last HOLD.
    pub taken: u64,
    /// When the next HOLD was first found missing; None: one has arrived since the last tick.
    pub since: Option<u64>,
    /// When its consumer was first found idle; None: it has taken a message since the last tick.
    pub idle: Option<u64>,
    /// No HOLD for too long: `block` drops.
    pub silent: bool,
    /// Its consumer has taken nothing for too long: `block` drops.
    pub stuck: bool,
}

impl Hold {
    /// True if publishers must wait for it.
    pub fn blocks(&self) -> bool {
        self.policy == policy::BLOCK && !self.stuck && !self.silent
    }
}

/// A service of a connection.
#[derive(Debug, Clone, Copy)]
pub struct Served {
    pub topic: u32,
    pub shared: bool,
    /// Its id in the interest that other nodes know.
    pub interest: u32,
}

/// The position of a stream subscription in a stream.
#[derive(Debug, Clone, Copy)]
pub struct Cursor {
    /// It reads missing records from the log.
    pub behind: bool,
    /// The offset after the last record that it read from the log before it was live.
    pub next: u64,
}

#[derive(Debug)]
pub struct Connection {
    pub state: State,
    pub role: Role,
    /// The additional state of a connection to another node.
    pub peer: Option<Box<Peer>>,
    pub who: Who,
    pub splitter: Splitter,
    /// The driver decides on a control frame: the engine processes nothing more until the answer.
    pub waiting: bool,
    /// The connection with the full outbox that blocks publishes of this one.
    pub blocked_by: Option<u32>,
    /// It was already blocked at the last tick.
    pub waited: bool,
    /// Publishes that are set aside while it is blocked; other frames are processed.
    pub deferred: Option<Box<Deferred>>,
    pub topics_in: Vec<Named>,

    pub outbox: Outbox,
    pub writable: bool,
    /// It is in the list of connections with output.
    pub queued: bool,
    pub topics_out: Numbers<u32>,
    pub senders_out: Numbers<u32>,
    /// Client number and slot of the last sender.
    pub last_sender: (u32, u32),
    /// The outbox has reached the mark of `block`, and has not fallen to half of it yet.
    pub crowded: bool,
    /// It is crowded, and nothing could be written for too long: `block` drops.
    pub stuck: bool,
    /// When it last made progress while crowded; None: not checked yet.
    pub progress: Option<u64>,
    /// The driver waits for room in the outbox.
    pub wants_room: bool,
    /// Connections that are blocked by this one.
    pub waiters: Vec<u32>,
    /// Subscriptions without room at the client.
    pub held: FxHashMap<u32, Hold>,

    /// Streams whose names the client knows.
    pub streams: Vec<u32>,
    /// The position of each stream subscription in each stream.
    pub cursors: FxHashMap<(u32, u32), Cursor>,
    /// All stream subscriptions, including those without a stream yet.
    pub since: FxHashSet<u32>,

    pub subs: FxHashMap<u32, u32>,
    /// The number of regular expressions among them.
    pub expressions: usize,
    /// Topics that it serves, alone or shared.
    pub services: FxHashMap<u32, Served>,
    /// Requests and pushes of this connection, by its number.
    pub asked: FxHashMap<u64, u64>,
    /// Bytes of its pushes that wait for the answer of a consumer.
    pub offered: usize,
    /// Calls and offers that it must answer.
    pub owed: FxHashSet<u64>,
    /// The grants of its user, which all connections of the user share; None: everything is allowed.
    pub grants: Option<Arc<Grants>>,
    /// How often the grants refused something since the driver last read it.
    pub refusals: u64,
    /// The beat at which it last sent data.
    pub heard: u32,
    pub count: Counters,
}

impl Connection {
    pub fn aside_bytes(&self) -> usize {
        self.deferred.as_ref().map_or(0, |deferred| deferred.bytes())
    }

    pub fn new(topics: usize, senders: usize, beat: u32) -> Self {
        Self {
            state: State::New,
            role: Role::Client,
            peer: None,
            who: Who { client: 0, session: 0, name: Arc::from("") },
            splitter: Splitter::default(),
            waiting: false,
            blocked_by: None,
            waited: false,
            deferred: None,
            topics_in: Vec::new(),
            outbox: Outbox::default(),
            writable: true,
            queued: false,
            topics_out: Numbers::new(topics),
            senders_out: Numbers::new(senders),
            last_sender: (0, 0),
            crowded: false,
            stuck: false,
            progress: None,
            wants_room: false,
            waiters: Vec::new(),
            held: FxHashMap::default(),
            streams: Vec::new(),
            cursors: FxHashMap::default(),
            since: FxHashSet::default(),
            subs: FxHashMap::default(),
            expressions: 0,
            services: FxHashMap::default(),
            asked: FxHashMap::default(),
            offered: 0,
            owed: FxHashSet::default(),
            grants: None,
            refusals: 0,
            heard: beat,
            count: Counters::default(),
        }
    }

    /// True if the node at the other end does not accept a message of this size.
    #[inline]
    pub fn is_too_long(&self, size: usize) -> bool {
        self.peer.as_ref().is_some_and(|peer| peer.frame.is_some_and(|most| size > most))
    }
}

/// The additional state of a connection to another node.
#[derive(Debug, Default)]
pub struct Peer {
    /// Clients of that node, by slot.
    pub senders: Vec<Option<Arc<Who>>>,
    /// The longest frame that the node accepts for its clients, if known.
    pub frame: Option<usize>,
    /// Our numbers of the node's streams.
    pub streams: FxHashMap<u32, u32>,
    /// Requesters of our shared services, by the number of the call.
    pub callers: FxHashMap<u64, Arc<Who>>,
    /// Interest of ours for which HOLD was sent, and the connection without room.
    pub holds: FxHashMap<u32, u32>,
    /// When HOLD was sent last.
    pub hold_sent: u64,
    /// The first record of each stream that stream subscriptions of the node missed for lack of room.
    pub behind: FxHashMap<u32, u64>,
    /// The number of HOLD frames that were sent.
    pub words: u64,
}

impl Peer {
    pub fn sender(&self, slot: u32) -> Option<Arc<Who>> {
        self.senders.get(slot as usize)?.clone()
    }
}
