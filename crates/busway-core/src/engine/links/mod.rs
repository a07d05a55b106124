//! Links to other nodes: two nodes have one connection, and each is the other's client on it.
//!
//! A connection to a node is like any other until both sides are authenticated, which the driver does with NODE frames.
//! Then it is a link: each side announces the interest of its clients, receives matching messages once, and delivers
//! them to its own clients, never to another link.

mod backpressure;
mod inbound;
pub(crate) mod interest;
pub(in crate::engine) mod requests;
pub(crate) mod scope;

use std::sync::Arc;

use crate::engine::connection::Peer;
use crate::engine::connection::{Named, Role, State, Who};
use crate::engine::links::requests::Wish;
use crate::engine::publish::u32_at;
use crate::engine::streams::{RemoteStream, REMOTE};
use crate::engine::{Engine, Event};
use crate::matching::route::Member;
use crate::wire::frame::{code, flag, kind, op, policy, Checked, Fault, Parts, Writer, HEAD, MAGIC, VERSION};
use crate::wire::splitter::Flow;

/// How much longer frames of a link may be than those of clients: for all ids of a message, or a record.
pub(in crate::engine) const LONGER: usize = 512 << 10;
/// The maximum length of a client's name.
const NAME: usize = 1020;
/// Clients of other nodes have numbers from here on.
const REMOTE_CLIENTS: u32 = 1 << 31;
/// Entries of an INTEREST frame after which other connections are processed, since many such frames may follow.
const MUCH: u16 = 256;
/// The maximum number of remote streams.
const STREAMS: usize = 1 << 16;

/// A message of a link: its topic, its ids, and where its body begins.
pub(in crate::engine) struct Arrived {
    pub topic: Option<u32>,
    pub who: Arc<Who>,
    pub body: usize,
}

impl Engine {
    /// Adds an outgoing connection to another node, and queues HELLO.
    pub fn dial(&mut self, map: &[u8]) -> u32 {
        let conn = self.connect();
        if let Some(this) = self.conn(conn) {
            this.state = State::Dialled;
            this.role = Role::Node;
            this.peer = Some(Box::default());
        }
        self.put(conn, |out| {
            Writer::new(out, kind::HELLO, 0).u16(VERSION).bytes(MAGIC).bytes(map).end();
        });
        conn
    }

    /// The answer to our HELLO.
    #[cold]
    pub(in crate::engine) fn welcomed(&mut self, conn: u32, frame: &[u8]) -> Checked<Flow> {
        let mut parts = Parts::of(frame);
        if frame[4] == kind::CLOSE {
            return self.other(conn, frame);
        }
        if frame[4] != kind::WELCOME || frame[5] != 0 {
            return Err(Fault::new(code::HANDSHAKE, "HELLO is answered by WELCOME"));
        }
        let (version, map) = (parts.u16()?, parts.rest().into());
        if let Some(this) = self.conn(conn) {
            this.state = State::Open;
        }
        self.events.push(Event::Welcome { conn, version, map });
        Ok(Flow::Go)
    }

    /// Admits another node after its HELLO; it may send NODE frames until it is a link. False: there was no HELLO.
    pub fn admit_node(&mut self, conn: u32, session: u64, name: &str, client: u32, version: u16, map: &[u8]) -> bool {
        if self.state(conn) != Some(State::Greeted) {
            return false;
        }
        self.put(conn, |out| {
            Writer::new(out, kind::WELCOME, 0).u16(version).bytes(map).end();
        });
        if let Some(this) = self.conn(conn) {
            this.state = State::Open;
            this.role = Role::Node;
            this.peer = Some(Box::<Peer>::default());
            this.who = Who { client, session, name: name.into() };
        }
        self.answered_by_driver(conn);
        true
    }

    /// Turns the connection into a link: announces all interest of our clients, and from now on the changes.
    pub fn link(&mut self, conn: u32) -> Checked<()> {
        if self.limits.links == 0 {
            return Err(Fault::new(code::REFUSED, "this engine was made for no links"));
        }
        match self.conn(conn) {
            Some(this) if this.state == State::Open && this.role == Role::Node => this.role = Role::Link,
            _ => return Err(Fault::new(code::REFUSED, "only a node that was let in can become a link")),
        }
        // Announce changes to the other links first, since the new link gets all interest including these.
        self.tell_interest();
        self.links.push(conn);
        let mut frames = self.interest.all();
        let last = frames.pop().unwrap_or_default();
        for (count, entries) in frames {
            self.interest_frame(conn, 0, count, &entries);
        }
        self.interest_frame(conn, flag::SYNCED, last.0, &last.1);
        self.answered_by_driver(conn);
        Ok(())
    }

