//! Control frames: handshake, names, subscriptions, services, heartbeat and close.

use std::sync::Arc;

use super::{Engine, Event, Group, Service};
use crate::engine::connection::{Named, Role, Served, State, Who};
use crate::engine::counters::add;
use crate::engine::links::interest::Want;
use crate::engine::retained::Kept;
use crate::matching::grants::{verb, Grants};
use crate::matching::index::Subscription;
use crate::matching::regex::PREFIX;
use crate::matching::regex_index::ENOUGH;
use crate::matching::rules::Rules;
use crate::matching::topic;
use crate::wire::frame::{code, flag, kind, policy, scope, Checked, Fault, Parts, Writer, MAGIC};
use crate::wire::splitter::Flow;

impl Engine {
    pub(super) fn hello(&mut self, conn: u32, frame: &[u8]) -> Checked<Flow> {
        let wrong = |text: &str| Fault::new(code::HANDSHAKE, text);
        if frame[4] != kind::HELLO {
            return Err(wrong("the first frame must be HELLO"));
        }
        let mut parts = Parts::of(frame);
        let version = parts.u16().map_err(|_| wrong("HELLO is too short"))?;
        if frame[5] != 0 || parts.bytes(4).map_err(|_| wrong("HELLO is too short"))? != MAGIC {
            return Err(wrong("HELLO without its magic"));
        }
        let map = parts.rest().into();
        self.hold(conn, Event::Hello { conn, version, map });
        if let Some(this) = self.conn(conn) {
            this.state = State::Greeted;
        }
        Ok(Flow::Stop)
    }

    /// Asks a client to prove who it is, after its HELLO.
    pub fn challenge(&mut self, conn: u32, map: &[u8]) {
        if self.state(conn) != Some(State::Greeted) {
            return;
        }
        self.put(conn, |out| {
            Writer::new(out, kind::CHALLENGE, 0).u16(0).bytes(map).end();
        });
        if let Some(this) = self.conn(conn) {
            this.state = State::Challenged;
        }
        self.answered_by_driver(conn);
    }

    /// LOGIN: the answer to CHALLENGE.
    pub(super) fn login(&mut self, conn: u32, frame: &[u8]) -> Checked<Flow> {
        if frame[4] != kind::LOGIN || frame[5] != 0 {
            return Err(Fault::new(code::HANDSHAKE, "CHALLENGE must be answered by LOGIN"));
        }
        let mut parts = Parts::of(frame);
        parts.u16()?;
        self.hold(conn, Event::Login { conn, map: parts.rest().into() });
        if let Some(this) = self.conn(conn) {
            this.state = State::Greeted;
        }
        Ok(Flow::Stop)
    }

    /// Passes a frame to the driver, and blocks the connection until the driver answers.
    pub(super) fn hold(&mut self, conn: u32, event: Event) {
        if let Some(this) = self.conn(conn) {
            this.waiting = true;
        }
        self.events.push(event);
    }

    pub(super) fn answered_by_driver(&mut self, conn: u32) {
        if let Some(this) = self.conn(conn) {
            let left = !this.splitter.is_empty() || this.deferred.is_some();
            let more = std::mem::take(&mut this.waiting) && left;
            if self.index.expressions.steps >= ENOUGH {
                self.yield_to_others(conn);
            } else if more {
                self.events.push(Event::Resume(conn));
            }
        }
    }

    /// Opens a connection after its HELLO, with the grants of its user. Returns another connection with the same session.
    #[allow(clippy::too_many_arguments)] // the parts of the frame
    pub fn accept(
        &mut self,
        conn: u32,
        session: u64,
        name: &str,
        client: u32,
        version: u16,
        map: &[u8],
        grants: Option<Arc<Grants>>,
    ) -> Option<u32> {
        if self.state(conn) != Some(State::Greeted) {
            return None;
        }
        self.put(conn, |out| {
            Writer::new(out, kind::WELCOME, 0).u16(version).bytes(map).end();
        });
        if let Some(this) = self.conn(conn) {
            this.state = State::Open;
            this.who = Who { client, session, name: name.into() };
            this.grants = grants;
        }
        self.answered_by_driver(conn);
        self.sessions.insert(session, conn).filter(|&old| old != conn)
    }

