//! Retained messages, copies for listeners, and the frames of shared services that the driver sends.

use super::publish::{From, Passing};
use super::{Engine, Event};
use crate::engine::connection::{Role, Who};
use crate::engine::links::scope::{request_scope, scope_of};
use crate::matching::route::{Member, Team};
use crate::matching::topic;
use crate::wire::frame::{code, flag, kind, policy, Checked, Fault, Writer, HEAD};
use crate::wire::splitter::Flow;

/// Calls with numbers of the driver have this bit.
pub const DRIVEN: u64 = 1 << 63;

/// A retained message, as the driver stores it.
#[derive(Debug)]
pub struct Kept<'a> {
    /// The number, session and name of its sender as a client.
    pub client: u32,
    pub session: u64,
    pub name: &'a str,
    pub flags: u8,
    pub topic: &'a str,
    pub body: &'a [u8],
}

impl Engine {
    /// A PUBLISH that is to be retained: the driver decides, and resumes the connection.
    pub(super) fn keep(&mut self, conn: u32, topic: u32, frame: &[u8]) -> Checked<Flow> {
        if (frame[5] & flag::POST != 0) == (frame[5] & flag::PIN != 0) {
            return Err(Fault::protocol("a kept message is either a post or a pin"));
        }
        let topic = self.topics.text(topic).into();
        self.hold(conn, Event::Keep { conn, topic, frame: frame.into() });
        Ok(Flow::Stop)
    }

    /// Delivers a retained message to current subscribers, and to one member of each group. Returns how many
    /// connections received it, and the groups. The driver sends it to other nodes with the groups that are `served`,
    /// so over links it goes only to a member of a group without members here.
    pub fn publish_kept(&mut self, kept: &Kept, served: Option<&[String]>) -> (u64, Vec<String>) {
        let topic = self.topics.use_text(kept.topic);
        let passing = Passing::new(kind::DELIVER, kept.flags, topic, kept.body);
        let who = Who { client: kept.client, session: kept.session, name: kept.name.into() };
        let own = self.sessions.get(&kept.session).copied();
        let from = whose(&who, own, served.is_some());
        let (mut to, teams) = self.chosen(from, &passing, |member| member.echo || own != Some(member.conn));
        let size = HEAD + kept.body.len();
        // If a message is too long for a node, it is reported that its clients miss it.
        let long = |conn: u32| self.conns[conn as usize].as_deref().is_some_and(|this| this.is_too_long(size));
        let mut links: Vec<u32> = to.iter().filter(|member| member.link).map(|member| member.conn).collect();
        to.retain(|member| !member.link || !from.is_remote() && long(member.conn));
        links.retain(|&conn| !from.is_remote() && !long(conn));
        links.dedup();
        let mut groups = Vec::new();
        for (group, members) in teams {
            let name = &self.groups[group as usize].name;
            if served.is_some_and(|served| served.iter().any(|known| **known == **name)) {
                continue;
            }
            let name = name.to_string();
            let members = if size <= self.shortest { members } else { self.who_take(&members, size) };
            if let Some(member) = self.pick(from, group, &members) {
                to.push(member);
                groups.push(name);
            }
        }
        let mut receivers = links.len() as u64;
        for (conn, ids, policy) in by_connection(to) {
            let taken = self.deliver(from, conn, passing, &ids, policy, &mut u32::MAX.clone());
            receivers += u64::from(taken && !links.contains(&conn));
        }
        self.topics.unuse(topic);
        (receivers, groups)
    }

    /// The driver resumes a connection.
    pub fn settle_held(&mut self, conn: u32) {
        self.answered_by_driver(conn);
    }

    /// Delivers a retained message to a connection, or its withdrawal.
    pub fn deliver_retained(&mut self, conn: u32, subs: &[u32], kept: &Kept) -> bool {
        if subs.is_empty() || !self.is_open(conn) {
            return false;
        }
        let topic = self.topics.use_text(kept.topic);
        let passing = Passing::new(kind::DELIVER, kept.flags, topic, kept.body);
        let from = From::Kept(kept.client, kept.session, kept.name);
        let taken = self.append(from, conn, passing, subs, policy::BLOCK, &mut u32::MAX.clone());
        self.topics.unuse(topic);
        taken
    }

    /// Counts a message that these subscriptions miss for lack of room, and reports it to the client.
    pub fn miss(&mut self, conn: u32, subs: &[u32]) {
        if subs.is_empty() || !self.is_open(conn) {
            return;
        }
        if let Some(this) = self.conn(conn) {
            this.count.dropped += 1;
            this.outbox.miss(subs);
        }
        self.queue(conn);
    }

    /// Delivers copies of a push or request to listeners. They do not block.
    pub(super) fn copy(&mut self, conn: u32, topic: u32, frame: &[u8], mark: u8) {
        if self.index.listeners == 0 {
            return;
        }
        let (from, flags) = (From::Conn(conn), frame[5] & flag::FIELDS | mark);
        let scope = if frame[4] == kind::REQUEST { request_scope(frame) } else { scope_of(frame) };
        let passing = Passing { scope, ..Passing::new(kind::DELIVER, flags, topic, &frame[HEAD..]) };
        let (mut to, teams) = self.chosen(from, &passing, |member| member.listen);
        for (group, members) in teams {
            to.extend(self.pick(from, group, &members));
        }
        for (conn, ids, policy) in by_connection(to) {
            let policy = if policy == policy::BLOCK { policy::DROP_NEW } else { policy };
            self.deliver(from, conn, passing, &ids, policy, &mut u32::MAX.clone());
        }
    }

