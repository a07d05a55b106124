//! Requests and pushes between nodes: forwards those of our clients, and answers those of other nodes.

use std::sync::Arc;

use crate::engine::connection::{Role, Served, Who};
use crate::engine::pending::Pending;
use crate::engine::publish::{From, Passing};
use crate::engine::requests::MOST;
use crate::engine::retained::DRIVEN;
use crate::engine::{Engine, Event, Service};
use crate::wire::frame::{code, flag, kind, scope, Checked, Fault, Writer, HEAD};

/// A service of another node.
#[derive(Debug, Clone, Copy)]
pub struct RemoteService {
    conn: u32,
    id: u32,
    shared: bool,
}

/// OFFER, CALL or ASK of another node.
pub(in crate::engine) struct Wish<'a> {
    pub conn: u32,
    pub flags: u8,
    pub topic: u32,
    pub who: Arc<Who>,
    /// The id of our interest.
    pub id: u32,
    pub number: u64,
    pub body: &'a [u8],
}

impl Wish<'_> {
    /// As a REQUEST for the driver, with the number in place of topic and time limit.
    fn frame(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(HEAD + self.body.len());
        Writer::new(&mut out, kind::REQUEST, self.flags).u16(0).u64(self.number).bytes(self.body).end();
        out
    }
}

impl Engine {
    pub(in crate::engine) fn role(&self, conn: u32) -> Role {
        self.conns.get(conn as usize).and_then(Option::as_ref).map_or(Role::Client, |this| this.role)
    }

    /// Selects the service for a request of a client: our own clients come first.
    pub(in crate::engine) fn service_for(&self, topic: u32, scope: u8) -> Option<Service> {
        let here = self.services.get(&topic).copied().filter(|service| match service {
            Service::Internal => true,
            Service::Client { scope: from, .. } => scope != scope::REMOTE && *from != scope::REMOTE,
            Service::Shared(_) => scope != scope::REMOTE,
        });
        let remote_services = || {
            let all = self.remote_services.get(&topic).filter(|_| scope != scope::LOCAL)?;
            let alone = all.iter().find(|one| !one.shared);
            Some(alone.map_or(Service::Shared(0), |one| Service::Client { conn: one.conn, id: one.id, scope }))
        };
        here.or_else(remote_services)
    }

    /// True if other nodes serve a topic such that no client here can serve it, too.
    pub(in crate::engine) fn served_remotely(&self, topic: u32, shared: bool) -> bool {
        self.remote_services.get(&topic).is_some_and(|all| !shared || all.iter().any(|one| !one.shared))
    }

    /// Adds a service of another node.
    pub(in crate::engine) fn serve_remote(&mut self, conn: u32, id: u32, text: &str, flags: u8) -> Checked<()> {
        let topic = self.topics.use_text(Self::may_serve(text, self.topic_limit(conn))?);
        let shared = flags & flag::SHARED != 0;
        let here = match self.services.get(&topic) {
            Some(Service::Client { scope, .. }) => *scope != scope::LOCAL,
            Some(Service::Shared(_)) => !shared,
            _ => false,
        };
        if here || self.served_remotely(topic, shared) {
            self.events.push(Event::Conflict { conn, topic: text.into() });
        }
        if shared {
            self.events.push(Event::Provider { conn, service: id, topic: text.into(), flags });
        }
        self.remote_services.entry(topic).or_default().push(RemoteService { conn, id, shared });
        if let Some(this) = self.conn(conn) {
            this.services.insert(id, Served { topic, shared, interest: 0 });
        }
        Ok(())
    }

    pub(in crate::engine) fn unserve_remote(&mut self, conn: u32, id: u32) {
        let Some(gone) = self.conn(conn).and_then(|this| this.services.remove(&id)) else { return };
        if gone.shared {
            let topic = self.topics.text(gone.topic).into();
            self.events.push(Event::Unserve { conn, service: id, topic });
        }
        self.drop_remote(conn, id, gone.topic);
    }

    pub(in crate::engine) fn drop_remote(&mut self, conn: u32, id: u32, topic: u32) {
        if let Some(all) = self.remote_services.get_mut(&topic) {
            all.retain(|one| (one.conn, one.id) != (conn, id));
            if all.is_empty() {
                self.remote_services.remove(&topic);
            }
        }
        self.topics.unuse(topic);
    }

