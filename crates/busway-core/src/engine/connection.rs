//! What the broker's engine keeps for one connection.

use rustc_hash::{FxHashMap, FxHashSet};
use std::sync::Arc;

use crate::engine::deferred::Aside;
use crate::engine::outbox::Outbox;
use crate::wire::fields::{write_text, Pair};
use crate::wire::frame::policy;
use crate::wire::slots::Numbers;
use crate::wire::splitter::Splitter;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// No HELLO yet.
    New,
    /// HELLO is with the driver.
    Greeted,
    /// We have sent HELLO to another node.
    Dialled,
    Open,
    /// CLOSE is queued; nothing is read or delivered any more.
    Closing,
}

/// Who is at the other end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    Client,
    /// Another node that has not proved itself yet.
    Node,
    /// A node of the same mesh.
    Link,
}

/// What a slot of the peer stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Named {
    Nothing,
    Topic(u32),
    /// The topic was refused with this code.
    Refused(u16),
}

/// Who publishes, as receivers are told.
#[derive(Debug, Clone)]
pub struct Who {
    pub client: u32,
    pub session: u64,
    pub name: Arc<str>,
}

impl Who {
    /// The field that tells who gave one of several replies.
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
    /// Of everything, as those that were received.
    pub sent_bytes: u64,
    pub dropped: u64,
}

/// A subscription whose client said HOLD.
#[derive(Debug, Clone, Copy)]
pub struct Hold {
    pub policy: u8,
    /// What its consumer had taken when it was last heard of.
    pub taken: u64,
    /// When its word was first seen to be due; None: it came since time was last looked at.
    pub since: Option<u64>,
    /// The same for its consumer taking something.
    pub idle: Option<u64>,
    /// Not heard of for too long: `block` drops.
    pub silent: bool,
    /// Its consumer has taken nothing for too long: `block` drops.
    pub stuck: bool,
}

impl Hold {
    /// Whether publishers must wait for it.
    pub fn blocks(&self) -> bool {
        self.policy == policy::BLOCK && !self.stuck && !self.silent
    }
}

/// A service that a connection has.
#[derive(Debug, Clone, Copy)]
pub struct Served {
    pub topic: u32,
    pub shared: bool,
    /// Its number in what other nodes are told.
    pub interest: u32,
}

/// Where a subscription is in a stream of which it misses nothing.
#[derive(Debug, Clone, Copy)]
pub struct Cursor {
    /// It gets what it misses from the log.
    pub behind: bool,
    /// Behind what it has read there, before it was given the rest as it came.
    pub next: u64,
}

#[derive(Debug)]
pub struct Connection {
    pub state: State,
    pub role: Role,
    /// What is kept for another node.
    pub peer: Option<Box<Peer>>,
    pub who: Who,
    pub splitter: Splitter,
    /// A control frame is with the driver: nothing is handled until it is answered.
    pub waiting: bool,
    /// Waits for this connection, with what it publishes.
    pub blocked_by: Option<u32>,
    /// It has been blocked for a tick already.
    pub waited: bool,
    /// What it publishes while it is blocked is set aside, and everything else of it is handled.
    pub aside: Option<Box<Aside>>,
    pub topics_in: Vec<Named>,

    pub outbox: Outbox,
    pub writable: bool,
    /// Is in the list of connections with output.
    pub queued: bool,
    pub topics_out: Numbers<u32>,
    pub senders_out: Numbers<u32>,
    /// Client number and slot of the sender used last.
    pub last_sender: (u32, u32),
    /// The outbox reached the mark of `block` and is not yet down to half of it.
    pub crowded: bool,
    /// Crowded, and nothing could be written for too long: `block` drops.
    pub stuck: bool,
    /// When it was last seen to make progress while crowded; None: not looked at yet.
    pub progress: Option<u64>,
    /// The driver has more for it.
    pub wants_room: bool,
    /// Connections that wait for room here.
    pub waiters: Vec<u32>,
    /// Subscriptions that its client has no room for.
    pub held: FxHashMap<u32, Hold>,

    /// Streams whose names it was told.
    pub streams: Vec<u32>,
    /// Subscriptions that miss nothing of a stream, and how far each is.
    pub cursors: FxHashMap<(u32, u32), Cursor>,
    /// All subscriptions that miss nothing of what is stored, whatever streams there are.
    pub since: FxHashSet<u32>,

    pub subs: FxHashMap<u32, u32>,
    /// How many of them are regular expressions.
    pub expressions: usize,
    /// Topics it serves, alone or with others.
    pub services: FxHashMap<u32, Served>,
    /// Requests and pushes of this connection, by its number.
    pub asked: FxHashMap<u64, u64>,
    /// Bytes of its pushes that wait for a consumer's answer.
    pub offered: usize,
    /// Calls and offers that it has to answer.
    pub owed: FxHashSet<u64>,
    /// Beat at which it was last heard.
    pub heard: u32,
    pub count: Counters,
}

impl Connection {
    pub fn aside_bytes(&self) -> usize {
        self.aside.as_ref().map_or(0, |aside| aside.bytes())
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
            aside: None,
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
            heard: beat,
            count: Counters::default(),
        }
    }

    /// Whether the node at the other end doesn't take a message of this size.
    #[inline]
    pub fn is_too_long(&self, size: usize) -> bool {
        self.peer.as_ref().is_some_and(|peer| peer.frame.is_some_and(|most| size > most))
    }
}

/// What a connection with another node has besides.
#[derive(Debug, Default)]
pub struct Peer {
    /// Clients of that node, by slot.
    pub senders: Vec<Option<Arc<Who>>>,
    /// The longest frame that it takes from its clients, if it has told.
    pub frame: Option<usize>,
    /// Our numbers of its streams.
    pub streams: FxHashMap<u32, u32>,
    /// Who asked a shared service of ours, by the number of the call.
    pub callers: FxHashMap<u64, Arc<Who>>,
    /// Interest of ours that was told to have no room, and the connection that has none.
    pub holds: FxHashMap<u32, u32>,
    /// When that was said last.
    pub said: u64,
    /// Where the first record of a stream lies that its subscriptions were not given for lack of room, though they miss nothing.
    pub behind: FxHashMap<u32, u64>,
    /// Counts how often it was said.
    pub words: u64,
}

impl Peer {
    pub fn sender(&self, slot: u32) -> Option<Arc<Who>> {
        self.senders.get(slot as usize)?.clone()
    }
}
