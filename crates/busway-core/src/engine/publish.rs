//! Publishing: finds the topic and the matching subscriptions, and writes one copy into each outbox.

use super::Engine;
use crate::engine::connection::{Named, State, Who};
use crate::engine::links::scope::{reaches, scope_of};
use crate::matching::grants::verb;
use crate::matching::index::Subscription;
use crate::matching::route::{Member, Route, Team};
use crate::matching::rule_filter::Asked;
use crate::matching::rules::Seen;
use crate::wire::fields::{merge, Fields};
use crate::wire::frame::{code, flag, kind, policy, scope, Body, Checked, Fault, Writer, HEAD};
use crate::wire::slots::Slot;
use crate::wire::splitter::Flow;

/// The flags of retained messages.
pub(super) const LIVES: u8 = flag::POST | flag::PIN | flag::UNKEEP;

/// The size of a record beyond the message that was stored.
const MORE: usize = 128 << 10;

/// A message that is being delivered, as a view of its frame.
#[derive(Clone, Copy)]
pub(super) struct Passing<'a> {
    pub kind: u8,
    pub flags: u8,
    pub topic: u32,
    /// The number of the offer or call.
    pub answer: Option<u64>,
    pub body: &'a [u8],
    /// Stream and offset of a stored message.
    pub place: Option<(u32, u64)>,
    pub scope: u8,
}

impl<'a> Passing<'a> {
    pub fn new(kind: u8, flags: u8, topic: u32, body: &'a [u8]) -> Self {
        Self { kind, flags, topic, answer: None, body, place: None, scope: scope::GLOBAL }
    }
}

/// The sender of a message.
#[derive(Clone, Copy)]
pub(super) enum From<'a> {
    Conn(u32),
    /// A client that may be disconnected: its number, session and name.
    Kept(u32, u64, &'a str),
    /// A client of another node.
    Remote(&'a Who),
}

impl From<'_> {
    fn is(&self, conn: u32) -> bool {
        matches!(self, Self::Conn(from) if *from == conn)
    }

    pub fn is_remote(&self) -> bool {
        matches!(self, Self::Remote(_))
    }
}

pub(super) fn u32_at(frame: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([frame[at], frame[at + 1], frame[at + 2], frame[at + 3]])
}

/// The number of complete plain publishes on the topic of `first` at the start of `rest`, and their bytes; as
/// deliveries with one id they must fit into `room`.
fn same(first: &[u8], rest: &[u8], limit: usize, room: usize) -> (usize, u64) {
    let (mut at, mut count, mut total) = (0, 0, 0);
    while let Some(head) = rest.get(at..at + HEAD) {
        let size = u32_at(head, 0) as usize + 4;
        total += size + 4;
        // The first one is plain and has no scope, so kind, flags, scope and topic must be equal.
        let plain = head[4..12] == first[4..12];
        if !plain || size < HEAD + 16 || size > limit || size > rest.len() - at || total > room {
            break;
        }
        at += size;
        count += 1;
    }
    (at, count)
}

/// The number of a message, whose frame must be long enough.
pub(super) fn number_of(frame: &[u8]) -> u64 {
    let mut bytes = [0; 8];
    bytes.copy_from_slice(&frame[HEAD + 8..HEAD + 16]);
    u64::from_le_bytes(bytes)
}

