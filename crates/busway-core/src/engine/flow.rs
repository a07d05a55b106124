//! Flow control: crowded outboxes and held subscriptions, blocked publishers, and dropped messages. It also returns the
//! output to the driver.
//!
//! An outbox is crowded from `Limits::mark` on: there `block` stops publishers, long before the outbox is full, so that
//! a fast publisher does not fill the outboxes of all its subscribers. It is full at its limit, where the other
//! policies drop. A subscription is held when its client has no room for it; other subscriptions of the connection
//! continue.

use super::{Engine, Event};
use crate::engine::connection::{Connection, Hold, State};
use crate::matching::route::{Member, Route};
use crate::wire::frame::{code, policy, Fault};

/// Bytes of a backlog that may wait in an outbox, so that live messages need not wait for long.
pub const PORTION: usize = 256 << 10;

impl Engine {
    /// Appends a frame that must not be dropped.
    pub(super) fn put(&mut self, conn: u32, write: impl FnOnce(&mut Vec<u8>)) {
        let (limit, mark) = (self.limits.outbox, self.limits.mark());
        let Some(this) = self.conns.get_mut(conn as usize).and_then(Option::as_deref_mut) else { return };
        if this.state == State::Closing {
            return;
        }
        let before = this.outbox.bytes();
        this.outbox.push(&mut self.pool, 64, write);
        let crowded = this.outbox.bytes() >= mark && !this.crowded;
        self.queue(conn);
        if crowded {
            self.mark_crowded(conn);
        }
        // Answers can't be dropped: a client that requests and never reads is disconnected.
        if before > 2 * limit {
            self.fail(conn, &Fault::new(code::SLOW_CONSUMER, "answers are asked for and never read"));
        }
    }

    pub(super) fn queue(&mut self, conn: u32) {
        if let Some(this) = self.conn(conn) {
            if !this.queued && this.writable {
                this.queued = true;
                self.ready.push(conn);
            }
        }
    }

    pub(super) fn mark_crowded(&mut self, conn: u32) {
        if let Some(this) = self.conn(conn) {
            this.crowded = true;
            this.progress = None;
            self.crowded.push(conn);
        }
    }

    /// The connection that must have room before a message of this route may pass. A client does not wait for its own
    /// full subscription, which it may have to empty itself. A stream subscription falls behind instead.
    pub(super) fn obstacle(&self, from: u32, route: &Route, stream: Option<u32>) -> Option<(u32, bool)> {
        let open = |to: u32| self.conns.get(to as usize).and_then(Option::as_ref).filter(|to| to.state == State::Open);
        let holds = |to: u32, policy: u8, ids: &[u32]| {
            let this = open(to)?;
            let waits = |id: &&u32| {
                let remote = this.peer.is_some() && this.since.contains(*id);
                stream.is_none_or(|stream| !remote && !this.cursors.contains_key(&(**id, stream)))
            };
            let blocks = |id: &u32| this.held.get(id).is_some_and(Hold::blocks);
            let held = to != from && !this.held.is_empty() && ids.iter().filter(waits).any(blocks);
            let crowded = policy == policy::BLOCK && this.crowded && !this.stuck && ids.iter().any(|id| waits(&id));
            (held || crowded).then_some((to, held))
        };
        let wants = |to: u32, echo: bool| to != from || echo;
        let alone = route.targets.iter().find_map(|target| {
            let mut range = target.from..target.to;
            let found = holds(target.conn, target.policy, &route.ids[range.clone()])?;
            (!target.picky || range.any(|i| wants(target.conn, route.echo[i]))).then_some(found)
        });
        alone.or_else(|| {
            let free = |m: &&Member| open(m.conn).is_some_and(|this| !this.crowded && !this.held.contains_key(&m.id));
            // A group blocks only if no member has room.
            route.teams.iter().find_map(|team| {
                let mut members = team.members.iter().filter(|m| wants(m.conn, m.echo));
                if members.clone().any(|m| free(&m)) {
                    return None;
                }
                members.find_map(|m| holds(m.conn, m.policy, &[m.id]))
            })
        })
    }