    pub(super) fn other(&mut self, conn: u32, frame: &[u8]) -> Checked<Flow> {
        let (kind, flags) = (frame[4], frame[5]);
        let mut parts = Parts::of(frame);
        let allowed = match kind {
            kind::PUSH | kind::REQUEST | kind::REPLY => !0,
            kind::SUBSCRIBE => {
                flag::NO_ECHO
                    | flag::WATCH
                    | flag::LISTEN
                    | flag::SINCE
                    | flag::SUBSCRIBE_LOCAL
                    | flag::SUBSCRIBE_REMOTE
                    | flag::WAIT
            }
            kind::SERVE => flag::SHARED | flag::ASKS | flag::LOCAL | flag::REMOTE | flag::WAIT,
            kind::HOLD => flag::FULL,
            _ => 0,
        };
        if flags & !allowed != 0 {
            return Err(Fault::protocol(format!("unknown flags {flags:#04x} on a frame of kind {kind:#04x}")));
        }
        match kind {
            kind::PUSH => return self.push(conn, frame),
            kind::REQUEST => return self.request(conn, frame),
            kind::REPLY => self.reply(conn, frame)?,
            kind::ACCEPT => self.accept_offer(conn, parts)?,
            kind::CANCEL => {
                parts.u16()?;
                self.cancel(conn, parts.u64()?);
            }
            kind::TOPIC => {
                // Publishes that were set aside use the old meaning of the slot.
                let slot =
                    u32::from_le_bytes(frame.get(8..12).and_then(|slot| slot.try_into().ok()).unwrap_or_default());
                let this = self.conn(conn).filter(|this| this.deferred.is_some());
                if this.is_some_and(|this| this.topics_in.get(slot as usize).is_some_and(|was| *was != Named::Nothing))
                {
                    self.events.push(Event::Pause(conn));
                    return Ok(Flow::Wait);
                }
                self.name_topic(conn, parts)?;
            }
            kind::PING => {
                let token = parts.u64()?;
                // PONG confirms everything before it, so PING waits behind publishes that were set aside.
                if !self.defer(conn, frame) {
                    self.beat_frame(conn, kind::PONG, token);
                }
            }
            kind::PONG => {
                parts.u64()?;
            }
            kind::SUBSCRIBE => return self.subscribe_frame(conn, flags, parts),
            kind::SERVE => return self.serve_frame(conn, flags, parts),
            kind::UNSUBSCRIBE => {
                parts.u16()?;
                let (sub, number) = (parts.u32()?, parts.u64()?);
                self.unsubscribe(conn, sub, number);
            }
            kind::UNSERVE => {
                parts.u16()?;
                let (service, number) = (parts.u32()?, parts.u64()?);
                self.unserve(conn, service, number);
            }
            kind::CHANNEL | kind::UNCHANNEL | kind::TAKE | kind::ACK | kind::NACK => {
                parts.u16()?;
                let (id, number, rest) = (parts.u32()?, parts.u64()?, parts.rest().into());
                self.events.push(Event::Channel { conn, kind, id, number, rest });
            }
            kind::HOLD => {
                parts.u16()?;
                let (sub, taken) = (parts.u32()?, parts.u64()?);
                self.hold_subscription(conn, sub, flags & flag::FULL != 0, taken);
            }
            kind::CLOSE => {
                let (code, text) = (parts.u16()?, parts.rest_text()?.into());
                if let Some(this) = self.conn(conn) {
                    this.state = State::Closing;
                }
                self.events.push(Event::Close { conn, code, text });
            }
            _ => return Err(Fault::protocol(format!("unknown frame kind {kind:#04x}"))),
        }
        Ok(Flow::Go)
    }