impl Engine {
    /// Checks the common parts of PUBLISH, PUSH and REQUEST, and the grants of the verb. Returns the topic, or why it
    /// was refused. The broker's own services check the grants of requests to them.
    #[inline]
    pub(super) fn admit(&mut self, conn: u32, frame: &[u8], allowed: u8, verb: u8) -> Checked<Result<u32, Fault>> {
        let flags = frame[5];
        if frame.len() < HEAD + 16 {
            return Err(Fault::protocol(format!("frame of kind {:#04x} is too short", frame[4])));
        }
        if flags & !allowed != 0 {
            return Err(Fault::protocol(format!("unknown flags {flags:#04x} on a frame of kind {:#04x}", frame[4])));
        }
        let fields_limit = self.limits.fields;
        let Some(this) = self.conn(conn) else { return Err(Fault::protocol("no connection")) };
        this.count.received += 1;
        if flags & flag::FIELDS != 0 {
            let size = frame.get(HEAD + 16..HEAD + 20).map(|_| u32_at(frame, HEAD + 16) as usize);
            let Some(size) = size.filter(|size| HEAD + 20 + size <= frame.len()) else {
                return Err(Fault::protocol("fields longer than their frame"));
            };
            if size > fields_limit {
                let text = format!("fields of {size} bytes, the limit is {fields_limit}");
                return Ok(Err(Fault::new(code::FIELDS_TOO_LARGE, text)));
            }
            if let Err(fault) = Fields::read(&frame[HEAD + 20..HEAD + 20 + size]) {
                return Ok(Err(fault));
            }
        }
        let slot = u32_at(frame, 8);
        match this.topics_in.get(slot as usize) {
            Some(&Named::Topic { topic, asked, allowed }) => {
                if this.grants.is_some() && asked & allowed & 1 << verb == 0 && !self.topics.is_reserved(topic) {
                    let permitted = self.permit(conn, slot, verb).map(|()| topic);
                    self.topics.count(topic, i64::from(permitted.is_ok()));
                    return Ok(permitted);
                }
                self.topics.count(topic, 1);
                Ok(Ok(topic))
            }
            Some(Named::Refused(code)) => Ok(Err(Fault::new(*code, "the topic was refused when it was named"))),
            _ => Err(Fault::protocol(format!("topic slot {slot} was not filled"))),
        }
    }

    pub(super) fn publish(&mut self, conn: u32, data: &[u8], size: usize) -> Checked<(Flow, usize)> {
        let frame = &data[..size];
        if self.defer(conn, frame) {
            return Ok((Flow::Go, size));
        }
        let allowed = match frame[5] & (flag::DURABLE | flag::TIMES) {
            0 => flag::FIELDS | flag::CONFIRM | LIVES,
            // Stored messages are always answered and never retained; only they have times.
            flag::TIMES => return Err(Fault::protocol("times of a message that is not stored")),
            _ => flag::FIELDS | flag::DURABLE | flag::TIMES,
        };
        let verb = match frame[5] {
            flags if flags & LIVES != 0 => verb::RETAIN,
            flags if flags & flag::DURABLE != 0 => verb::STORE,
            _ => verb::PUBLISH,
        };
        let topic = match self.admit(conn, frame, allowed, verb)? {
            Ok(topic) if !self.topics.is_reserved(topic) => topic,
            refused => {
                let fault =
                    refused.err().unwrap_or_else(|| Fault::new(code::RESERVED, "the topic belongs to the broker"));
                self.reject(conn, number_of(frame), &fault);
                return Ok((Flow::Go, size));
            }
        };
        if frame[5] & LIVES != 0 {
            return self.keep(conn, topic, frame).map(|flow| (flow, size));
        }
        let durable = frame[5] & flag::DURABLE != 0;
        if durable && scope_of(frame) != scope::GLOBAL {
            let fault = Fault::new(code::INVALID_SETTING, "a stored message is for everybody, so it takes no scope");
            self.reject(conn, number_of(frame), &fault);
            return Ok((Flow::Go, size));
        }
        if durable && self.crowded.is_empty() && self.holding.is_empty() {
            return self.store(conn, topic, frame).map(|flow| (flow, if flow == Flow::Wait { 0 } else { size }));
        }
        let mut route = self.topics.route(topic, &mut self.index);
        if route.too_complex {
            self.topics.keep(topic, route);
            let fault = Fault::too_complex(self.topics.text(topic));
            self.reject(conn, number_of(frame), &fault);
            return Ok((Flow::Go, size));
        }
        let flags = frame[5] & flag::FIELDS;
        let scope = scope_of(frame);
        let passing = Passing { scope, ..Passing::new(kind::DELIVER, flags, topic, &frame[HEAD..]) };
        let mut narrowed = self.narrow(From::Conn(conn), &passing, &route);
        if !(self.crowded.is_empty() && self.holding.is_empty()) {
            let stream = durable.then(|| self.stream_of(topic));
            if let Some((slow, held)) = self.obstacle(conn, narrowed.as_ref().unwrap_or(&route), stream) {
                self.widen(topic, route, narrowed);
                if let Some(this) = self.conn(conn) {
                    // Processed again, so not counted twice.
                    this.count.received -= 1;
                }
                self.topics.count(topic, -1);
                self.block(conn, slow, held);
                let deferred = !self.late && self.defer(conn, frame);
                return Ok(if deferred { (Flow::Go, size) } else { (Flow::Wait, 0) });
            }
        }
        if durable {
            self.widen(topic, route, narrowed);
            return self.store(conn, topic, frame).map(|flow| (flow, if flow == Flow::Wait { 0 } else { size }));
        }
        let receivers = self.fan_out(From::Conn(conn), passing, narrowed.as_mut().unwrap_or(&mut route));
        let plain = frame[5..8] == [0; 3] && narrowed.is_none() && self.defaults.is_empty();
        let more = if plain { self.follow(conn, topic, frame, &data[size..], &route) } else { 0 };
        self.widen(topic, route, narrowed);
        if receivers == 0 {
            self.stats.unroutable += 1;
        }
        if frame[5] & flag::CONFIRM != 0 {
            self.result(conn, number_of(frame), code::OK, receivers, "");
        }
        Ok((Flow::Go, size + more))
    }

