//! Subscriptions that miss nothing of a stream: who of them is live and who is behind, and how a backlog is written.

use std::borrow::Cow;

use super::streams::{Stream, FAR};
use super::{Engine, Event};
use crate::engine::connection::{Cursor, State};
use crate::log::block::Block;
use crate::log::columns::Asking;
use crate::log::record::records;
use crate::matching::selection::Selection;
use crate::wire::frame::{flag, kind, Writer};

/// How far a backlog got.
#[derive(Debug, PartialEq, Eq)]
pub struct Replayed {
    pub next: u64,
    /// The last record that was not written: only what comes behind it tells whether it is the last of the backlog.
    pub held: Option<Vec<u8>>,
    /// It is live from now on.
    pub live: bool,
}

impl Engine {
    /// Those of a record's subscriptions that get it now. Others are behind, or are from now on.
    pub(super) fn current(&mut self, to: u32, place: (u32, u64), ids: &[u32]) -> Vec<u32> {
        let (stream, offset) = place;
        let whole = self.whole || stream < FAR;
        let Some(this) = self.conns[to as usize].as_deref_mut() else { return Vec::new() };
        let events = &mut self.events;
        let crowded = this.crowded;
        if let Some(peer) = this.peer.as_mut() {
            // Those of another node read what they miss themselves, when they were told where that begins.
            let missing = |sub: &u32| crowded && this.since.contains(sub);
            if ids.iter().any(missing) {
                peer.behind.entry(stream).or_insert(offset);
            }
            return ids.iter().copied().filter(|sub| !missing(sub)).collect();
        }
        let now = |&sub: &u32| match this.cursors.get_mut(&(sub, stream)) {
            // Whose it is on another node, and where to begin, is not known yet.
            None => stream < FAR || !this.since.contains(&sub),
            Some(cursor) if cursor.behind || !whole => false,
            // It has read that already, from a copy: its node has just come to know that the copy is there.
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

    /// A link has room again: tells it what its subscriptions were not given that miss nothing.
    pub(super) fn tell_behind(&mut self, conn: u32) {
        let peer = self.conn(conn).and_then(|this| this.peer.as_mut());
        for (stream, offset) in peer.map(|peer| std::mem::take(&mut peer.behind)).unwrap_or_default() {
            self.tell_gap(conn, 0, stream, offset, offset);
        }
    }

    /// The way to a stream of another node is lost: who was given it live is behind.
    pub fn far_behind(&mut self, stream: u32) {
        if let Some(far) = stream.checked_sub(FAR).and_then(|at| self.far_streams.get(at as usize)) {
            let done = far.done;
            self.all_behind(stream, done);
        }
    }

    /// Below this offset everything was delivered to who subscribed.
    pub fn delivered(&self, at: u32) -> u64 {
        self.streams.get(at as usize).and_then(Option::as_ref).map_or(0, |stream| stream.done)
    }

    /// A subscription that misses nothing of a stream; it is behind until `replay` says that it isn't.
    pub fn add_cursor(&mut self, conn: u32, sub: u32, stream: u32) {
        if let Some(this) = self.conn(conn) {
            this.cursors.insert((sub, stream), Cursor { behind: true, next: 0 });
        }
    }

    /// Whether a backlog of this subscription may be written now.
    pub fn has_room(&self, conn: u32, sub: u32) -> bool {
        let this = self.conns.get(conn as usize).and_then(Option::as_deref);
        this.is_some_and(|this| {
            this.state == State::Open && !this.held.contains_key(&sub) && this.outbox.bytes() < self.limits.portion()
        })
    }

    /// The session whose messages a subscription does not want: its own, if it wants no echo.
    fn unwanted(&self, conn: u32, sub: u32) -> Option<u64> {
        let this = self.conns.get(conn as usize).and_then(Option::as_deref)?;
        let key = *this.subs.get(&sub)?;
        (!self.index.get(key).echo).then_some(this.who.session)
    }

    /// Gives a subscription what it asked for of a block of the log; `next` is the offset behind the block. `end` is for streams
    /// of other nodes: whether that node had no more, so that what lies behind comes live.
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
        // What is safe and was not delivered yet comes live.
        let here = |stream: &Stream| stream.done;
        let (done, live) = if let Some(far) = at.checked_sub(FAR).and_then(|at| self.far_streams.get(at as usize)) {
            (u64::MAX, end && next >= far.done)
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
                // Each has its own place: of two that read a copy one may be further, and nothing comes live to the other.
                *cursor = Cursor { behind: false, next: next.min(done) };
            }
        }
        Replayed { next: next.min(done), held: held.map(Cow::into_owned), live }
    }

    /// Hands these records of a block to the consumer of a channel; how many, and those that have expired or are not there.
    pub fn hand_records(
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

    /// Tells a client that a channel is gone.
    pub fn tell_ended(&mut self, conn: u32, id: u32, code: u16, text: &str) {
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

    /// Offsets that a subscription will never get.
    pub fn tell_gap(&mut self, conn: u32, sub: u32, stream: u32, from: u64, to: u64) {
        self.tell_stream(conn, stream);
        self.put(conn, |out| {
            Writer::new(out, kind::GAP, 0).u16(0).u32(sub).u32(stream).u64(from).u64(to).end();
        });
    }
}
