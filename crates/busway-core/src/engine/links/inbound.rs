//! Messages from other nodes: each arrives once per node, with the ids of the interest that it matches, for our
//! clients.

use std::sync::Arc;

use crate::engine::connection::{State, Who};
use crate::engine::links::scope::reaches;
use crate::engine::links::{no_flags, Arrived};
use crate::engine::publish::{u32_at, From, Passing};
use crate::engine::retained::by_connection;
use crate::engine::streams::REMOTE;
use crate::engine::Engine;
use crate::log::record::Record;
use crate::matching::index::Subscription;
use crate::matching::route::{Member, Route};
use crate::matching::rules::Seen;
use crate::wire::fields::Fields;
use crate::wire::frame::{flag, kind, policy, scope, Body, Checked, Fault, HEAD};

/// Checks the body of a message.
pub(in crate::engine) fn sound(flags: u8, body: &[u8]) -> Checked<()> {
    if flags & flag::FIELDS != 0 {
        Fields::read(Body::of(body, flags)?.fields).map_err(|fault| Fault::protocol(fault.text))?;
    }
    Ok(())
}

/// The number of complete deliveries with the head of `first` at the start of `rest`, and their bytes; with one id they
/// must fit into `room`.
fn same(first: &[u8], head: usize, rest: &[u8], limit: usize, room: usize) -> (usize, u64) {
    let (mut at, mut count, mut total) = (0, 0, 0);
    while let Some(next) = rest.get(at..at + head) {
        let size = u32_at(next, 0) as usize + 4;
        total += size;
        if next[4..] != first[4..head] || size < head + 16 || size > limit || size > rest.len() - at || total > room {
            break;
        }
        at += size;
        count += 1;
    }
    (at, count)
}

impl Engine {
    /// DELIVER of a link. Returns the processed bytes, including further deliveries with the same head.
    pub(in crate::engine) fn deliver_in(&mut self, conn: u32, data: &[u8], size: usize) -> Checked<usize> {
        let frame = &data[..size];
        let Arrived { topic, who, body: at } = self.arrived(conn, frame, 0)?;
        let (flags, body) = (frame[5] & !flag::KEEP, &frame[at..]);
        sound(flags, body)?;
        if flags & flag::WITHDRAWN != 0 {
            return Err(Fault::protocol("what is kept no longer is told by a NODE frame"));
        }
        let Some(topic) = topic else { return Ok(size) };
        let alone = self.wanted_by(&frame[HEAD..at]);
        let passing = Passing::new(kind::DELIVER, flags, topic, body);
        let marked = flags & (flag::PUSHED | flag::REQUESTED) != 0;
        if marked {
            self.pass_marked(&who, passing, alone);
            return Ok(size);
        }
        let mut route = self.topics.route(topic, &mut self.index);
        let mut narrowed = self.narrow(From::Remote(&who), &passing, &route);
        let more = alone && narrowed.is_none() && flags == 0 && self.named.is_empty();
        let way = narrowed.as_mut().unwrap_or(&mut route);
        if !(self.crowded.is_empty() && self.holding.is_empty()) {
            self.send_full(conn, &frame[HEAD..at], way, alone, false);
        }
        self.fan_in(&who, passing, way, alone);
        let more = if more { self.follow_in(conn, &who, topic, data, size, at, &route) } else { 0 };
        self.widen(topic, route, narrowed);
        Ok(size + more)
    }

    /// True if these ids contain interest outside of groups; the groups are collected in `named`.
    fn wanted_by(&mut self, ids: &[u8]) -> bool {
        let mut alone = false;
        self.named.clear();
        for id in ids.chunks_exact(4) {
            // The interest may have ended in the meantime.
            match self.interest.group(u32_at(id, 0)) {
                Some(Subscription::ALONE) => alone = true,
                Some(group) if !self.named.contains(&group) => self.named.push(group),
                _ => {}
            }
        }
        alone
    }

