//! Requests and pushes: sent to one receiver, whose answer goes back to the sender.

use super::publish::{number_of, From, Passing};
use super::{Engine, Event, Service};
use crate::engine::connection::{Role, State, Who};
use crate::engine::links::scope::{request_scope, scope_of};
use crate::engine::pending::Pending;
use crate::engine::retained::DRIVEN;
use crate::matching::grants::verb;
use crate::wire::fields::{merge, Fields};
use crate::wire::frame::{code, flag, kind, Body, Checked, Fault, Parts, Writer, HEAD};
use crate::wire::msgpack::{head, skip, Head};
use crate::wire::splitter::Flow;

/// True if these bytes are a map, whatever its keys are.
fn is_map(bytes: &[u8]) -> bool {
    let Some((Head::Map(size), rest)) = head(bytes) else { return false };
    (0..2 * size).try_fold(rest, |rest, _| skip(rest, 0)).is_ok_and(<[u8]>::is_empty)
}

/// The maximum number of calls and offers of another node that wait for answers.
pub(super) const MOST: usize = 1 << 16;

impl Engine {
    /// Checks the limit of pending requests of this connection.
    pub(super) fn may_ask(&mut self, conn: u32, number: u64) -> Checked<Result<(), Fault>> {
        // A node asks for all its clients, which are limited there.
        let most = if self.role(conn) == Role::Client { self.limits.pending } else { MOST };
        let Some(this) = self.conn(conn) else { return Err(Fault::protocol("no connection")) };
        if this.asked.contains_key(&number) {
            return Err(Fault::protocol(format!("number {number} is still waiting for its answer")));
        }
        if this.asked.len() >= most {
            let text = format!("{most} requests and pushes wait for their answer already");
            return Ok(Err(Fault::new(code::TOO_MANY_PENDING, text)));
        }
        Ok(Ok(()))
    }

    /// Checks the limit of pending pushes of this connection.
    pub(super) fn may_offer(&mut self, conn: u32, size: usize) -> Result<(), Fault> {
        let limit = self.limits.outbox;
        let Some(this) = self.conn(conn) else { return Ok(()) };
        if this.offered == 0 || this.offered + size <= limit {
            return Ok(());
        }
        Err(Fault::new(code::TOO_MANY_PENDING, format!("pushes of {} bytes wait to be taken already", this.offered)))
    }

    /// Ends a push, and frees its bytes.
    fn end_offer(&mut self, pending: &Pending) {
        let Pending::Offer { origin, topic, body, .. } = pending else { return };
        self.topics.unuse(*topic);
        if let Some(this) = self.conn(*origin) {
            this.offered -= body.len();
        }
    }

    pub(super) fn push(&mut self, conn: u32, frame: &[u8]) -> Checked<Flow> {
        let admitted = self.admit(conn, frame, flag::FIELDS, verb::PUSH)?;
        let number = number_of(frame);
        let topic = match admitted {
            Ok(topic) if self.topics.is_reserved(topic) => {
                Err(Fault::new(code::RESERVED, "the topic belongs to the broker"))
            }
            Ok(topic) => self.may_ask(conn, number)?.and_then(|()| self.may_offer(conn, frame.len())).map(|()| topic),
            Err(fault) => Err(fault),
        };
        let topic = match topic {
            Ok(topic) => topic,
            Err(fault) => {
                self.reject(conn, number, &fault);
                return Ok(Flow::Go);
            }
        };
        self.stats.pushes += 1;
        self.copy(conn, topic, frame, flag::PUSHED);
        let (flags, body, tried, full) = (frame[5] & flag::FIELDS, frame[HEAD..].into(), Vec::new(), false);
        let (consumer, sub) = (u32::MAX, 0);
        let (who, scope) = (None, scope_of(frame));
        let offer = Pending::Offer { origin: conn, number, consumer, sub, topic, flags, body, tried, full, who, scope };
        self.begin_offer(offer);
        Ok(Flow::Go)
    }

