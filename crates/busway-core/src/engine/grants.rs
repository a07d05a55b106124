//! Enforcement of grants: refuses what the user of a connection may not do, and counts it.
//!
//! The answer for a topic is cached in the slot that the connection has given the topic, so an allowed message costs a
//! test of bits. The driver sets new grants when the users have changed; that clears the cache.

use std::sync::Arc;

use super::{Engine, Event};
use crate::engine::connection::Named;
use crate::matching::grants::{verb, Decision, Grants, VERBS};
use crate::matching::regex::PREFIX;
use crate::matching::topic::{check, is_reserved};
use crate::wire::frame::{code, flag, Fault};

impl Engine {
    /// Asks the grants of a connection for the topic in a slot, and caches the answer.
    pub(super) fn permit(&mut self, conn: u32, slot: u32, verb: u8) -> Result<(), Fault> {
        let Some(this) = self.conns.get_mut(conn as usize).and_then(Option::as_deref_mut) else { return Ok(()) };
        let Some(grants) = this.grants.as_ref() else { return Ok(()) };
        let Some(Named::Topic { topic, asked, allowed }) = this.topics_in.get_mut(slot as usize) else { return Ok(()) };
        let (topic, bit) = (*topic, 1 << verb);
        if *asked & bit == 0 {
            *asked |= bit;
            *allowed |= u8::from(grants.may(verb, self.topics.text(topic))) << verb;
        }
        if *allowed & bit != 0 {
            return Ok(());
        }
        let text = self.topics.text(topic).to_owned();
        Err(self.forbid(conn, verb, &text))
    }

    /// Asks the grants of a connection for a topic or pattern. The driver reports an invalid one.
    pub(super) fn permit_text(&mut self, conn: u32, verb: u8, requested: &str) -> Result<(), Fault> {
        let checked = if requested.starts_with(PREFIX) { Ok(requested) } else { check(requested) };
        let (Some(grants), Ok(requested)) = (self.grants_of(conn), checked) else { return Ok(()) };
        match grants.decide(verb, requested) {
            // Only subscriptions are filtered.
            Decision::Filtered if verb == verb::SUBSCRIBE => Ok(()),
            Decision::Allowed(..) => Ok(()),
            Decision::TooComplex => Err(Fault::too_complex(requested)),
            _ => Err(self.forbid(conn, verb, requested)),
        }
    }

    /// Asks for all verbs that a SUBSCRIBE needs. Events of the broker are observed.
    pub(super) fn permit_subscription(&mut self, conn: u32, flags: u8, pattern: &str) -> Result<(), Fault> {
        if self.grants_of(conn).is_none() {
            return Ok(());
        }
        if is_reserved(pattern.strip_prefix('/').unwrap_or(pattern)) {
            return self.permit_text(conn, verb::OBSERVE, pattern);
        }
        let listen = (flags & flag::LISTEN != 0).then_some(verb::OBSERVE);
        let since = (flags & flag::SINCE != 0).then_some(verb::READ);
        let verbs = [Some(verb::SUBSCRIBE), listen, since].into_iter().flatten();
        verbs.into_iter().try_for_each(|verb| self.permit_text(conn, verb, pattern))
    }

    /// The grants that decide for each message of a subscription; None: it gets all messages of its pattern.
    pub(super) fn guard_of(&self, conn: u32, pattern: &str) -> Option<Arc<Grants>> {
        let grants = self.grants_of(conn)?;
        (grants.decide(verb::SUBSCRIBE, pattern) == Decision::Filtered).then_some(grants)
    }

    fn grants_of(&self, conn: u32) -> Option<Arc<Grants>> {
        self.conns.get(conn as usize)?.as_ref()?.grants.clone()
    }

    /// Counts a refusal, reports the first one to the driver, and returns the error for the client.
    pub fn forbid(&mut self, conn: u32, verb: u8, requested: &str) -> Fault {
        self.stats.forbidden += 1;
        if let Some(this) = self.conn(conn) {
            this.refusals += 1;
            if this.refusals == 1 {
                self.events.push(Event::Refused { conn, verb, topic: requested.to_owned() });
            }
        }
        let name = VERBS.get(usize::from(verb)).copied().unwrap_or_default();
        Fault::new(code::FORBIDDEN, format!("may not {name} {requested:?}: no grant of the user allows it"))
    }

    /// How often the grants of a connection refused something since the last call. The next refusal is an event again.
    pub fn take_refusals(&mut self, conn: u32) -> u64 {
        self.conn(conn).map_or(0, |this| std::mem::take(&mut this.refusals))
    }

    /// Sets the grants of a connection whose subscriptions and services they still allow.
    pub fn regrant(&mut self, conn: u32, grants: Option<Arc<Grants>>) {
        let Some(this) = self.conns.get_mut(conn as usize).and_then(Option::as_deref_mut) else { return };
        for named in &mut this.topics_in {
            if let Named::Topic { asked, allowed, .. } = named {
                (*asked, *allowed) = (0, 0);
            }
        }
        for &key in this.subs.values() {
            self.index.reguard(key, grants.as_ref());
        }
        this.grants = grants;
        self.topics.epoch += 1;
    }
}