    /// SUBSCRIBE: the driver decides on what the grants allow.
    fn subscribe_frame(&mut self, conn: u32, flags: u8, mut parts: Parts) -> Checked<Flow> {
        let (policy, _) = (parts.u8()?, parts.u8()?);
        let (sub, number) = (parts.u32()?, parts.u64()?);
        let (pattern, group) = (parts.str16()?, parts.str16()?.into());
        let rules = parts.bin32()?.into();
        let since = if flags & flag::SINCE == 0 { Vec::new() } else { parts.bin32()?.into() };
        if let Err(fault) = self.permit_subscription(conn, flags, pattern) {
            self.reject(conn, number, &fault);
            return Ok(Flow::Go);
        }
        let pattern = pattern.into();
        self.hold(conn, Event::Subscribe { conn, sub, number, flags, policy, pattern, group, rules, since });
        Ok(Flow::Stop)
    }

    /// SERVE: the driver decides on what the grants allow.
    fn serve_frame(&mut self, conn: u32, flags: u8, mut parts: Parts) -> Checked<Flow> {
        parts.u16()?;
        let (service, number, topic) = (parts.u32()?, parts.u64()?, parts.str16()?);
        if let Err(fault) = self.permit_text(conn, verb::SERVE, topic) {
            self.reject(conn, number, &fault);
            return Ok(Flow::Go);
        }
        self.hold(conn, Event::Serve { conn, service, number, topic: topic.into(), flags });
        Ok(Flow::Stop)
    }

    pub fn ping(&mut self, conn: u32, token: u64) {
        // The peer's PONG confirms that it knows our clients' interest.
        self.tell_interest();
        self.beat_frame(conn, kind::PING, token);
    }

    pub(super) fn beat_frame(&mut self, conn: u32, kind: u8, token: u64) {
        self.put(conn, |out| {
            Writer::new(out, kind, 0).u64(token).end();
        });
    }

    /// Queues AWAY on the connections of all clients.
    pub fn away(&mut self) {
        self.tell_clients(kind::AWAY, 0, &[]);
    }

    /// Queues SERVERS on the connections of all clients; `apart`: this node was separated from another one.
    pub fn send_servers(&mut self, list: &[u8], apart: bool) {
        self.tell_clients(kind::SERVERS, if apart { flag::APART } else { 0 }, list);
    }

    fn tell_clients(&mut self, kind: u8, flags: u8, rest: &[u8]) {
        for conn in 0..self.conns.len() as u32 {
            if self.is_open(conn) && self.role(conn) == Role::Client {
                self.put(conn, |out| {
                    Writer::new(out, kind, flags).u16(0).bytes(rest).end();
                });
            }
        }
    }

    pub fn result(&mut self, conn: u32, number: u64, code: u16, value: u64, text: &str) {
        self.put(conn, |out| {
            Writer::new(out, kind::RESULT, 0).u16(code).u64(number).u64(value).bytes(text.as_bytes()).end();
        });
    }

    pub(super) fn reject(&mut self, conn: u32, number: u64, fault: &Fault) {
        self.stats.rejected += 1;
        self.result(conn, number, fault.code, 0, &fault.text);
    }

    /// TOPIC: assigns a topic to a slot. An invalid topic is reported for each message that uses it.
    fn name_topic(&mut self, conn: u32, mut parts: Parts) -> Checked<()> {
        parts.u16()?;
        let slot = parts.u32()? as usize;
        let text = parts.rest_text()?;
        if slot >= self.limits.topics {
            return Err(Fault::protocol(format!("topic slot {slot}, the limit is {}", self.limits.topics)));
        }
        let limit = self.topic_limit(conn);
        let named = match topic::check(text) {
            _ if text.len() > limit => Named::Refused(code::TOPIC_TOO_LONG),
            Ok(text) => Named::Topic { topic: self.topics.use_text(text), asked: 0, allowed: 0 },
            Err(fault) => Named::Refused(fault.code),
        };
        let Some(this) = self.conn(conn) else { return Ok(()) };
        if slot >= this.topics_in.len() {
            this.topics_in.resize(slot + 1, Named::Nothing);
        }
        if let Named::Topic { topic: gone, .. } = std::mem::replace(&mut this.topics_in[slot], named) {
            self.topics.unuse(gone);
        }
        Ok(())
    }

