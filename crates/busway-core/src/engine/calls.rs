//! Requests and pushes: one receiver, whose answer goes back to who asked.

use super::copies::DRIVEN;
use super::publish::{number_of, From, Passing};
use super::{Engine, Event, Service};
use crate::connection::{State, Who};
use crate::fields::{merge, Fields};
use crate::frame::{code, flag, kind, Body, Checked, Fault, Parts, Writer, HEAD};
use crate::pending::Pending;
use crate::split::Flow;

impl Engine {
    /// Whether this connection may ask for one more answer.
    fn may_ask(&mut self, conn: u32, number: u64) -> Checked<Result<(), Fault>> {
        let most = self.limits.pending;
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

    /// Whether this connection may have one more push kept until somebody takes it.
    fn may_offer(&mut self, conn: u32, size: usize) -> Result<(), Fault> {
        let limit = self.limits.outbox;
        let Some(this) = self.conn(conn) else { return Ok(()) };
        if this.offered == 0 || this.offered + size <= limit {
            return Ok(());
        }
        Err(Fault::new(code::TOO_MANY_PENDING, format!("pushes of {} bytes wait to be taken already", this.offered)))
    }

    /// A push is over: what was kept of it is free.
    fn end_offer(&mut self, pending: &Pending) {
        let Pending::Offer { origin, topic, body, .. } = pending else { return };
        self.topics.unuse(*topic);
        if let Some(this) = self.conn(*origin) {
            this.offered -= body.len();
        }
    }

    pub(super) fn push(&mut self, conn: u32, frame: &[u8]) -> Checked<Flow> {
        let admitted = self.admit(conn, frame, flag::FIELDS)?;
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
        let offer = Pending::Offer { origin: conn, number, consumer, sub, topic, flags, body, tried, full };
        let id = self.pending.next_id();
        self.topics.use_again(topic);
        if let Some(this) = self.conn(conn) {
            this.asked.insert(number, id);
            this.offered += frame.len() - HEAD;
        }
        self.offer(id, offer);
        Ok(Flow::Go)
    }

    /// Offers a push to the next consumer that has not been tried.
    fn offer(&mut self, id: u64, mut pending: Pending) {
        let Pending::Offer { origin, number, consumer, sub, topic, flags, body, tried, full } = &mut pending else {
            return;
        };
        let (from, topic) = (*origin, *topic);
        let route = self.topics.route(topic, &mut self.index);
        let passing = Passing { kind: kind::OFFER, flags: *flags, topic, answer: Some(id), body, place: None };
        let narrowed = self.narrow(From::Conn(from), &passing, &route);
        let way = narrowed.as_ref().unwrap_or(&route);
        let (takers, too_complex): (Vec<_>, _) = (way.takers().collect(), route.too_complex);
        self.widen(topic, route, narrowed);
        self.push_turn = self.push_turn.wrapping_add(1);
        let limit = self.limits.outbox;
        let mut choice = None;
        for i in 0..takers.len() {
            let taker = takers[self.push_turn.wrapping_add(i) % takers.len()];
            let Some(this) = self.conn(taker.conn) else { continue };
            let wants = taker.conn != from || taker.echo;
            if this.state != State::Open || !wants || tried.contains(&taker.conn) {
                continue;
            }
            if this.outbox.bytes() >= limit || this.held.contains_key(&taker.id) {
                *full = true;
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
            self.end_offer(&pending);
            self.done(from, number);
            if too_complex {
                self.reject(from, number, &Fault::too_complex(self.topics.text(topic)));
            } else if full {
                self.result(from, number, code::TOO_MANY_PENDING, 0, "the consumers do not keep up");
            } else {
                self.result(from, number, code::NO_CONSUMER, 0, "nobody took the message");
            }
            return;
        };
        (*consumer, *sub) = (taker.conn, taker.id);
        tried.push(taker.conn);
        let passing = Passing { kind: kind::OFFER, flags: *flags, topic, answer: Some(id), body, place: None };
        self.deliver(From::Conn(from), taker.conn, passing, &[taker.id], taker.policy, &mut u32::MAX.clone());
        if let Some(this) = self.conn(taker.conn) {
            this.owed.insert(id);
        }
        self.pending.insert(id, pending);
    }

    /// ACCEPT: a consumer's answer to an offer.
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
        self.result(origin, number, code::OK, 1, "");
        Ok(())
    }

    fn answered(&mut self, id: u64, conn: u32) -> Option<Pending> {
        let pending = self.pending.answered(id, conn);
        if pending.is_none() {
            self.stats.late_replies += 1;
        }
        self.conn(conn)?.owed.remove(&id);
        pending
    }

    /// ACCEPT of a call or REPLY to an offer: it stays owed, so that the end of this connection settles it.
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
        }
    }

    pub(super) fn request(&mut self, conn: u32, frame: &[u8]) -> Checked<Flow> {
        let admitted = self.admit(conn, frame, flag::FIELDS | flag::GATHER)?;
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
        let service = self.services.get(&topic).copied();
        if !self.topics.is_reserved(topic) {
            self.copy(conn, topic, frame, flag::REQUESTED);
        }
        let Some(service) = service else {
            let text = format!("nobody serves {:?}", self.topics.text(topic));
            return Ok(Err(Fault::new(code::NO_RESPONDERS, text)));
        };
        let (server, service) = match service {
            Service::Client { conn, id } => (conn, id),
            Service::Shared(_) => {
                if let Some(this) = self.conn(conn) {
                    this.asked.insert(number, DRIVEN);
                }
                let topic = self.topics.text(topic).into();
                self.events.push(Event::Request { conn, topic, frame: frame.into() });
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
        let limit = self.limits.outbox;
        if self.conn(server).is_some_and(|server| server.outbox.bytes() >= limit) {
            return Ok(Err(Fault::new(code::TOO_MANY_PENDING, "the service does not keep up")));
        }
        let id = self.pending.next_id();
        let flags = frame[5] & flag::FIELDS;
        let passing = Passing { kind: kind::CALL, flags, topic, answer: Some(id), body: &frame[HEAD..], place: None };
        if !self.deliver(From::Conn(conn), server, passing, &[service], 0, &mut u32::MAX.clone()) {
            return Ok(Err(Fault::new(code::SERVICE_GONE, "the service is leaving")));
        }
        let gather = frame[5] & flag::GATHER != 0;
        self.pending.insert(id, Pending::Call { origin: conn, number, server, gather });
        if let Some(this) = self.conn(conn) {
            this.asked.insert(number, id);
        }
        if let Some(this) = self.conn(server) {
            this.owed.insert(id);
        }
        Ok(Ok(()))
    }

    /// REPLY of a service: on to who asked, with the asker's number.
    pub(super) fn reply(&mut self, conn: u32, frame: &[u8]) -> Checked<()> {
        let mut parts = Parts::of(frame);
        let (code, id) = (parts.u16()?, parts.u64()?);
        if frame[5] & !(flag::FIELDS | flag::ERROR | flag::PARTIAL | flag::END) != 0 {
            return Err(Fault::protocol(format!("unknown flags {:#04x} on REPLY", frame[5])));
        }
        let fields = match Fields::read(if frame[5] & flag::FIELDS == 0 { &[] } else { parts.bin32()? }) {
            Ok(fields) => fields,
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
        if gather && frame[5] & flag::END == 0 {
            let who = self.conn(conn).map(|this| this.who.named());
            // One with as many fields as there may be goes on without a name.
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

    /// CANCEL: who asked no longer waits.
    pub(super) fn cancel(&mut self, conn: u32, number: u64) {
        let Some(this) = self.conn(conn) else { return };
        let session = this.who.session;
        let Some(id) = this.asked.remove(&number) else { return };
        if id == DRIVEN {
            self.events.push(Event::Cancel { conn, number });
        }
        if let Some(Pending::Offer { consumer, sub, .. }) = self.forget(id) {
            self.put(consumer, |out| {
                Writer::new(out, kind::WITHDRAW, 0).u16(0).u32(sub).u64(session).u64(number).end();
            });
        }
    }

    fn forget(&mut self, id: u64) -> Option<Pending> {
        let pending = self.pending.remove(id)?;
        self.end_offer(&pending);
        if let Some(this) = self.conn(pending.awaited()) {
            this.owed.remove(&id);
        }
        Some(pending)
    }

    /// A connection ended: what it owed goes elsewhere or fails, what it asked is forgotten.
    pub(super) fn settle(&mut self, owed: Vec<u64>, asked: Vec<u64>, who: &Who) {
        for id in asked {
            self.forget(id);
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