    /// HOLD: a client has no room for a subscription, still has none while its consumer works, or has room again.
    pub(super) fn hold_subscription(&mut self, conn: u32, sub: u32, yes: bool, taken: u64) {
        let Some(key) = self.conn(conn).and_then(|this| this.subs.get(&sub).copied()) else { return };
        if !yes {
            self.let_go(conn, sub);
            return;
        }
        let policy = self.index.get(key).policy;
        let Some(this) = self.conn(conn) else { return };
        if this.held.is_empty() {
            self.holding.push(conn);
        }
        if let Some(this) = self.conn(conn) {
            let new = Hold { policy, taken, since: None, idle: None, silent: false, stuck: false };
            let hold = this.held.entry(sub).or_insert(new);
            // It was reported again, but its consumer is still idle.
            *hold = if hold.taken == taken { Hold { since: None, silent: false, ..*hold } } else { new };
        }
    }

    /// Ends the hold of a subscription.
    pub(super) fn let_go(&mut self, conn: u32, sub: u32) {
        let Some(this) = self.conn(conn) else { return };
        if this.held.remove(&sub).is_none() {
            return;
        }
        if this.held.is_empty() {
            self.holding.retain(|&other| other != conn);
        }
        self.release(conn);
        self.tell_room(conn);
    }

    /// The subscriptions of a delivery that are not held, if others of the connection are.
    pub(super) fn unheld(&mut self, own: bool, to: u32, ids: &[u32], stored: bool) -> Vec<u32> {
        let Some(this) = self.conns[to as usize].as_deref_mut() else { return Vec::new() };
        let own = |hold: &Hold| own && hold.blocks();
        // A stream subscription of another node falls behind there.
        let free = |id: &u32| stored && this.peer.is_some() && this.since.contains(id);
        let (held, open): (Vec<u32>, Vec<u32>) =
            ids.iter().partition(|id| this.held.get(id).is_some_and(|hold| !own(hold)) && !free(id));
        if let Some(id) = held.iter().find(|id| this.held.get(id).is_some_and(|hold| hold.policy == policy::DISCONNECT))
        {
            let text = format!("subscription {id} of this client is full");
            self.fail(to, &Fault::new(code::SLOW_CONSUMER, text));
            return Vec::new();
        }
        if !held.is_empty() {
            this.count.dropped += 1;
            this.outbox.miss(&held);
            self.queue(to);
        }
        open
    }

    /// Blocks a connection until `slow` has room; if that may take long, its publishes are set aside.
    pub(super) fn block(&mut self, conn: u32, slow: u32, lasts: bool) {
        let late = self.late;
        if let Some(this) = self.conn(slow) {
            this.waiters.push(conn);
        }
        if let Some(this) = self.conn(conn) {
            this.blocked_by = Some(slow);
            if lasts && !late {
                this.deferred = Some(Box::default());
            }
            let read = lasts || late;
            self.events.push(if read { Event::Wait(conn) } else { Event::Pause(conn) });
        }
    }

    /// Stops a connection that caused much work, until other connections were processed.
    pub(super) fn yield_to_others(&mut self, conn: u32) {
        self.index.expressions.steps = 0;
        if let Some(this) = self.conn(conn) {
            this.blocked_by = Some(conn);
            self.events.push(Event::Yield(conn));
        }
    }

    /// Resumes the connections that this connection blocks.
    pub(super) fn release(&mut self, conn: u32) {
        let Some(this) = self.conn(conn) else { return };
        for waiter in std::mem::take(&mut this.waiters) {
            if self.conn(waiter).is_some_and(|waiter| waiter.blocked_by == Some(conn)) {
                self.events.push(Event::Resume(waiter));
            }
            self.send_room(waiter, conn);
        }
    }

    /// Makes room for a message to a crowded connection. Returns whether it may be appended.
    pub(super) fn make_room(&mut self, to: u32, ids: &[u32], policy: u8, remote: bool) -> bool {
        let limit = self.limits.outbox;
        let Some(this) = self.conns[to as usize].as_deref_mut() else { return false };
        match policy {
            // If a node ignores HOLD, its messages are dropped in the end.
            policy::BLOCK if !(this.stuck || remote && this.outbox.bytes() >= 2 * limit) => return true,
            policy::BLOCK => {}
            _ if this.outbox.bytes() < limit => return true,
            policy::DROP_OLDEST => {
                this.count.dropped += this.outbox.drop_oldest(&mut self.pool, limit);
                if this.outbox.bytes() < limit {
                    return true;
                }
            }
            policy::DISCONNECT => {
                let text = format!("{} bytes wait to be read, the limit is {limit}", this.outbox.bytes());
                self.fail(to, &Fault::new(code::SLOW_CONSUMER, text));
                return false;
            }
            _ => {}
        }
        this.count.dropped += 1;
        this.outbox.miss(ids);
        false
    }