    /// Adds a subscription after the driver has accepted it, and returns the code. Queues its RESULT, unless WAIT is
    /// set.
    #[allow(clippy::too_many_arguments)] // the parts of the frame
    pub fn subscribe(
        &mut self,
        conn: u32,
        sub: u32,
        number: u64,
        flags: u8,
        policy: u8,
        pattern: &str,
        group: &str,
        rules: &[u8],
        kept: &[Kept],
    ) -> u16 {
        let code = match self.add_subscription(conn, sub, flags, policy, pattern, group, rules) {
            Ok(()) => {
                for one in kept {
                    self.deliver_retained(conn, &[sub], one);
                }
                if flags & flag::WAIT == 0 {
                    self.result(conn, number, code::OK, kept.len() as u64, "");
                }
                code::OK
            }
            Err(fault) => {
                self.reject(conn, number, &fault);
                fault.code
            }
        };
        self.answered_by_driver(conn);
        code
    }

    /// Refuses a SUBSCRIBE or SERVE for the driver.
    pub fn refuse(&mut self, conn: u32, number: u64, code: u16, text: &str) {
        self.reject(conn, number, &Fault::new(code, text));
        self.answered_by_driver(conn);
    }

    #[allow(clippy::too_many_arguments)] // the parts of the frame
    fn add_subscription(
        &mut self,
        conn: u32,
        sub: u32,
        flags: u8,
        policy: u8,
        pattern: &str,
        group: &str,
        rules: &[u8],
    ) -> Checked<()> {
        let limits = self.limits;
        let Some(this) = self.conn(conn).filter(|this| this.state == State::Open) else { return Ok(()) };
        if this.subs.contains_key(&sub) {
            return Err(Fault::new(code::DUPLICATE, format!("subscription id {sub} is in use")));
        }
        if this.subs.len() >= limits.subscriptions {
            let text = format!("{} subscriptions, the limit for one connection", limits.subscriptions);
            return Err(Fault::new(code::TOO_MANY_SUBSCRIPTIONS, text));
        }
        if pattern.starts_with(PREFIX) && this.expressions >= limits.expressions {
            let text = format!("{} regular expressions, the limit for one connection", limits.expressions);
            return Err(Fault::new(code::TOO_MANY_SUBSCRIPTIONS, text));
        }
        if pattern.len() > limits.topic || group.len() > limits.topic {
            return Err(Fault::new(code::TOPIC_TOO_LONG, format!("the limit is {} bytes", limits.topic)));
        }
        if policy > policy::DISCONNECT {
            return Err(Fault::new(code::REFUSED, format!("no policy has the number {policy}")));
        }
        self.insert_subscription(conn, sub, flags, policy, pattern, group, rules)
    }

    /// Adds a subscription of a client, or one that represents the interest of another node.
    #[allow(clippy::too_many_arguments)] // the parts of the frame
    pub(super) fn insert_subscription(
        &mut self,
        conn: u32,
        sub: u32,
        flags: u8,
        policy: u8,
        pattern: &str,
        group: &str,
        rules: &[u8],
    ) -> Checked<()> {
        let link = self.role(conn) == Role::Link;
        let announced = !link && self.limits.links > 0 && flags & flag::SUBSCRIBE_LOCAL == 0;
        let want = announced.then(|| Want {
            service: false,
            text: pattern.strip_prefix('/').unwrap_or(pattern).into(),
            group: group.into(),
            rules: rules.into(),
            // The node of a slow client disconnects it; the link stays open.
            policy: if policy == policy::DISCONNECT { policy::BLOCK } else { policy },
            flags: flags & (flag::LISTEN | flag::SINCE),
        });
        let rules = if rules.is_empty() { None } else { Some(Box::new(Rules::compile(rules)?)) };
        let (echo, listen) = (flags & flag::NO_ECHO == 0, flags & flag::LISTEN != 0);
        let group = if group.is_empty() { Subscription::ALONE } else { self.use_group(group) };
        let guard = self.guard_of(conn, pattern);
        let mut subscription = Subscription::new(conn, sub, group, policy, echo, listen);
        subscription.watch = flags & flag::WATCH != 0;
        subscription.link = link;
        subscription.scope = scope::of(flags, flag::SUBSCRIBE_LOCAL, flag::SUBSCRIBE_REMOTE);
        match self.index.insert(pattern, subscription, rules) {
            Ok(key) => {
                self.index.guard(key, guard);
                if let Some(this) = self.conn(conn) {
                    this.subs.insert(sub, key);
                    if flags & flag::SINCE != 0 {
                        this.since.insert(sub);
                    }
                    this.expressions += usize::from(pattern.starts_with(PREFIX));
                }
                if let Some(want) = want {
                    self.interest.subscribe(key, want, group);
                }
                self.topics.epoch += 1;
                Ok(())
            }
            Err(fault) => {
                self.unuse_group(group);
                Err(fault)
            }
        }
    }