    /// Delivers to each of our clients outside of groups, and to a member of each named group.
    fn fan_in(&mut self, who: &Arc<Who>, passing: Passing, way: &mut Route, alone: bool) {
        let from = From::Remote(who);
        let mut receivers = 0;
        if self.named.is_empty() {
            for target in way.targets.iter_mut().filter(|target| alone && !target.link) {
                let ids = &way.ids[target.from..target.to];
                receivers += u64::from(self.deliver(from, target.conn, passing, ids, target.policy, &mut target.slot));
            }
        } else {
            let mut to: Vec<Member> = way.alone().filter(|member| alone && !member.link).collect();
            let named = std::mem::take(&mut self.named);
            for team in way.teams.iter().filter(|team| named.contains(&team.group)) {
                to.extend(self.pick(from, team.group, &team.members));
            }
            self.named = named;
            for (conn, ids, policy) in by_connection(to) {
                receivers += u64::from(self.deliver(from, conn, passing, &ids, policy, &mut u32::MAX.clone()));
            }
        }
        if receivers == 0 {
            self.stats.unroutable += 1;
        }
    }

    /// Delivers copies to listeners.
    fn pass_marked(&mut self, who: &Arc<Who>, passing: Passing, alone: bool) {
        let from = From::Remote(who);
        let (mut to, teams) = self.chosen(from, &passing, |member| !member.link && member.listen);
        if !alone {
            to.clear();
        }
        let named = std::mem::take(&mut self.named);
        for (group, members) in teams.into_iter().filter(|(group, _)| named.contains(group)) {
            to.extend(self.pick(from, group, &members));
        }
        self.named = named;
        for (conn, ids, policy) in by_connection(to) {
            // Listeners do not block.
            let policy = if policy == policy::BLOCK { policy::DROP_NEW } else { policy };
            self.deliver(from, conn, passing, &ids, policy, &mut u32::MAX.clone());
        }
    }

    /// RECORD of a link: a stored message of another node.
    pub(in crate::engine) fn record_in(&mut self, conn: u32, frame: &[u8]) -> Checked<()> {
        no_flags(frame, flag::KEEP)?;
        let wrong = || Fault::protocol("RECORD without a record");
        let head = frame.get(..HEAD).ok_or_else(wrong)?;
        let (count, stream) = (usize::from(u16::from_le_bytes([head[6], head[7]])), u32_at(head, 8));
        let (ids, bytes) = frame[HEAD..].split_at_checked(4 * count).filter(|_| count > 0).ok_or_else(wrong)?;
        let record = Record::read(bytes).filter(|record| record.bytes.len() == bytes.len()).ok_or_else(wrong)?;
        let stream = self.conn(conn).and_then(|this| {
            this.count.received += 1;
            this.peer.as_ref()?.streams.get(&stream).copied()
        });
        let stream = stream.filter(|&at| at >= REMOTE).ok_or_else(|| Fault::protocol("RECORD of an unnamed stream"))?;
        let alone = self.wanted_by(ids);
        let since = |id: &[u8]| self.interest.want(u32_at(id, 0)).is_some_and(|want| want.flags & flag::SINCE != 0);
        self.whole = ids.chunks_exact(4).any(since);
        let topic = self.topics.use_text(crate::matching::topic::check(record.topic)?);
        let mut route = self.topics.route(topic, &mut self.index);
        let mut narrowed = route.choice.as_ref().map(|choice| {
            let fields = Fields::read(record.fields.unwrap_or_default()).unwrap_or_default();
            let (sender, session, time, payload) = (record.sender, record.session(), record.time(), record.payload);
            let seen = Seen { fields: &fields, topic: record.topic, sender, session, time, payload };
            let mut wanted = std::mem::take(&mut self.wanted);
            let asked = choice.select(&self.index, &seen, &mut wanted);
            wanted.retain(|sub| reaches(sub, scope::GLOBAL, true));
            (wanted, asked)
        });
        let mut narrowed = narrowed.take().map(|(wanted, asked)| self.narrowed_to(wanted, asked));
        let way = narrowed.as_mut().unwrap_or(&mut route);
        if !(self.crowded.is_empty() && self.holding.is_empty()) {
            self.send_full(conn, ids, way, alone, true);
        }
        // A record contains its sender.
        let who = Arc::new(Who { client: 0, session: record.session(), name: "".into() });
        let place = Some((stream, record.offset()));
        self.fan_in(&who, Passing { place, ..Passing::new(kind::RECORD, 0, topic, record.bytes) }, way, alone);
        self.widen(topic, route, narrowed);
        if let Some(remote) = self.remote_streams.get_mut((stream - REMOTE) as usize).filter(|_| self.whole) {
            remote.done = remote.done.max(record.offset() + 1);
        }
        self.topics.unuse(topic);
        Ok(())
    }