    fn interest_frame(&mut self, conn: u32, flags: u8, count: u16, entries: &[u8]) {
        self.put(conn, |out| {
            Writer::new(out, kind::INTEREST, flags).u16(count).bytes(entries).end();
        });
    }

    /// Announces changes to all links.
    #[inline]
    pub(in crate::engine) fn tell_interest(&mut self) {
        if self.interest.has_changed() {
            self.tell_changes();
        }
    }

    #[cold]
    fn tell_changes(&mut self) {
        for (count, entries) in self.interest.changes() {
            for conn in self.links.clone() {
                self.interest_frame(conn, 0, count, &entries);
            }
        }
    }

    /// Sets the longest frame that another node accepts for its clients. Longer messages are not sent to it.
    pub fn limit_link(&mut self, conn: u32, frame: usize) {
        if let Some(peer) = self.conn(conn).and_then(|this| this.peer.as_mut()) {
            peer.frame = Some(frame);
            self.shortest = self.shortest.min(frame);
        }
    }

    /// The members of a group that accept a message of this size; all members if none does, so that one misses it.
    #[cold]
    pub(in crate::engine) fn who_take(&self, members: &[Member], size: usize) -> Vec<Member> {
        let takes = |m: &&Member| !self.conns[m.conn as usize].as_deref().is_some_and(|this| this.is_too_long(size));
        let some: Vec<_> = members.iter().filter(takes).copied().collect();
        if some.is_empty() {
            members.to_vec()
        } else {
            some
        }
    }

    /// The maximum length of a topic. A topic from another node was already checked there.
    pub(in crate::engine) fn topic_limit(&self, conn: u32) -> usize {
        if self.role(conn) == Role::Client {
            self.limits.topic
        } else {
            usize::from(u16::MAX)
        }
    }

    /// Reports to another node that its clients miss a message that is too long for the link.
    #[cold]
    pub(in crate::engine) fn leave_out(&mut self, to: u32, ids: &[u32], plain: bool) -> bool {
        if let Some(this) = self.conn(to).filter(|_| plain) {
            this.count.dropped += 1;
            this.outbox.miss(ids);
            self.queue(to);
        }
        false
    }

    /// Returns why an answer can't be sent to another node, or None.
    pub(in crate::engine) fn too_long_for(&self, conn: u32, size: usize) -> Option<Fault> {
        let this = self.conns.get(conn as usize)?.as_deref()?;
        let limit = this.peer.as_ref()?.frame.filter(|_| this.is_too_long(size))?;
        let text = format!("{size} bytes with the frame, but the other node of the cluster takes {limit}");
        Some(Fault::new(code::FRAME_TOO_LARGE, text))
    }

    /// Sends a control frame to another node.
    pub fn node(&mut self, conn: u32, kind: u16, number: u64, body: &[u8], ordered: bool) {
        self.put(conn, |out| {
            Writer::new(out, kind::NODE, if ordered { flag::ORDERED } else { 0 })
                .u16(kind)
                .u64(number)
                .bytes(body)
                .end();
        });
    }