    /// Starts a push of a client or another node, which is offered until a consumer accepts it.
    pub(super) fn begin_offer(&mut self, offer: Pending) {
        let Pending::Offer { origin, number, topic, body, .. } = &offer else { return };
        let id = self.pending.next_id();
        self.topics.use_again(*topic);
        if let Some(this) = self.conn(*origin) {
            this.asked.insert(*number, id);
            this.offered += body.len();
        }
        self.offer(id, offer);
    }

    /// Offers a push to the next consumer that was not tried.
    fn offer(&mut self, id: u64, mut pending: Pending) {
        let Pending::Offer { origin, number, consumer, sub, topic, flags, body, tried, full, who, scope } =
            &mut pending
        else {
            return;
        };
        let (origin, topic) = (*origin, *topic);
        let from = who.as_deref().map_or(From::Conn(origin), From::Remote);
        let route = self.topics.route(topic, &mut self.index);
        let new = Passing::new(kind::OFFER, *flags, topic, body);
        let passing = Passing { answer: Some(id), scope: *scope, ..new };
        let narrowed = self.narrow(from, &passing, &route);
        let way = narrowed.as_ref().unwrap_or(&route);
        let too_complex = route.too_complex;
        let mut takers: Vec<_> = way.takers().collect();
        self.widen(topic, route, narrowed);
        self.push_turn = self.push_turn.wrapping_add(1);
        let mut ours = takers.len();
        if !self.links.is_empty() {
            // Own clients come first, then other nodes; a push from a node goes to no other node.
            takers.retain(|taker| !(taker.link && from.is_remote()));
            takers.sort_by_key(|taker| taker.link);
            ours = takers.partition_point(|taker| !taker.link);
        }
        let (local, remote) = takers.split_at_mut(ours);
        for some in [local, remote] {
            some.rotate_left(self.push_turn % some.len().max(1));
        }
        let limit = self.limits.outbox;
        let (mut choice, mut too_long) = (None, false);
        for taker in takers {
            let Some(this) = self.conn(taker.conn) else { continue };
            let wants = taker.conn != origin || taker.echo;
            if this.state != State::Open || !wants || tried.contains(&taker.conn) {
                continue;
            }
            if this.outbox.bytes() >= limit || this.held.contains_key(&taker.id) {
                *full = true;
                continue;
            }
            if this.is_too_long(HEAD + body.len()) {
                too_long = true;
                continue;
            }
            if !this.crowded {
                choice = Some(taker);
                break;
            }
            choice = choice.or(Some(taker));
        }
        let Some(taker) = choice else {
            let (number, full) = (*number, *full);
            let fault = if too_complex {
                self.stats.rejected += 1;
                Fault::too_complex(self.topics.text(topic))
            } else if full {
                Fault::new(code::TOO_MANY_PENDING, "the consumers do not keep up")
            } else if too_long {
                Fault::new(code::FRAME_TOO_LARGE, "other nodes of the cluster do not take so long a message")
            } else {
                Fault::new(code::NO_CONSUMER, "nobody took the message")
            };
            self.end_offer(&pending);
            self.done(origin, number);
            self.offered(origin, number, fault.code, &fault.text);
            return;
        };
        (*consumer, *sub) = (taker.conn, taker.id);
        tried.push(taker.conn);
        self.deliver(from, taker.conn, passing, &[taker.id], taker.policy, &mut u32::MAX.clone());
        if let Some(this) = self.conn(taker.conn) {
            this.owed.insert(id);
        }
        self.pending.insert(id, pending);
    }

    /// ACCEPT: the answer of a consumer to an offer.
    pub(super) fn accept_offer(&mut self, conn: u32, mut parts: Parts) -> Checked<()> {
        let (code, id) = (parts.u16()?, parts.u64()?);
        if id & DRIVEN != 0 {
            self.events.push(Event::Accept { conn, call: id & !DRIVEN, code });
            return Ok(());
        }
        let Some(mut pending) = self.answered(id, conn) else { return Ok(()) };
        match &mut pending {
            Pending::Call { .. } => return Err(self.wrong_answer(id, conn, pending)),
            Pending::Offer { full, .. } => *full |= code == code::TOO_MANY_PENDING,
        }
        if code != code::OK {
            self.offer(id, pending);
            return Ok(());
        }
        self.end_offer(&pending);
        let (origin, number) = pending.origin();
        self.done(origin, number);
        self.offered(origin, number, code::OK, "");
        Ok(())
    }