    /// Selects the receivers of this message by rules and scope. `widen` returns the buffers.
    pub(super) fn narrow(&mut self, from: From, passing: &Passing, route: &Route) -> Option<Box<Route>> {
        let Some(choice) = route.choice.as_ref() else {
            return if passing.scope == scope::GLOBAL { None } else { Some(self.within(passing.scope, route)) };
        };
        let body = Body::of(passing.body, passing.flags).ok()?;
        let fields = Fields::read(body.fields).unwrap_or_default();
        let (sender, session) = match from {
            From::Conn(from) => self.conns[from as usize].as_ref().map(|from| (&*from.who.name, from.who.session))?,
            From::Kept(_, session, name) => (name, session),
            From::Remote(who) => (&*who.name, who.session),
        };
        let (time, payload) = (body.time, body.payload);
        let seen = Seen { fields: &fields, topic: self.topics.text(passing.topic), sender, session, time, payload };
        let mut wanted = std::mem::take(&mut self.wanted);
        let asked = choice.select(&self.index, &seen, &mut wanted);
        if passing.scope != scope::GLOBAL || self.index.scoped > 0 {
            wanted.retain(|sub| reaches(sub, passing.scope, from.is_remote()));
        }
        Some(self.narrowed_to(wanted, asked))
    }

    /// Builds the route to these subscriptions.
    pub(super) fn narrowed_to(&mut self, mut wanted: Vec<Subscription>, asked: Asked) -> Box<Route> {
        self.stats.rule_errors += asked.errors;
        self.index.expressions.steps += asked.steps;
        let mut narrowed = std::mem::take(&mut self.narrowed);
        narrowed.fill(&mut wanted);
        wanted.clear();
        self.wanted = wanted;
        narrowed
    }

    pub(super) fn widen(&mut self, topic: u32, route: Box<Route>, narrowed: Option<Box<Route>>) {
        self.topics.keep(topic, route);
        if let Some(narrowed) = narrowed {
            self.narrowed = narrowed;
        }
    }

    /// Processes a message with the fields that the server adds.
    pub(super) fn dress(&mut self, conn: u32, frame: &[u8]) -> Checked<(Flow, usize)> {
        let sound = frame.get(HEAD..).map_or_else(|| Body::of(&[], 0), |body| Body::of(body, frame[5]));
        let merged = sound.and_then(|body| merge(&Fields::read(body.fields)?, &self.defaults).map(|new| (new, body)));
        let mut dressed = Vec::new();
        if let Ok((fields, body)) = &merged {
            dressed.reserve(frame.len() + fields.len() + 4);
            let number = body.number.to_le_bytes();
            let head = Writer::new(&mut dressed, frame[4], frame[5] | flag::FIELDS).bytes(&frame[6..HEAD]);
            head.u64(body.time.cast_unsigned()).bytes(&number).bin32(fields).bytes(body.payload).end();
        }
        let flow = match (merged, frame[4]) {
            (Err(fault), _) if fault.code == code::PROTOCOL => return Err(fault),
            // The fields are invalid, or too many with those of the server.
            (Err(fault), kind::REQUEST) => {
                self.reply_error(conn, number_of(frame), &fault);
                Flow::Go
            }
            (Err(fault), _) => {
                self.reject(conn, number_of(frame), &fault);
                Flow::Go
            }
            (Ok(_), kind::PUBLISH) => self.publish(conn, &dressed, dressed.len())?.0,
            (Ok(_), _) => self.other(conn, &dressed)?,
        };
        Ok((flow, if flow == Flow::Wait { 0 } else { frame.len() }))
    }

