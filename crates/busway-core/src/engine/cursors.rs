//! Stream subscriptions, which miss no message: which ones are live or behind, and how a backlog is written.

use std::borrow::Cow;

use super::streams::{Stream, REMOTE};
use super::{Engine, Event};
use crate::engine::connection::{Cursor, State};
use crate::log::block::Block;
use crate::log::columns::Asking;
use crate::log::record::records;
use crate::matching::selection::Selection;
use crate::wire::frame::{flag, kind, Writer};

/// The progress of a backlog.
#[derive(Debug, PartialEq, Eq)]
pub struct Replayed {
    pub next: u64,
    /// The last record, not written yet: it is the last of the backlog unless another one follows.
    pub held: Option<Vec<u8>>,
    /// The subscription is live from now on.
    pub live: bool,
}

impl Engine {
    /// The subscriptions of a record that get it now. The others are behind, or fall behind here.
    pub(super) fn current(&mut self, to: u32, place: (u32, u64), ids: &[u32]) -> Vec<u32> {
        let (stream, offset) = place;
        let whole = self.whole || stream < REMOTE;
        let Some(this) = self.conns[to as usize].as_deref_mut() else { return Vec::new() };
        let events = &mut self.events;
        let crowded = this.crowded;
        if let Some(peer) = this.peer.as_mut() {
            // Subscriptions of another node read missing records themselves, once they know the first missing offset.
            let missing = |sub: &u32| crowded && this.since.contains(sub);
            if ids.iter().any(missing) {
                peer.behind.entry(stream).or_insert(offset);
            }
            return ids.iter().copied().filter(|sub| !missing(sub)).collect();
        }
        let now = |&sub: &u32| match this.cursors.get_mut(&(sub, stream)) {
            // For a remote stream, the owner and the offset to begin at are not known yet.
            None => stream < REMOTE || !this.since.contains(&sub),
            Some(cursor) if cursor.behind || !whole => false,
            // It has read the record from a mirror's copy, before its node knew of the copy.
            Some(cursor) if offset < cursor.next => false,
            Some(cursor) => {
                if crowded || this.held.contains_key(&sub) {
                    cursor.behind = true;
                    events.push(Event::Behind { conn: to, sub, stream, offset });
                }
                !cursor.behind
            }
        };
        ids.iter().copied().filter(now).collect()
    }

    /// Reports to a link with room the first records that its stream subscriptions missed.
    pub(super) fn tell_behind(&mut self, conn: u32) {
        let peer = self.conn(conn).and_then(|this| this.peer.as_mut());
        for (stream, offset) in peer.map(|peer| std::mem::take(&mut peer.behind)).unwrap_or_default() {
            self.send_gap(conn, 0, stream, offset, offset);
        }
    }

    /// The route to a remote stream is lost: its live subscriptions fall behind.
    pub fn remote_behind(&mut self, stream: u32) {
        if let Some(remote) = stream.checked_sub(REMOTE).and_then(|at| self.remote_streams.get(at as usize)) {
            let done = remote.done;
            self.all_behind(stream, done);
        }
    }

    /// All records below this offset were delivered to subscribers.
    pub fn delivered(&self, at: u32) -> u64 {
        self.streams.get(at as usize).and_then(Option::as_ref).map_or(0, |stream| stream.done)
    }

    /// Adds a stream subscription. It is behind until `replay` makes it live.
    pub fn add_cursor(&mut self, conn: u32, sub: u32, stream: u32) {
        if let Some(this) = self.conn(conn) {
            this.cursors.insert((sub, stream), Cursor { behind: true, next: 0 });
        }
    }

    /// True if a backlog of this subscription may be written now.
    pub fn has_room(&self, conn: u32, sub: u32) -> bool {
        let this = self.conns.get(conn as usize).and_then(Option::as_deref);
        this.is_some_and(|this| {
            this.state == State::Open && !this.held.contains_key(&sub) && this.outbox.bytes() < self.limits.portion()
        })
    }

    /// The session whose messages a subscription excludes: its own with the flag `NO_ECHO`.
    fn unwanted(&self, conn: u32, sub: u32) -> Option<u64> {
        let this = self.conns.get(conn as usize).and_then(Option::as_deref)?;
        let key = *this.subs.get(&sub)?;
        (!self.index.get(key).echo).then_some(this.who.session)
    }