    /// Reports the result of a push to its sender.
    pub(super) fn offered(&mut self, origin: u32, number: u64, code: u16, text: &str) {
        if self.role(origin) == Role::Client {
            self.result(origin, number, code, u64::from(code == code::OK), text);
        } else {
            self.willing(origin, number, code);
        }
    }

    fn answered(&mut self, id: u64, conn: u32) -> Option<Pending> {
        let pending = self.pending.answered(id, conn);
        if pending.is_none() {
            self.stats.late_replies += 1;
        }
        self.conn(conn)?.owed.remove(&id);
        pending
    }

    /// ACCEPT of a call or REPLY to an offer: it stays pending, so that the end of this connection resolves it.
    fn wrong_answer(&mut self, id: u64, conn: u32, pending: Pending) -> Fault {
        self.pending.insert(id, pending);
        if let Some(this) = self.conn(conn) {
            this.owed.insert(id);
        }
        Fault::protocol("an offer is answered by ACCEPT, a call by REPLY")
    }

    pub(super) fn done(&mut self, origin: u32, number: u64) {
        if let Some(this) = self.conn(origin) {
            this.asked.remove(&number);
            if let Some(peer) = this.peer.as_mut() {
                peer.callers.remove(&number);
            }
        }
    }

    pub(super) fn request(&mut self, conn: u32, frame: &[u8]) -> Checked<Flow> {
        let admitted =
            self.admit(conn, frame, flag::FIELDS | flag::GATHER | flag::LOCAL | flag::REMOTE, verb::REQUEST)?;
        let number = number_of(frame);
        self.stats.requests += 1;
        if let Err(fault) = self.pass_request(conn, frame, admitted)? {
            self.stats.rejected += 1;
            self.reply_error(conn, number, &fault);
        }
        Ok(Flow::Go)
    }

    fn pass_request(&mut self, conn: u32, frame: &[u8], admitted: Result<u32, Fault>) -> Checked<Result<(), Fault>> {
        let number = number_of(frame);
        let topic = match admitted {
            Ok(topic) => topic,
            Err(fault) => return Ok(Err(fault)),
        };
        if self.topics.is_wild(topic) {
            return Ok(Err(Fault::new(code::WILDCARD, "a request takes no wildcards")));
        }
        if let Err(fault) = self.may_ask(conn, number)? {
            return Ok(Err(fault));
        }
        let service = self.service_for(topic, request_scope(frame));
        if !self.topics.is_reserved(topic) {
            self.copy(conn, topic, frame, flag::REQUESTED);
        }
        let Some(service) = service else {
            let text = format!("nobody serves {:?}", self.topics.text(topic));
            return Ok(Err(Fault::new(code::NO_RESPONDERS, text)));
        };
        let (server, service) = match service {
            Service::Client { conn, id, .. } => (conn, id),
            Service::Shared(_) => {
                if let Some(this) = self.conn(conn) {
                    this.asked.insert(number, DRIVEN);
                }
                let topic = self.topics.text(topic).into();
                self.events.push(Event::Request { conn, number, topic, frame: frame.into(), remote: false });
                return Ok(Ok(()));
            }
            Service::Internal => {
                let mut parts = Parts::of(frame);
                parts.bytes(HEAD - 6)?;
                let Body { time, payload, .. } = Body::read(parts, frame[5])?;
                let (topic, payload) = (self.topics.text(topic).into(), payload.into());
                self.events.push(Event::Call { conn, number, time, topic, payload });
                return Ok(Ok(()));
            }
        };
        let new = Passing::new(kind::CALL, frame[5] & (flag::FIELDS | flag::GATHER), topic, &frame[HEAD..]);
        Ok(self.call((server, service), From::Conn(conn), (conn, number), new))
    }