    /// Processes a frame of another node, and further messages with the same head.
    #[inline(never)] // keeps the code for clients' messages small
    pub(in crate::engine) fn link_frame(&mut self, conn: u32, data: &[u8], size: usize) -> Checked<(Flow, usize)> {
        let frame = &data[..size];
        let (kind, flags) = (frame[4], frame[5]);
        let mut parts = Parts::of(frame);
        match kind {
            kind::NODE => {
                no_flags(frame, flag::ORDERED)?;
                let (kind, number, body) = (parts.u16()?, parts.u64()?, parts.rest().into());
                self.events.push(Event::Node { conn, kind, number, body });
                if flags & flag::ORDERED != 0 {
                    // The driver handles it before later frames.
                    self.yield_to_others(conn);
                    return Ok((Flow::Stop, size));
                }
            }
            kind::PONG => {
                no_flags(frame, 0)?;
                let token = parts.u64()?;
                self.events.push(Event::Pong { conn, token });
            }
            kind::PING | kind::CLOSE => return Ok((self.other(conn, frame)?, size)),
            _ if self.role(conn) == Role::Node => {
                // The peer may already send as a link, while our driver has not handled its last NODE frame.
                if let Some(this) = self.conn(conn) {
                    this.waiting = true;
                }
                self.events.push(Event::Pause(conn));
                return Ok((Flow::Wait, 0));
            }
            kind::DELIVER => return self.deliver_in(conn, data, size).map(|used| (Flow::Go, used)),
            kind::RECORD => self.record_in(conn, frame)?,
            kind::TOPIC | kind::ACCEPT | kind::REPLY | kind::CANCEL | kind::HOLD => {
                return Ok((self.other(conn, frame)?, size));
            }
            kind::SENDER => {
                no_flags(frame, 0)?;
                parts.u16()?;
                self.name_sender(conn, parts)?;
            }
            kind::STREAM => {
                no_flags(frame, 0)?;
                let (level, stream, name) = (parts.u16()?, parts.u32()?, parts.rest());
                self.name_stream(conn, stream, level, name)?;
            }
            kind::GAP => {
                no_flags(frame, 0)?;
                parts.u16()?;
                let (_, stream, from) = (parts.u32()?, parts.u32()?, parts.u64()?);
                let peer = self.conn(conn).and_then(|this| this.peer.as_ref());
                let known = peer.and_then(|peer| peer.streams.get(&stream).copied());
                let stream = known.ok_or_else(|| Fault::protocol("GAP of an unnamed stream"))?;
                self.all_behind(stream, from);
            }
            kind::INTEREST => {
                no_flags(frame, flag::SYNCED)?;
                let count = parts.u16()?;
                for _ in 0..count {
                    self.interest_in(conn, &mut parts)?;
                }
                if flags & flag::SYNCED != 0 {
                    self.events.push(Event::Synced(conn));
                }
                if count >= MUCH {
                    self.yield_to_others(conn);
                    return Ok((Flow::Stop, size));
                }
            }
            kind::OFFER | kind::CALL | kind::ASK => self.wish_in(conn, frame)?,
            kind::MISSED => {
                no_flags(frame, 0)?;
                parts.u16()?;
                let (id, count) = (parts.u32()?, parts.u64()?);
                self.missed_in(id, count);
            }
            _ => return Err(Fault::protocol(format!("a frame of kind {kind:#04x} has no place on a link"))),
        }
        Ok((Flow::Go, size))
    }

    /// SENDER: assigns a client of that node to a slot.
    fn name_sender(&mut self, conn: u32, mut parts: Parts) -> Checked<()> {
        let (slot, session, name) = (parts.u32()? as usize, parts.u64()?, parts.rest_text()?);
        if slot >= self.limits.senders {
            return Err(Fault::protocol(format!("sender slot {slot}, the limit is {}", self.limits.senders)));
        }
        if name.len() > NAME {
            return Err(Fault::protocol(format!("a client's name of {} bytes", name.len())));
        }
        self.remote_clients = self.remote_clients.wrapping_add(1) % REMOTE_CLIENTS;
        let client = REMOTE_CLIENTS + self.remote_clients;
        let Some(peer) = self.conn(conn).and_then(|this| this.peer.as_mut()) else { return Ok(()) };
        if slot >= peer.senders.len() {
            peer.senders.resize(slot + 1, None);
        }
        peer.senders[slot] = Some(Arc::new(Who { client, session, name: name.into() }));
        Ok(())
    }

    /// STREAM: assigns a stream of that node to a number. Our clients know it under a number of ours.
    fn name_stream(&mut self, conn: u32, stream: u32, level: u16, name: &[u8]) -> Checked<()> {
        if name.get(16..).is_none_or(|name| name.len() > NAME || std::str::from_utf8(name).is_err()) {
            return Err(Fault::protocol("STREAM without a name"));
        }
        let at = self.remote_stream(name)?;
        if level != 0 {
            self.set_level(at, level);
        }
        if let Some(peer) = self.conn(conn).and_then(|this| this.peer.as_mut()) {
            peer.streams.insert(stream, at);
        }
        Ok(())
    }

    /// Our number of a remote stream, by its guid and name.
    pub fn remote_stream(&mut self, name: &[u8]) -> Checked<u32> {
        let known = self.remote_streams.iter().position(|known| *known.name == *name);
        let at = known.unwrap_or(self.remote_streams.len());
        if at >= STREAMS {
            return Err(Fault::new(code::TOO_MANY_STREAMS, format!("{STREAMS} streams of other nodes are known")));
        }
        if known.is_none() {
            self.remote_streams.push(RemoteStream { name: name.into(), level: 0, done: 0 });
        }
        Ok(REMOTE + at as u32)
    }