    /// Delivers the matching records of a block to a subscription; `next` is the offset after the block. `end` is for
    /// remote streams: the owner had no more records, so later ones arrive live.
    pub fn replay(
        &mut self,
        to: (u32, u32, u32),
        block: &[u8],
        (next, end): (u64, bool),
        selection: &Selection,
        held: Option<Vec<u8>>,
    ) -> Replayed {
        let (conn, sub, at) = to;
        let mut held: Option<Cow<'_, [u8]>> = held.map(Cow::Owned);
        let mut asking = Asking::new(selection);
        let own = self.unwanted(conn, sub);
        // Safe records that were not delivered yet will arrive live.
        let here = |stream: &Stream| stream.done;
        let (done, live) =
            if let Some(remote) = at.checked_sub(REMOTE).and_then(|at| self.remote_streams.get(at as usize)) {
                (u64::MAX, end && next >= remote.done)
            } else {
                let done = self.streams.get(at as usize).and_then(Option::as_deref).map_or(u64::MAX, here);
                (done, next >= done)
            };
        for record in records(block).take_while(|record| record.offset() < done) {
            if record.is_hidden(self.clock) || own == Some(record.session()) || !asking.asked(&record) {
                continue;
            }
            if let Some(one) = held.take() {
                if !self.has_room(conn, sub) {
                    return Replayed { next: record.offset(), held: Some(one.into_owned()), live: false };
                }
                self.write_record((conn, sub, at), &one, flag::REPLAY, 0);
            }
            held = Some(Cow::Borrowed(record.bytes));
        }
        let live = live && (held.is_none() || self.has_room(conn, sub));
        if live {
            if let Some(one) = held.take() {
                self.write_record((conn, sub, at), &one, flag::REPLAY | flag::LAST, 0);
            }
            if let Some(cursor) = self.conn(conn).and_then(|this| this.cursors.get_mut(&(sub, at))) {
                // Each subscription has its own position: of two that read a copy one may be further, and gets nothing
                // live.
                *cursor = Cursor { behind: false, next: next.min(done) };
            }
        }
        Replayed { next: next.min(done), held: held.map(Cow::into_owned), live }
    }

    /// Delivers records of a block to the consumer of a channel. Returns how many, and the expired or missing ones.
    pub fn deliver_records(
        &mut self,
        to: (u32, u32, u32),
        block: &Block,
        spans: &[(u64, u64)],
        deliveries: u32,
    ) -> (u64, Vec<(u64, u64)>) {
        let (mut count, mut left) = (0, Vec::<(u64, u64)>::new());
        for offset in spans.iter().flat_map(|&(first, count)| first..first + count) {
            let record = block.get(offset).filter(|one| one.expires() == 0 || one.expires() > self.clock);
            if let Some(record) = record {
                self.write_record(to, record.bytes, flag::CHANNEL, deliveries);
                count += 1;
            } else {
                match left.last_mut() {
                    Some((first, many)) if *first + *many == offset => *many += 1,
                    _ => left.push((offset, 1)),
                }
            }
        }
        (count, left)
    }

    /// Reports to a client that a channel has ended.
    pub fn send_ended(&mut self, conn: u32, id: u32, code: u16, text: &str) {
        self.put(conn, |out| {
            Writer::new(out, kind::UNCHANNEL, 0).u16(code).u32(id).bytes(text.as_bytes()).end();
        });
    }

    fn write_record(&mut self, (conn, sub, at): (u32, u32, u32), record: &[u8], flags: u8, deliveries: u32) {
        self.tell_stream(conn, at);
        self.put(conn, |out| {
            let frame = Writer::new(out, kind::RECORD, flags | flag::KEEP).u16(1).u32(at).u32(deliveries).u32(sub);
            frame.bytes(record).end();
        });
        if let Some(this) = self.conn(conn) {
            this.count.delivered += 1;
            this.count.delivered_bytes += record.len() as u64;
        }
    }

    /// Reports offsets that a subscription will never get.
    pub fn send_gap(&mut self, conn: u32, sub: u32, stream: u32, from: u64, to: u64) {
        self.tell_stream(conn, stream);
        self.put(conn, |out| {
            Writer::new(out, kind::GAP, 0).u16(0).u32(sub).u32(stream).u64(from).u64(to).end();
        });
    }
}