    /// Sends a request to the service of its topic, at a client or another node.
    pub(super) fn call(
        &mut self,
        (server, service): (u32, u32),
        from: From,
        (origin, number): (u32, u64),
        mut passing: Passing,
    ) -> Result<(), Fault> {
        let limit = self.limits.outbox;
        if self.conn(server).is_some_and(|server| server.outbox.bytes() >= limit) {
            return Err(Fault::new(code::TOO_MANY_PENDING, "the service does not keep up"));
        }
        if let Some(fault) = self.too_long_for(server, HEAD + passing.body.len()) {
            return Err(fault);
        }
        let id = self.pending.next_id();
        let mut gather = passing.flags & flag::GATHER != 0;
        if self.role(server) == Role::Client {
            passing.flags &= !flag::GATHER;
        } else {
            // That node adds the provider's name.
            gather = false;
        }
        let passing = Passing { answer: Some(id), ..passing };
        if !self.deliver(from, server, passing, &[service], 0, &mut u32::MAX.clone()) {
            return Err(Fault::new(code::SERVICE_GONE, "the service is leaving"));
        }
        self.pending.insert(id, Pending::Call { origin, number, server, gather });
        if let Some(this) = self.conn(origin) {
            this.asked.insert(number, id);
        }
        if let Some(this) = self.conn(server) {
            this.owed.insert(id);
        }
        Ok(())
    }

    /// REPLY of a service: sends it to the requester with the requester's number.
    pub(super) fn reply(&mut self, conn: u32, frame: &[u8]) -> Checked<()> {
        let mut parts = Parts::of(frame);
        let (code, id) = (parts.u16()?, parts.u64()?);
        if frame[5] & !(flag::FIELDS | flag::ERROR | flag::PARTIAL | flag::END) != 0 {
            return Err(Fault::protocol(format!("unknown flags {:#04x} on REPLY", frame[5])));
        }
        let fields = if frame[5] & flag::FIELDS == 0 { &[] } else { parts.bin32()? };
        let fields = match Fields::read(fields) {
            Ok(fields) => fields,
            // Another node may have added the provider's name.
            Err(_) if self.role(conn) != Role::Client => {
                if !is_map(fields) {
                    return Err(Fault::protocol("a reply with fields that are none"));
                }
                Fields::default()
            }
            Err(fault) => {
                self.stats.rejected += 1;
                self.result(conn, id, fault.code, 0, &fault.text);
                return Ok(());
            }
        };
        if id & DRIVEN != 0 {
            self.events.push(Event::Answer { conn, frame: frame.into() });
            return Ok(());
        }
        let Some(pending) = self.answered(id, conn) else { return Ok(()) };
        let Pending::Call { gather, .. } = pending else {
            return Err(self.wrong_answer(id, conn, pending));
        };
        let (origin, number) = pending.origin();
        if frame[5] & flag::PARTIAL == 0 {
            self.done(origin, number);
        } else {
            self.pending.insert(id, pending);
            if let Some(this) = self.conn(conn) {
                this.owed.insert(id);
            }
        }
        // The name that may be added is short and fits.
        if let Some(fault) = self.too_long_for(origin, frame.len()) {
            self.answer_instead(origin, number, frame[5], &fault);
            return Ok(());
        }
        if gather && frame[5] & flag::END == 0 {
            let who = self.conn(conn).map(|this| this.who.named());
            // A reply with the maximum number of fields gets no name.
            if let Ok(named) = merge(&fields, who.as_slice()) {
                self.put(origin, |out| {
                    let head = Writer::new(out, kind::REPLY, frame[5] | flag::FIELDS).u16(code).u64(number);
                    head.bin32(&named).bytes(parts.rest()).end();
                });
                return Ok(());
            }
        }
        self.put(origin, |out| {
            let at = out.len();
            out.extend_from_slice(frame);
            out[at + 8..at + 16].copy_from_slice(&number.to_le_bytes());
        });
        Ok(())
    }