    /// The transport accepts no more output, or does again.
    pub fn set_writable(&mut self, conn: u32, yes: bool) {
        let Some(this) = self.conn(conn) else { return };
        this.writable = yes;
        if yes && !this.outbox.is_empty() {
            self.queue(conn);
        }
    }

    /// The next bytes to write, and their connection.
    pub fn next_output(&mut self) -> Option<(u32, Vec<u8>)> {
        self.tell_interest();
        loop {
            let conn = *self.ready.last()?;
            let mark = self.limits.mark();
            let Some(this) = self.conns.get_mut(conn as usize).and_then(Option::as_deref_mut) else {
                self.ready.pop();
                continue;
            };
            let bytes = if this.writable { this.outbox.pop(&mut self.pool) } else { None };
            let Some(bytes) = bytes else {
                this.queued = false;
                self.ready.pop();
                continue;
            };
            this.progress = None;
            this.count.sent_bytes += bytes.len() as u64;
            if this.crowded && this.outbox.bytes() <= mark / 2 {
                this.crowded = false;
                this.stuck = false;
                self.crowded.retain(|&other| other != conn);
                self.release(conn);
                self.tell_behind(conn);
            }
            self.tell_room(conn);
            return Some((conn, bytes));
        }
    }

    /// The driver has more for a connection or one of its subscriptions than may wait there: it gets an event when
    /// there is room.
    pub fn want_room(&mut self, conn: u32, sub: Option<u32>) {
        let Some(this) = self.conn(conn) else { return };
        this.wants_room = true;
        // For a subscription without room, report only the change, since the driver would ask again at once.
        if sub.is_none_or(|sub| this.state == State::Open && !this.held.contains_key(&sub)) {
            self.tell_room(conn);
        }
    }

    pub(super) fn tell_room(&mut self, conn: u32) {
        let portion = self.limits.portion();
        let wants = |this: &&mut Connection| {
            (this.wants_room || this.cursors.values().any(|cursor| cursor.behind)) && this.outbox.bytes() < portion
        };
        if let Some(this) = self.conn(conn).filter(wants) {
            this.wants_room = false;
            self.events.push(Event::Room(conn));
        }
    }

    /// True if a connection is blocked by a crowded one, so that `tick` must be called.
    pub fn has_blocked(&self) -> bool {
        self.slow().any(|conn| self.conns[conn as usize].as_ref().is_some_and(|this| !this.waiters.is_empty()))
    }

    /// Connections that may block others.
    pub(super) fn slow(&self) -> impl Iterator<Item = u32> + '_ {
        let held = self.holding.iter().filter(|conn| !self.crowded.contains(conn));
        self.crowded.iter().chain(held).copied()
    }

    /// Sets the time: a crowded connection without progress for the stall time blocks no longer, nor does a held
    /// subscription without a HOLD for that time.
    pub fn tick(&mut self, now: u64) {
        self.now = now;
        let (stall, patience) = (self.limits.stall, self.limits.patience);
        for conn in self.slow().collect::<Vec<_>>() {
            let Some(this) = self.conn(conn).filter(|this| !this.waiters.is_empty()) else { continue };
            let over = |since: &mut Option<u64>, stuck: &mut bool, most: u64| {
                let due = now.saturating_sub(*since.get_or_insert(now)) >= most;
                due && !std::mem::replace(stuck, true)
            };
            let mut free = this.crowded && over(&mut this.progress, &mut this.stuck, stall);
            for hold in this.held.values_mut() {
                free |= over(&mut hold.since, &mut hold.silent, stall);
                free |= over(&mut hold.idle, &mut hold.stuck, patience);
            }
            if free {
                self.release(conn);
            }
        }
        self.read_on();
        self.repeat_hold();
    }
}