    fn use_group(&mut self, name: &str) -> u32 {
        if let Some(&group) = self.group_names.get(name) {
            self.groups[group as usize].uses += 1;
            return group;
        }
        let new = Group { name: name.into(), uses: 1, turn: 0 };
        let group = self.free_groups.pop().unwrap_or(self.groups.len() as u32);
        if group as usize == self.groups.len() {
            self.groups.push(new);
        } else {
            self.groups[group as usize] = new;
        }
        self.group_names.insert(name.into(), group);
        group
    }

    fn unuse_group(&mut self, group: u32) {
        if let Some(this) = self.groups.get_mut(group as usize) {
            this.uses -= 1;
            if this.uses == 0 {
                self.group_names.remove(&this.name);
                self.free_groups.push(group);
            }
        }
    }

    pub(super) fn drop_subscription(&mut self, key: u32) {
        let group = self.index.get(key).group;
        self.index.remove(key);
        self.interest.unsubscribe(key);
        self.unuse_group(group);
        self.topics.epoch += 1;
    }

    fn unsubscribe(&mut self, conn: u32, sub: u32, number: u64) {
        match self.conn(conn).and_then(|this| this.subs.remove(&sub)) {
            Some(key) => {
                self.let_go(conn, sub);
                let (expression, scope) = (self.index.get(key).expression, self.index.get(key).scope);
                if let Some(this) = self.conn(conn) {
                    this.expressions -= usize::from(expression);
                    let before = this.cursors.len();
                    this.cursors.retain(|&(other, _), _| other != sub);
                    // The driver delivers messages to some subscriptions that other nodes do not know.
                    if this.since.remove(&sub) || this.cursors.len() < before || scope == scope::LOCAL {
                        self.events.push(Event::Unsubscribe { conn, sub });
                    }
                }
                self.drop_subscription(key);
                self.result(conn, number, code::OK, 0, "");
            }
            None => self.reject(conn, number, &Fault::new(code::UNKNOWN, format!("no subscription has the id {sub}"))),
        }
    }

    /// Reports requests on this topic as events.
    pub fn internal(&mut self, text: &str) {
        let topic = self.topics.use_text(text);
        self.services.insert(topic, Service::Internal);
    }

    /// Adds a service after the driver has accepted it, and returns the code. Queues its RESULT, unless WAIT is set.
    pub fn serve(&mut self, conn: u32, service: u32, number: u64, topic: &str, flags: u8) -> u16 {
        let code = match self.add_service(conn, service, topic, flags) {
            Ok(()) => {
                if flags & flag::WAIT == 0 {
                    self.result(conn, number, code::OK, 0, "");
                }
                code::OK
            }
            Err(fault) => {
                self.reject(conn, number, &fault);
                fault.code
            }
        };
        self.answered_by_driver(conn);
        code
    }