    /// Sends an error in place of a reply that can't be delivered. More replies may follow.
    pub(super) fn answer_instead(&mut self, conn: u32, number: u64, flags: u8, fault: &Fault) {
        self.put(conn, |out| {
            let frame = Writer::new(out, kind::REPLY, flag::ERROR | flags & flag::PARTIAL).u16(fault.code).u64(number);
            frame.bytes(fault.text.as_bytes()).end();
        });
    }

    pub(super) fn reply_error(&mut self, conn: u32, number: u64, fault: &Fault) {
        self.put(conn, |out| {
            let frame = Writer::new(out, kind::REPLY, flag::ERROR).u16(fault.code).u64(number);
            frame.bytes(fault.text.as_bytes()).end();
        });
    }

    /// The driver's answer to an internal call.
    pub fn reply_internal(&mut self, conn: u32, number: u64, code: u16, payload: &[u8]) {
        let flags = if code == code::OK { 0 } else { flag::ERROR };
        self.put(conn, |out| {
            Writer::new(out, kind::REPLY, flags).u16(code).u64(number).bytes(payload).end();
        });
    }

    /// CANCEL: the requester no longer waits.
    pub(super) fn cancel(&mut self, conn: u32, number: u64) {
        let Some(this) = self.conn(conn) else { return };
        let session = this.who.session;
        // A node may have only asked if a provider is willing, which the driver handles.
        let driven = this.peer.is_some().then_some(DRIVEN);
        let Some(id) = this.asked.remove(&number).or(driven) else { return };
        if id == DRIVEN {
            self.done(conn, number);
            self.events.push(Event::Cancel { conn, number });
        }
        let Some(pending) = self.forget(id) else { return };
        let awaited = pending.awaited();
        if self.role(awaited) != Role::Client {
            self.call_off(awaited, id);
        } else if let Pending::Offer { sub, body, who, .. } = pending {
            // The message's own number and sender, also for another node's.
            let session = who.map_or(session, |who| who.session);
            let number = Body::of(&body, 0).map_or(number, |body| body.number);
            self.put(awaited, |out| {
                Writer::new(out, kind::WITHDRAW, 0).u16(0).u32(sub).u64(session).u64(number).end();
            });
        }
    }

    /// Sends CANCEL to another node with a call or an offer of ours.
    pub fn call_off(&mut self, conn: u32, id: u64) {
        self.put(conn, |out| {
            Writer::new(out, kind::CANCEL, 0).u16(0).u64(id).end();
        });
    }

    fn forget(&mut self, id: u64) -> Option<Pending> {
        let pending = self.pending.remove(id)?;
        self.end_offer(&pending);
        if let Some(this) = self.conn(pending.awaited()) {
            this.owed.remove(&id);
        }
        Some(pending)
    }

    /// A connection ended: its pending calls are retried or fail, and its own requests are dropped.
    pub(super) fn end_calls(&mut self, owed: Vec<u64>, asked: Vec<u64>, who: &Who) {
        for id in asked {
            let call = self.forget(id).filter(|pending| matches!(pending, Pending::Call { .. }));
            if let Some(node) = call.map(|call| call.awaited()).filter(|&conn| self.role(conn) != Role::Client) {
                self.call_off(node, id);
            }
        }
        for id in owed {
            match self.pending.remove(id) {
                Some(Pending::Call { origin, number, gather, .. }) => {
                    self.done(origin, number);
                    let text = "the service's connection ended before it replied";
                    let named = if gather { merge(&Fields::default(), &[who.named()]).ok() } else { None };
                    self.put(origin, |out| {
                        let flags = flag::ERROR | if named.is_some() { flag::FIELDS } else { 0 };
                        let frame = Writer::new(out, kind::REPLY, flags).u16(code::SERVICE_GONE).u64(number);
                        match named {
                            Some(named) => frame.bin32(&named).bytes(text.as_bytes()).end(),
                            None => frame.bytes(text.as_bytes()).end(),
                        };
                    });
                }
                Some(offer) => self.offer(id, offer),
                None => {}
            }
        }
    }
}