    /// Processes plain deliveries with the same head after the first one, if all receivers have room and know topic and
    /// sender. Returns the processed bytes.
    #[allow(clippy::too_many_arguments)] // the frame, its parts, its way
    fn follow_in(
        &mut self,
        conn: u32,
        who: &Who,
        topic: u32,
        data: &[u8],
        size: usize,
        head: usize,
        route: &Route,
    ) -> usize {
        let (first, rest) = data.split_at(size);
        let (mark, mut room) = (self.limits.mark(), usize::MAX);
        let ours = || route.targets.iter().filter(|target| !target.link);
        for target in ours() {
            let Some(this) = self.conns[target.conn as usize].as_deref() else { return 0 };
            let known = this.topics_out.is(target.slot, &topic)
                && this.last_sender.0 == who.client
                && this.senders_out.is(this.last_sender.1, &who.client);
            let alone = target.to - target.from == 1;
            if !known || !alone || this.crowded || !this.held.is_empty() || this.state != State::Open {
                return 0;
            }
            room = room.min(mark.saturating_sub(this.outbox.bytes()));
        }
        let (used, count) = same(first, head, rest, self.limits.frame + crate::engine::links::LONGER, room);
        if count == 0 {
            return 0;
        }
        for target in ours() {
            self.copy_run(target.conn, (target.slot, route.ids[target.from], target.policy), &rest[..used], head);
        }
        if let Some(this) = self.conn(conn) {
            this.count.received += count;
        }
        self.topics.count(topic, count.cast_signed());
        if ours().next().is_none() {
            self.stats.unroutable += count;
        }
        used
    }

    /// Writes messages, whose bodies begin at `head` in their frames, as deliveries to one subscription.
    pub(in crate::engine) fn copy_run(
        &mut self,
        to: u32,
        (slot, id, policy): (u32, u32, u8),
        frames: &[u8],
        head: usize,
    ) {
        let mark = self.limits.mark();
        let Some(this) = self.conns[to as usize].as_deref_mut() else { return };
        let mut out_head = [0; HEAD + 4];
        out_head[4] = kind::DELIVER;
        out_head[5] = if policy == policy::DROP_OLDEST { 0 } else { flag::KEEP };
        out_head[6] = 1;
        out_head[8..12].copy_from_slice(&slot.to_le_bytes());
        out_head[12..16].copy_from_slice(&this.last_sender.1.to_le_bytes());
        out_head[16..].copy_from_slice(&id.to_le_bytes());
        let (before, mut at, mut count) = (this.outbox.bytes(), 0, 0);
        while at < frames.len() {
            let size = u32_at(frames, at) as usize + 4;
            let body = &frames[at + head..at + size];
            let whole = HEAD + 4 + body.len();
            out_head[..4].copy_from_slice(&(whole as u32 - 4).to_le_bytes());
            this.outbox.push(&mut self.pool, whole, |out| {
                out.reserve(whole);
                out.extend_from_slice(&out_head);
                out.extend_from_slice(body);
            });
            at += size;
            count += 1;
        }
        this.count.delivered += count;
        this.count.delivered_bytes += (this.outbox.bytes() - before) as u64;
        let crowded = this.outbox.bytes() >= mark;
        self.queue(to);
        if crowded {
            self.mark_crowded(to);
        }
    }
}
