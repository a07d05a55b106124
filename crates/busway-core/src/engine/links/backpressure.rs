//! Backpressure over links: messages of other nodes for slow clients. The link accepts messages in flight and sends
//! HOLD for interest without room, so that only publishers of such messages wait.

use crate::engine::connection::{Connection, Hold, Role, State};
use crate::engine::publish::u32_at;
use crate::engine::Engine;
use crate::engine::Event;
use crate::matching::route::{Member, Route};
use crate::wire::frame::{flag, kind, policy, Writer};

/// Milliseconds after which HOLD is repeated.
const AGAIN: u64 = 100;

impl Engine {
    /// Sends HOLD for the interest ids of a message of a link whose subscribers have no room.
    pub(in crate::engine) fn send_full(&mut self, link: u32, ids: &[u8], way: &Route, alone: bool, stored: bool) {
        // A stream subscription falls behind instead.
        let since = |member: &Member| {
            let this = self.conns.get(member.conn as usize).and_then(Option::as_deref);
            stored && this.is_some_and(|this| this.since.contains(&member.id))
        };
        let mut slow: Vec<(u32, u32)> = Vec::new();
        if alone {
            let ours = way.alone().filter(|member| !member.link && !since(member) && self.is_slow(member));
            slow.extend(ours.map(|member| (member.conn, member.id)));
        }
        for team in way.teams.iter().filter(|team| self.named.contains(&team.group)) {
            let ours = || team.members.iter().filter(|member| !member.link);
            // A group has no room if no member has room.
            if ours().all(|member| self.is_slow(member)) {
                slow.extend(ours().map(|member| (member.conn, member.id)));
            }
        }
        for (conn, sub) in slow {
            let key = self.conn(conn).and_then(|this| this.subs.get(&sub).copied());
            // Other subscriptions of the connection may have policies that block no publisher.
            let key = key.filter(|&key| self.index.get(key).policy == policy::BLOCK);
            let Some(id) = key.and_then(|key| self.interest.of(key)) else { continue };
            if ids.chunks_exact(4).any(|named| u32_at(named, 0) == id) {
                self.say_hold(link, id, conn);
            }
        }
    }

    /// True if publishers must wait for this subscription of a client.
    fn is_slow(&self, member: &Member) -> bool {
        let this = self.conns.get(member.conn as usize).and_then(Option::as_deref);
        this.filter(|this| this.state == State::Open).is_some_and(|this: &Connection| {
            let crowded = member.policy == policy::BLOCK && this.crowded && !this.stuck;
            crowded || this.held.get(&member.id).is_some_and(Hold::blocks)
        })
    }

    fn say_hold(&mut self, link: u32, id: u32, slow: u32) {
        let now = self.now;
        let Some(peer) = self.conn(link).and_then(|this| this.peer.as_mut()) else { return };
        if peer.holds.contains_key(&id) {
            return;
        }
        if peer.holds.is_empty() {
            peer.hold_sent = now;
        }
        peer.holds.insert(id, slow);
        peer.words += 1;
        let words = peer.words;
        self.hold_frame(link, id, flag::FULL, words);
        if let Some(this) = self.conn(slow) {
            if !this.waiters.contains(&link) {
                this.waiters.push(link);
            }
        }
        self.events.push(Event::Wait(link));
    }

    /// Reports that a slow subscriber has room again, or blocks no longer.
    pub(in crate::engine) fn send_room(&mut self, link: u32, slow: u32) {
        let Some(peer) = self.conn(link).and_then(|this| this.peer.as_mut()) else { return };
        let free: Vec<u32> = peer.holds.iter().filter(|(_, of)| **of == slow).map(|(&id, _)| id).collect();
        for id in free {
            let Some(peer) = self.conn(link).and_then(|this| this.peer.as_mut()) else { return };
            peer.holds.remove(&id);
            peer.words += 1;
            let words = peer.words;
            self.hold_frame(link, id, 0, words);
        }
    }

    /// Repeats HOLD after some time, as long as the subscriber without room makes progress.
    pub(in crate::engine) fn repeat_hold(&mut self) {
        let now = self.now;
        for link in self.links.clone() {
            let Some(peer) = self.conn(link).and_then(|this| this.peer.as_mut()) else { continue };
            if peer.holds.is_empty() || now.saturating_sub(peer.hold_sent) < AGAIN {
                continue;
            }
            peer.hold_sent = now;
            peer.words += 1;
            let (words, ids): (u64, Vec<u32>) = (peer.words, peer.holds.keys().copied().collect());
            for id in ids {
                self.hold_frame(link, id, flag::FULL, words);
            }
        }
    }

    fn hold_frame(&mut self, link: u32, id: u32, flags: u8, words: u64) {
        self.put(link, |out| {
            Writer::new(out, kind::HOLD, flags).u16(0).u32(id).u64(words).end();
        });
    }

    /// MISSED of a link: messages for an interest of ours were dropped at the other node.
    pub(in crate::engine) fn missed_in(&mut self, id: u32, count: u64) {
        let Some(want) = self.interest.want(id).filter(|_| count > 0) else { return };
        // Limits the count, so that sums can't overflow.
        let count = count.min(u64::from(u32::MAX));
        let keys = self.index.at(&want.text);
        let ours = keys.into_iter().filter(|&key| self.interest.of(key) == Some(id));
        let grouped = !want.group.is_empty();
        // The member of a group that would have got the message is not known.
        let to: Vec<_> = ours.take(if grouped { 1 } else { usize::MAX }).map(|key| *self.index.get(key)).collect();
        for sub in to {
            if let Some(this) = self.conn(sub.conn).filter(|this| this.role == Role::Client) {
                this.count.dropped += count;
                this.outbox.miss_many(sub.id, count);
            }
            self.queue(sub.conn);
        }
    }
}