    /// OFFER of another node: offers the push to our clients, one after the other.
    pub(in crate::engine) fn offer_in(&mut self, wish: Wish) -> Checked<()> {
        let Wish { conn, number, .. } = wish;
        if self.interest.group(wish.id).is_none() {
            self.willing(conn, number, code::NO_CONSUMER);
            return Ok(());
        }
        if let Err(fault) = self.may_ask(conn, number)?.and_then(|()| self.may_offer(conn, wish.body.len())) {
            self.willing(conn, number, fault.code);
            return Ok(());
        }
        self.begin_offer(Pending::Offer {
            origin: conn,
            number,
            consumer: u32::MAX,
            sub: 0,
            topic: wish.topic,
            flags: wish.flags,
            body: wish.body.into(),
            tried: Vec::new(),
            full: false,
            who: Some(wish.who),
            scope: scope::GLOBAL,
        });
        Ok(())
    }

    /// CALL of another node: forwards it to the client that serves the topic, or to the driver for a shared service.
    pub(in crate::engine) fn call_in(&mut self, wish: &Wish) -> Checked<()> {
        let Wish { conn, number, topic, flags, .. } = *wish;
        let named = self.interest.topic(wish.id) == Some(topic);
        let done = match self.may_ask(conn, number)? {
            Err(fault) => Err(fault),
            Ok(()) => match self.services.get(&topic).copied().filter(|_| named) {
                Some(Service::Client { conn: server, id, scope }) if scope != scope::LOCAL => {
                    let passing = Passing::new(kind::CALL, flags, topic, wish.body);
                    self.call((server, id), From::Remote(&wish.who), (conn, number), passing)
                }
                Some(Service::Shared(_)) => {
                    self.remember(wish, true);
                    let topic = self.topics.text(topic).into();
                    self.events.push(Event::Request { conn, number, topic, frame: wish.frame(), remote: true });
                    Ok(())
                }
                _ => Err(Fault::new(code::SERVICE_GONE, "nobody here serves it any more")),
            },
        };
        if let Err(fault) = done {
            self.reply_error(conn, number, &fault);
        }
        Ok(())
    }

    /// ASK of another node: the driver knows the providers of the service.
    pub(in crate::engine) fn ask_in(&mut self, wish: &Wish) {
        let Wish { conn, number, topic, .. } = *wish;
        let waiting = self.conn(conn).and_then(|this| this.peer.as_ref()).map_or(0, |peer| peer.callers.len());
        if self.interest.topic(wish.id) != Some(topic) || waiting >= MOST {
            self.willing(conn, number, code::REFUSED);
            return;
        }
        self.remember(wish, false);
        let topic = self.topics.text(topic).into();
        self.events.push(Event::Ask { conn, number, topic, frame: wish.frame() });
    }

    fn remember(&mut self, wish: &Wish, asked: bool) {
        let Some(this) = self.conn(wish.conn) else { return };
        if asked {
            this.asked.insert(wish.number, DRIVEN);
        }
        if let Some(peer) = this.peer.as_mut() {
            peer.callers.insert(wish.number, wish.who.clone());
        }
    }

    /// The requester at another node, from the frame that the driver has stored.
    pub(in crate::engine) fn caller(&mut self, origin: u32, frame: &[u8]) -> Option<Arc<Who>> {
        let peer = self.conn(origin)?.peer.as_ref()?;
        let number = u64::from_le_bytes(frame.get(8..16)?.try_into().ok()?);
        peer.callers.get(&number).cloned()
    }

    /// ACCEPT to another node: whether its offer was accepted, or a call would be.
    pub fn willing(&mut self, conn: u32, number: u64, code: u16) {
        if let Some(this) = self.conn(conn).filter(|this| !this.asked.contains_key(&number)) {
            // After a positive answer to an ASK, the CALL names the requester again.
            this.peer.as_mut().map(|peer| peer.callers.remove(&number));
        }
        self.put(conn, |out| {
            Writer::new(out, kind::ACCEPT, 0).u16(code).u64(number).end();
        });
    }
}