    /// Processes an entry of INTEREST.
    fn interest_in(&mut self, conn: u32, parts: &mut Parts) -> Checked<()> {
        let (what, flags, policy, _) = (parts.u8()?, parts.u8()?, parts.u8()?, parts.u8()?);
        let id = parts.u32()?;
        let limits = self.limits;
        let Some(this) = self.conn(conn) else { return Ok(()) };
        match what {
            op::UNSUBSCRIBE => {
                if let Some(key) = this.subs.remove(&id) {
                    self.let_go(conn, id);
                    self.drop_subscription(key);
                }
                return Ok(());
            }
            op::UNSERVE => {
                self.unserve_remote(conn, id);
                return Ok(());
            }
            op::SUBSCRIBE | op::SERVE => {}
            _ => return Err(Fault::protocol(format!("an entry of interest that is {what}"))),
        }
        let (text, group, rules) = (parts.str16()?, parts.str16()?, parts.bin32()?);
        if this.subs.len() + this.services.len() >= limits.links {
            let text = format!("that node asks for more than {} things; raise the limit of links", limits.links);
            return Err(Fault::new(code::TOO_MANY_SUBSCRIPTIONS, text));
        }
        if this.subs.contains_key(&id) || this.services.contains_key(&id) {
            return Err(Fault::protocol(format!("interest {id} is told twice")));
        }
        if what == op::SERVE {
            return self.serve_remote(conn, id, text, flags & (flag::SHARED | flag::ASKS));
        }
        if policy >= policy::DISCONNECT || flags & !(flag::LISTEN | flag::SINCE) != 0 {
            return Err(Fault::protocol(format!("interest with policy {policy} and flags {flags:#04x}")));
        }
        self.insert_subscription(conn, id, flags, policy, text, group, rules)
    }

    /// Parses the common parts of frames with a message. No topic: the topic can't be stored here.
    pub(in crate::engine) fn arrived(&mut self, conn: u32, frame: &[u8], more: usize) -> Checked<Arrived> {
        let short = || Fault::protocol(format!("frame of kind {:#04x} is too short", frame[4]));
        let count =
            usize::from(frame.get(..HEAD).map(|head| u16::from_le_bytes([head[6], head[7]])).ok_or_else(short)?);
        let body = HEAD + 4 * count + more;
        if count == 0 || frame.len() < body + 16 {
            return Err(short());
        }
        let (topic, sender) = (u32_at(frame, 8), u32_at(frame, 12));
        let Some(this) = self.conn(conn) else { return Err(Fault::protocol("no connection")) };
        this.count.received += 1;
        let topic = match this.topics_in.get(topic as usize) {
            Some(Named::Topic { topic, .. }) => Some(*topic),
            Some(Named::Refused(_)) => None,
            _ => return Err(Fault::protocol(format!("topic slot {topic} was not filled"))),
        };
        self.stats.rejected += u64::from(topic.is_none());
        if let Some(topic) = topic {
            self.topics.count(topic, 1);
        }
        let who = self.conn(conn).and_then(|this| this.peer.as_ref()?.sender(sender));
        let who = who.ok_or_else(|| Fault::protocol(format!("sender slot {sender} was not filled")))?;
        Ok(Arrived { topic, who, body })
    }

    /// OFFER, CALL and ASK: an id, a number, and the message.
    fn wish_in(&mut self, conn: u32, frame: &[u8]) -> Checked<()> {
        no_flags(frame, flag::FIELDS | flag::GATHER)?;
        let Arrived { topic, who, body: at } = self.arrived(conn, frame, 8)?;
        if frame[6..8] != [1, 0] {
            return Err(Fault::protocol("an offer or a call is for one"));
        }
        let (id, flags, body) = (u32_at(frame, HEAD), frame[5], &frame[at..]);
        crate::engine::links::inbound::sound(flags, body)?;
        let number = u64::from_le_bytes(frame[at - 8..at].try_into().unwrap_or_default());
        let Some(topic) = topic else {
            if frame[4] == kind::CALL {
                self.reply_error(conn, number, &Fault::new(code::TOPIC_TOO_LONG, "the node that serves it refuses it"));
            } else {
                self.willing(conn, number, code::REFUSED);
            }
            return Ok(());
        };
        let wish = Wish { conn, flags, topic, who, id, number, body };
        match frame[4] {
            kind::OFFER => self.offer_in(wish),
            kind::CALL => self.call_in(&wish),
            _ => {
                self.ask_in(&wish);
                Ok(())
            }
        }
    }
}

/// Flags besides these are a fault.
pub(in crate::engine) fn no_flags(frame: &[u8], allowed: u8) -> Checked<()> {
    if frame[5] & !allowed == 0 {
        return Ok(());
    }
    Err(Fault::protocol(format!("unknown flags {:#04x} on a frame of kind {:#04x}", frame[5], frame[4])))
}