    /// Processes plain publishes on the same topic after the first one, if the receivers are the same, have room, and
    /// know topic and sender. Returns the processed bytes.
    fn follow(&mut self, from: u32, topic: u32, first: &[u8], rest: &[u8], route: &Route) -> usize {
        if route.overlap || !route.teams.is_empty() {
            return 0;
        }
        let client = self.conns[from as usize].as_ref().map_or(0, |from| from.who.client);
        let (mark, mut room, mut limit) = (self.limits.mark(), usize::MAX, self.limits.frame);
        for target in &route.targets {
            let Some(this) = self.conns[target.conn as usize].as_deref() else { return 0 };
            let known = this.topics_out.is(target.slot, &topic)
                && this.last_sender.0 == client
                && this.senders_out.is(this.last_sender.1, &client);
            let alone = target.to - target.from == 1 && !(target.picky && target.conn == from);
            if !known || !alone || this.crowded || !this.held.is_empty() || this.state != State::Open {
                return 0;
            }
            room = room.min(mark.saturating_sub(this.outbox.bytes()));
            limit = this.peer.as_ref().and_then(|peer| peer.frame).map_or(limit, |most| limit.min(most));
        }
        let (used, count) = same(first, rest, limit, room);
        if count == 0 {
            return 0;
        }
        for target in &route.targets {
            let to = (target.slot, route.ids[target.from], target.policy);
            self.copy_run(target.conn, to, &rest[..used], HEAD);
        }
        if let Some(this) = self.conn(from) {
            this.count.received += count;
        }
        self.topics.count(topic, count.cast_signed());
        if route.targets.is_empty() {
            self.stats.unroutable += count;
        }
        used
    }

    /// Delivers to each target and to one member of each group. Returns how many connections received it.
    pub(super) fn fan_out(&mut self, from: From, passing: Passing, route: &mut Route) -> u64 {
        if route.overlap {
            return self.fan_out_merged(from, passing, route);
        }
        let mut receivers = 0;
        for target in &mut route.targets {
            if target.picky && from.is(target.conn) {
                let mut ids = std::mem::take(&mut self.scratch);
                ids.clear();
                ids.extend((target.from..target.to).filter(|&i| route.echo[i]).map(|i| route.ids[i]));
                receivers += u64::from(
                    !ids.is_empty() && self.deliver(from, target.conn, passing, &ids, target.policy, &mut target.slot),
                );
                self.scratch = ids;
                continue;
            }
            let ids = &route.ids[target.from..target.to];
            receivers += u64::from(self.deliver(from, target.conn, passing, ids, target.policy, &mut target.slot));
        }
        for team in &route.teams {
            if let Some(member) = self.pick_for(from, team, passing) {
                let mut slot = u32::MAX;
                receivers +=
                    u64::from(self.deliver(from, member.conn, passing, &[member.id], member.policy, &mut slot));
            }
        }
        receivers
    }

    /// As `fan_out`, for connections that are reached in several ways and get one copy.
    fn fan_out_merged(&mut self, from: From, passing: Passing, route: &Route) -> u64 {
        let mut all: Vec<(u32, u32, u8)> = Vec::new();
        for target in &route.targets {
            let wanted = (target.from..target.to).filter(|&i| !from.is(target.conn) || route.echo[i]);
            all.extend(wanted.map(|i| (target.conn, route.ids[i], target.policy)));
        }
        for team in &route.teams {
            all.extend(self.pick_for(from, team, passing).map(|m| (m.conn, m.id, m.policy)));
        }
        all.sort_unstable();
        let mut receivers = 0;
        for chunk in all.chunk_by(|a, b| a.0 == b.0) {
            let ids: Vec<u32> = chunk.iter().map(|&(_, id, _)| id).collect();
            let mut slot = u32::MAX;
            receivers += u64::from(self.deliver(from, chunk[0].0, passing, &ids, chunk[0].2, &mut slot));
        }
        receivers
    }