    /// Reports a withdrawal to watching clients: to each member of a group, since each got the message.
    pub fn withdraw(&mut self, kept: &Kept, remote: bool) {
        if self.index.watchers == 0 {
            return;
        }
        let topic = self.topics.use_text(kept.topic);
        let flags = kept.flags | flag::WITHDRAWN;
        let passing = Passing::new(kind::DELIVER, flags, topic, kept.body);
        let who = Who { client: kept.client, session: kept.session, name: kept.name.into() };
        let own = self.sessions.get(&kept.session).copied();
        let from = whose(&who, own, remote);
        let wants = |member: &Member| member.watch && !member.link && (member.echo || own != Some(member.conn));
        let (mut to, teams) = self.chosen(from, &passing, wants);
        to.extend(teams.into_iter().flat_map(|(_, members)| members));
        for (conn, ids, _) in by_connection(to) {
            self.append(from, conn, passing, &ids, policy::BLOCK, &mut u32::MAX.clone());
        }
        self.topics.unuse(topic);
    }

    /// The subscriptions of some kind that match a message: outside of groups, and by group.
    pub(super) fn chosen(
        &mut self,
        from: From,
        passing: &Passing,
        wants: impl Fn(&Member) -> bool,
    ) -> (Vec<Member>, Vec<(u32, Vec<Member>)>) {
        let route = self.topics.route(passing.topic, &mut self.index);
        let narrowed = self.narrow(from, passing, &route);
        let way = narrowed.as_ref().unwrap_or(&route);
        let own = |m: &Member| matches!(from, From::Conn(conn) if conn == m.conn) && !m.echo;
        let wanted = |m: &Member| wants(m) && !own(m);
        let alone = way.alone().filter(wanted).collect();
        let members = |team: &Team| team.members.iter().filter(|m| wanted(m)).copied().collect();
        let teams = way.teams.iter().map(|team| (team.group, members(team))).collect();
        self.widen(passing.topic, route, narrowed);
        (alone, teams)
    }

    /// Sends an ASK or a CALL to a provider of a shared service; false: its connection has no room.
    pub fn pass(&mut self, ask: bool, to: (u32, u32), call: u64, origin: u32, topic: &str, frame: &[u8]) -> bool {
        let ((conn, service), limit) = (to, self.limits.outbox);
        if frame.len() < HEAD || self.conn(conn).is_none_or(|this| this.outbox.bytes() >= limit) {
            return false;
        }
        let topic = self.topics.use_text(topic);
        let kind = if ask { kind::ASK } else { kind::CALL };
        let remote = self.caller(origin, frame);
        // Another node gathers the replies of its own clients.
        let gather = if self.role(conn) == Role::Client { 0 } else { flag::GATHER };
        let flags = frame[5] & (flag::FIELDS | gather);
        let passing = Passing { answer: Some(call | DRIVEN), ..Passing::new(kind, flags, topic, &frame[HEAD..]) };
        let from = remote.as_deref().map_or(From::Conn(origin), From::Remote);
        let taken = self.deliver(from, conn, passing, &[service], 0, &mut u32::MAX.clone());
        self.topics.unuse(topic);
        taken
    }

    /// The driver's REPLY to the requester of a shared service; one without PARTIAL is the last.
    pub fn answer(&mut self, conn: u32, number: u64, flags: u8, code: u16, fields: &[u8], payload: &[u8]) {
        if flags & flag::PARTIAL == 0 {
            self.done(conn, number);
        }
        if let Some(fault) = self.too_long_for(conn, HEAD + fields.len() + payload.len()) {
            self.answer_instead(conn, number, flags, &fault);
            return;
        }
        let flags = if fields.is_empty() { flags & !flag::FIELDS } else { flags | flag::FIELDS };
        self.put(conn, |out| {
            let frame = Writer::new(out, kind::REPLY, flags).u16(code).u64(number);
            if fields.is_empty() {
                frame.bytes(payload).end();
            } else {
                frame.bin32(fields).bytes(payload).end();
            }
        });
    }

    /// Checks the topic of a service.
    pub(super) fn may_serve(text: &str, limit: usize) -> Checked<&str> {
        if text.len() > limit {
            return Err(Fault::new(code::TOPIC_TOO_LONG, format!("the limit is {limit} bytes")));
        }
        let checked = topic::check(text)?;
        if topic::has_wildcard(checked) {
            return Err(Fault::new(code::WILDCARD, "a service takes no wildcards"));
        }
        if topic::is_reserved(checked) {
            return Err(Fault::new(code::RESERVED, "the topic belongs to the broker"));
        }
        Ok(checked)
    }
}

/// The sender of a retained message, as receivers see it.
fn whose(who: &Who, own: Option<u32>, remote: bool) -> From<'_> {
    match own {
        _ if remote => From::Remote(who),
        Some(conn) => From::Conn(conn),
        None => From::Kept(who.client, who.session, &who.name),
    }
}

/// One copy per connection: its subscriptions, and the policy of the first.
pub(super) fn by_connection(to: Vec<Member>) -> Vec<(u32, Vec<u32>, u8)> {
    let mut all: Vec<_> = to.into_iter().map(|m| (m.conn, m.id, m.policy)).collect();
    all.sort_unstable();
    let each = all.chunk_by(|a, b| a.0 == b.0);
    each.map(|chunk| (chunk[0].0, chunk.iter().map(|&(_, id, _)| id).collect(), chunk[0].2)).collect()
}
