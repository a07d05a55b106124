//! Counters: totals of the engine, those of a connection, and the topics in use with their users.

use super::{Engine, Service};
use crate::engine::connection::{Counters, Named};
use crate::matching::topic_level::TopicLevel;

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

/// The users of one topic.
#[derive(Debug, Default)]
pub struct TopicUsers {
    pub messages: u64,
    /// Connections that have published, pushed or requested on it.
    pub publishers: Vec<u32>,
    /// Connection, id and group of each subscription that matches it.
    pub subscriptions: Vec<(u32, u32, Box<str>)>,
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

    /// Adds at most `most` topics of the table to a report. Returns false after the last one.
    pub fn scan_topics(&self, level: &mut TopicLevel, most: usize) -> bool {
        let (end, more) = self.topics.each(level.next, most, |topic, messages| level.add(topic, messages));
        level.next = end;
        more
    }

    /// The users of a topic, which needs not be in use.
    pub fn topic_users(&mut self, topic: &str) -> TopicUsers {
        let mut users = TopicUsers::default();
        if let Some(id) = self.topics.find(topic) {
            users.messages = self.topics.messages(id);
            let is_here = |named: &Named| matches!(named, Named::Topic { topic, .. } if *topic == id);
            let named =
                |conn: &u32| self.conns[*conn as usize].as_ref().is_some_and(|this| this.topics_in.iter().any(is_here));
            users.publishers = (0..self.conns.len() as u32).filter(named).collect();
        }
        let mut keys = Vec::new();
        // A topic whose matching exceeds the limits has no receivers.
        let _ = self.index.matches(topic, &mut keys);
        let subscription = |key: u32| {
            let sub = self.index.get(key);
            let group = self.groups.get(sub.group as usize).map_or("".into(), |group| group.name.clone());
            (sub.conn, sub.id, group)
        };
        users.subscriptions = keys.into_iter().map(subscription).collect();
        users
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