    /// Selects the member of a group that gets a message.
    #[inline]
    fn pick_for(&mut self, from: From, team: &Team, passing: Passing) -> Option<Member> {
        let size = HEAD + passing.body.len();
        if size <= self.shortest {
            return self.pick(from, team.group, &team.members);
        }
        let members = self.who_take(&team.members, size);
        self.pick(from, team.group, &members)
    }

    /// The next member in turn: own clients and members with room come first.
    pub(super) fn pick(&mut self, from: From, group: u32, members: &[Member]) -> Option<Member> {
        let turn = self.groups[group as usize].turn;
        self.groups[group as usize].turn = turn.wrapping_add(1);
        // Other nodes come last in a group and have their own turns, so that skipping them favours no member.
        let (ours, links) = match members.last() {
            Some(last) if last.link => members.split_at(members.partition_point(|member| !member.link)),
            _ => (members, &[][..]),
        };
        let near = self.next_in_turn(from, turn, ours);
        if links.is_empty() || from.is_remote() || near.is_some_and(|(room, _)| room) {
            return near.map(|(_, member)| member);
        }
        let remote = self.next_in_turn(from, turn, links);
        remote.filter(|(room, _)| *room).or(near).or(remote).map(|(_, member)| member)
    }

    /// The first in turn that has room; else one without, preferably of a crowded connection and not a held
    /// subscription.
    #[inline]
    fn next_in_turn(&self, from: From, turn: usize, members: &[Member]) -> Option<(bool, Member)> {
        let (mut second, mut last) = (None, None);
        for i in 0..members.len() {
            let member = members[turn.wrapping_add(i) % members.len()];
            let Some(this) = self.conns.get(member.conn as usize).and_then(Option::as_deref) else { continue };
            if this.state != State::Open || (from.is(member.conn) && !member.echo) {
                continue;
            }
            if this.held.contains_key(&member.id) {
                last = last.or(Some((false, member)));
            } else if this.crowded {
                second = second.or(Some((false, member)));
            } else {
                return Some((true, member));
            }
        }
        second.or(last)
    }

    /// Writes a delivery into an outbox by its policy. Returns whether it was accepted.
    pub(super) fn deliver(
        &mut self,
        from: From,
        to: u32,
        passing: Passing,
        ids: &[u32],
        policy: u8,
        slot: &mut u32,
    ) -> bool {
        let Some(this) = self.conns[to as usize].as_deref() else { return false };
        if this.state != State::Open {
            return false;
        }
        let (held, cursors) = (!this.held.is_empty(), !(this.cursors.is_empty() && this.since.is_empty()));
        let current = passing.place.filter(|_| cursors).map(|place| self.current(to, place, ids));
        let ids = current.as_deref().unwrap_or(ids);
        let plain = passing.kind == kind::DELIVER || passing.kind == kind::RECORD;
        let open = if plain && held {
            Some(self.unheld(from.is(to) || from.is_remote(), to, ids, passing.place.is_some()))
        } else {
            None
        };
        let ids = open.as_deref().unwrap_or(ids);
        !ids.is_empty() && self.append(from, to, passing, ids, policy, slot)
    }

