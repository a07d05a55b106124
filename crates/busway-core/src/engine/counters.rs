//! Counters: totals of the engine, and those of a connection.

use super::{Engine, Service};
use crate::engine::connection::Counters;

/// Totals over all connections, including closed ones.
#[derive(Debug, Default, Clone, Copy)]
pub struct Stats {
    pub count: Counters,
    /// The totals of closed links.
    pub linked: Counters,
    pub unroutable: u64,
    pub rejected: u64,
    /// Frames that the grants of a user refused.
    pub forbidden: u64,
    pub late_replies: u64,
    pub requests: u64,
    pub pushes: u64,
    pub protocol_errors: u64,
    pub rule_errors: u64,
    pub opened: u64,
    pub closed: u64,
}

impl Engine {
    pub fn totals(&self) -> Vec<(&'static str, u64)> {
        let mut count = self.stats.count;
        for conn in self.conns.iter().flatten() {
            add(&mut count, &conn.count);
        }
        let mut linked = self.stats.linked;
        for conn in self.links.iter().filter_map(|&conn| self.conns[conn as usize].as_ref()) {
            add(&mut linked, &conn.count);
        }
        let s = &self.stats;
        let outbox: usize = self.conns.iter().flatten().map(|conn| conn.outbox.bytes()).sum();
        let deferred: usize = self.conns.iter().flatten().map(|conn| conn.aside_bytes()).sum();
        vec![
            ("connections", (self.conns.len() - self.free.len()) as u64),
            ("connections_opened", s.opened),
            ("connections_closed", s.closed),
            ("subscriptions", self.index.len() as u64),
            ("services", self.services.values().map(Service::count).sum()),
            ("topics", self.topics.len() as u64),
            ("groups", self.group_names.len() as u64),
            ("pending", self.pending.len() as u64),
            ("outbox_bytes", outbox as u64),
            ("aside_bytes", deferred as u64),
            ("slow_consumers", self.slow().count() as u64),
            ("messages_received", count.received),
            ("received_bytes", count.received_bytes),
            ("messages_delivered", count.delivered),
            ("delivered_bytes", count.delivered_bytes),
            ("messages_dropped", count.dropped),
            ("messages_unroutable", s.unroutable),
            ("messages_rejected", s.rejected),
            ("forbidden", s.forbidden),
            ("pushes", s.pushes),
            ("requests", s.requests),
            ("late_replies", s.late_replies),
            ("protocol_errors", s.protocol_errors),
            ("rule_errors", s.rule_errors),
            ("listeners", self.index.listeners as u64),
            ("watchers", self.index.watchers as u64),
            ("links", self.links.len() as u64),
            ("interest", self.interest.len() as u64),
            ("linked_received", linked.received),
            ("linked_received_bytes", linked.received_bytes),
            ("linked_delivered", linked.delivered),
            ("linked_delivered_bytes", linked.sent_bytes),
            ("linked_dropped", linked.dropped),
        ]
    }

    pub fn figures(&self, conn: u32) -> Vec<(&'static str, u64)> {
        let Some(conn) = self.conns.get(conn as usize).and_then(Option::as_ref) else { return Vec::new() };
        vec![
            ("client", u64::from(conn.who.client)),
            ("subscriptions", conn.subs.len() as u64),
            ("services", conn.services.len() as u64),
            ("pending", conn.asked.len() as u64),
            ("outbox_bytes", conn.outbox.bytes() as u64),
            ("aside_bytes", conn.aside_bytes() as u64),
            ("held", conn.held.len() as u64),
            ("messages_received", conn.count.received),
            ("received_bytes", conn.count.received_bytes),
            ("messages_delivered", conn.count.delivered),
            ("delivered_bytes", conn.count.delivered_bytes),
            ("sent_bytes", conn.count.sent_bytes),
            ("messages_dropped", conn.count.dropped),
        ]
    }

    pub fn outbox_bytes(&self, conn: u32) -> usize {
        self.conns.get(conn as usize).and_then(Option::as_ref).map_or(0, |conn| conn.outbox.bytes())
    }
}

pub(super) fn add(sum: &mut Counters, by: &Counters) {
    sum.received += by.received;
    sum.received_bytes += by.received_bytes;
    sum.delivered += by.delivered;
    sum.delivered_bytes += by.delivered_bytes;
    sum.sent_bytes += by.sent_bytes;
    sum.dropped += by.dropped;
}