    fn add_service(&mut self, conn: u32, id: u32, text: &str, flags: u8) -> Checked<()> {
        let (limits, shared) = (self.limits, flags & flag::SHARED != 0);
        let scope = scope::of(flags, flag::LOCAL, flag::REMOTE);
        let Some(this) = self.conn(conn).filter(|this| this.state == State::Open) else { return Ok(()) };
        if this.services.contains_key(&id) {
            return Err(Fault::new(code::DUPLICATE, format!("service id {id} is in use")));
        }
        if this.services.len() >= limits.subscriptions {
            return Err(Fault::new(code::TOO_MANY_SUBSCRIPTIONS, format!("{} services", limits.subscriptions)));
        }
        let checked = Self::may_serve(text, limits.topic)?;
        let topic = self.topics.use_text(checked);
        let taken = scope != scope::LOCAL && self.served_remotely(topic, shared);
        let service = match (self.services.get(&topic), shared) {
            (None, true) if !taken => Service::Shared(1),
            (Some(Service::Shared(count)), true) if !taken => Service::Shared(count + 1),
            (None, false) if !taken => Service::Client { conn, id, scope },
            _ => {
                self.topics.unuse(topic);
                return Err(Fault::new(code::SERVICE_TAKEN, format!("{checked:?} is served already")));
            }
        };
        self.services.insert(topic, service);
        let (group, rules) = (Box::default(), Box::default());
        let flags = flags & (flag::SHARED | flag::ASKS);
        let announced = limits.links > 0 && scope != scope::LOCAL;
        let want = announced.then(|| Want { service: true, text: checked.into(), group, rules, policy: 0, flags });
        let interest = want.map_or(0, |want| self.interest.add(want, topic));
        if let Some(this) = self.conn(conn) {
            this.services.insert(id, Served { topic, shared, interest });
        }
        Ok(())
    }

    fn drop_service(&mut self, gone: Served) {
        let topic = gone.topic;
        self.interest.remove(gone.interest);
        match self.services.get_mut(&topic) {
            Some(Service::Shared(count)) if *count > 1 => *count -= 1,
            _ => {
                self.services.remove(&topic);
            }
        }
        self.topics.unuse(topic);
    }

    fn unserve(&mut self, conn: u32, service: u32, number: u64) {
        match self.conn(conn).and_then(|this| this.services.remove(&service)) {
            Some(gone) => {
                if gone.shared {
                    let topic = self.topics.text(gone.topic).into();
                    self.events.push(Event::Unserve { conn, service, topic });
                }
                self.drop_service(gone);
                self.result(conn, number, code::OK, 0, "");
            }
            None => self.reject(conn, number, &Fault::new(code::UNKNOWN, format!("no service has the id {service}"))),
        }
    }

    /// Removes a connection with its subscriptions, services and requests.
    pub fn disconnect(&mut self, conn: u32) {
        self.release(conn);
        let Some(mut gone) = self.conns.get_mut(conn as usize).and_then(Option::take) else { return };
        self.free.push(conn);
        self.stats.closed += 1;
        gone.count.dropped += self.count_deferred(gone.deferred.take());
        add(&mut self.stats.count, &gone.count);
        if self.links.contains(&conn) {
            add(&mut self.stats.linked, &gone.count);
        }
        self.crowded.retain(|&other| other != conn);
        self.holding.retain(|&other| other != conn);
        self.ready.retain(|&other| other != conn);
        self.events.retain(|event| !matches!(event, Event::Pause(other) | Event::Resume(other) | Event::Wait(other) | Event::Read(other) | Event::Yield(other) if *other == conn));
        if self.sessions.get(&gone.who.session) == Some(&conn) {
            self.sessions.remove(&gone.who.session);
        }
        self.forget_runs(conn);
        for (_, key) in gone.subs.drain() {
            self.drop_subscription(key);
        }
        self.links.retain(|&other| other != conn);
        for (id, served) in gone.services.drain() {
            if gone.role == Role::Client {
                self.drop_service(served);
            } else {
                self.drop_remote(conn, id, served.topic);
            }
        }
        for topic in gone.topics_in.drain(..) {
            if let Named::Topic { topic, .. } = topic {
                self.topics.unuse(topic);
            }
        }
        for topic in gone.topics_out.keys() {
            self.topics.unuse(*topic);
        }
        self.end_calls(gone.owed.drain().collect(), gone.asked.drain().map(|(_, id)| id).collect(), &gone.who);
        while let Some(buffer) = gone.outbox.pop(&mut self.pool) {
            self.pool.put(buffer);
        }
    }
}