    /// As `deliver`, even for held subscriptions.
    #[inline]
    pub(super) fn append(
        &mut self,
        from: From,
        to: u32,
        passing: Passing,
        ids: &[u32],
        policy: u8,
        slot: &mut u32,
    ) -> bool {
        let mark = self.limits.mark();
        let crowded = self.conns[to as usize].as_deref().is_some_and(|this| this.crowded);
        let plain = passing.kind == kind::DELIVER || passing.kind == kind::RECORD;
        // A record also contains its topic, for which a link has room.
        let size = if passing.place.is_some() { passing.body.len().saturating_sub(MORE) } else { passing.body.len() };
        if self.conns[to as usize].as_deref().is_some_and(|this| this.is_too_long(HEAD + size)) {
            return self.leave_out(to, ids, plain);
        }
        if crowded && plain && !self.make_room(to, ids, policy, from.is_remote()) {
            return false;
        }
        let (first, second) = if let Some((stream, _)) = passing.place {
            self.tell_stream(to, stream);
            (stream, 0)
        } else {
            if !self.conns[to as usize].as_ref().is_some_and(|this| this.topics_out.is(*slot, &passing.topic)) {
                *slot = self.topic_slot(to, passing.topic);
            }
            (*slot, self.sender_slot(to, from))
        };
        let Some(this) = self.conns[to as usize].as_deref_mut() else { return false };
        let keep = if policy == policy::DROP_OLDEST || !plain { 0 } else { flag::KEEP };
        let before = this.outbox.bytes();
        // A frame has a maximum number of ids; more go into several frames.
        for ids in ids.chunks(usize::from(u16::MAX)) {
            let answer = passing.answer.map(u64::to_le_bytes);
            let answer: &[u8] = answer.as_ref().map_or(&[], |bytes| bytes);
            let size = HEAD + 4 * ids.len() + answer.len() + passing.body.len();
            let mut head = [0; HEAD + 4];
            head[..4].copy_from_slice(&(size as u32 - 4).to_le_bytes());
            head[4] = passing.kind;
            head[5] = passing.flags | keep;
            head[6..8].copy_from_slice(&(ids.len() as u16).to_le_bytes());
            head[8..12].copy_from_slice(&first.to_le_bytes());
            head[12..16].copy_from_slice(&second.to_le_bytes());
            head[16..].copy_from_slice(&ids[0].to_le_bytes());
            this.outbox.push(&mut self.pool, size, |out| {
                out.reserve(size);
                out.extend_from_slice(&head);
                for id in &ids[1..] {
                    out.extend_from_slice(&id.to_le_bytes());
                }
                out.extend_from_slice(answer);
                out.extend_from_slice(passing.body);
            });
        }
        this.count.delivered += 1;
        this.count.delivered_bytes += (this.outbox.bytes() - before) as u64;
        let crowded = this.outbox.bytes() >= mark && !this.crowded;
        if !this.queued && this.writable {
            this.queued = true;
            self.ready.push(to);
        }
        if crowded {
            self.mark_crowded(to);
        }
        true
    }

    /// The slot of a topic on a connection. A new slot is announced.
    fn topic_slot(&mut self, to: u32, topic: u32) -> u32 {
        let Some(this) = self.conns[to as usize].as_deref_mut() else { return 0 };
        match this.topics_out.slot(&topic) {
            Slot::Known(slot) => slot,
            Slot::Filled(slot, gone) => {
                self.topics.use_again(topic);
                let text = self.topics.text(topic);
                this.outbox.push(&mut self.pool, 64, |out| {
                    Writer::new(out, kind::TOPIC, 0).u16(0).u32(slot).bytes(text.as_bytes()).end();
                });
                if let Some(gone) = gone {
                    self.topics.unuse(gone);
                }
                slot
            }
        }
    }

    #[inline]
    fn sender_slot(&mut self, to: u32, from: From) -> u32 {
        let client = match from {
            From::Conn(from) => self.conns[from as usize].as_ref().map_or(0, |from| from.who.client),
            From::Kept(client, ..) => client,
            From::Remote(who) => who.client,
        };
        let Some(this) = self.conns[to as usize].as_deref_mut() else { return 0 };
        if this.last_sender.0 == client && this.senders_out.is(this.last_sender.1, &client) {
            return this.last_sender.1;
        }
        let slot = match this.senders_out.slot(&client) {
            Slot::Known(slot) => slot,
            Slot::Filled(slot, _) => {
                let (session, name) = match from {
                    From::Conn(from) => {
                        let Some(from) = self.conns[from as usize].as_ref() else { return 0 };
                        (from.who.session, from.who.name.clone())
                    }
                    From::Kept(_, session, name) => (session, name.into()),
                    From::Remote(who) => (who.session, who.name.clone()),
                };
                let Some(this) = self.conns[to as usize].as_deref_mut() else { return 0 };
                this.outbox.push(&mut self.pool, 64, |out| {
                    Writer::new(out, kind::SENDER, 0).u16(0).u32(slot).u64(session).bytes(name.as_bytes()).end();
                });
                slot
            }
        };
        if let Some(this) = self.conns[to as usize].as_deref_mut() {
            this.last_sender = (client, slot);
        }
        slot
    }
}
