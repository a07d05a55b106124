//! Streams: a durable message is stored first, and confirmed and delivered when it has the safety of its stream.
//!
//! A stored message is sent as a RECORD, which contains the record as in the log, for live messages and a backlog
//! alike. A stream subscription has a cursor for each stream. While it is behind, the driver passes it blocks of the
//! log by `replay`. When it has reached the last delivered record, it is live. If its connection or its consumer has no
//! room, it falls behind again instead of missing messages.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::publish::{number_of, From, Passing};
use super::{Engine, Event};
use crate::engine::links::scope::reaches;
use crate::log::append::Log;
use crate::log::record::{records, Message, Record};
use crate::log::Refused;
use crate::matching::rules::Seen;
use crate::matching::topic::meet;
use crate::wire::fields::Fields;
use crate::wire::frame::{code, flag, kind, scope, Body, Checked, Fault, Writer, HEAD};
use crate::wire::splitter::Flow;

const TOO_LATE: &str = "it would be due later than its stream keeps messages; give the stream a longer max_age";
/// Bytes of a log that are read at once.
const BLOCK: usize = 256 << 10;
/// No stream, or no connection.
const NONE: u32 = u32::MAX;
/// The connection of a run whose client has left; runs of the broker itself have none.
const GONE: u32 = u32::MAX - 1;

/// Remote streams have numbers from here on.
pub(super) const REMOTE: u32 = 1 << 31;

/// A log that tools may read beside the engine; None: it was closed.
pub type Shared = Arc<Mutex<Option<Log>>>;

fn lock(log: &Shared) -> MutexGuard<'_, Option<Log>> {
    log.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Messages of a connection that were stored consecutively and are not confirmed yet.
struct Waiting {
    conn: u32,
    session: u64,
    number: u64,
    count: u32,
    offset: u64,
    sequence: u64,
    again: bool,
}

pub struct Stream {
    log: Shared,
    /// None: all topics that match no other stream.
    patterns: Option<Vec<String>>,
    waiting: VecDeque<Waiting>,
    /// Records below it were delivered to subscribers.
    pub(super) done: u64,
    /// Due time and offset of delayed records that were not reported to the driver yet.
    later: Vec<(i64, u64)>,
    /// Connections that wait for room in the log.
    full: Vec<u32>,
    touched: bool,
    /// The driver gets an event when `safe` advances.
    pub followed: bool,
}

/// A stream of another node.
#[derive(Debug)]
pub(super) struct RemoteStream {
    /// Guid and name.
    pub name: Box<[u8]>,
    /// The safety level, as in STREAM; 0: unknown.
    pub level: u16,
    /// Live stream subscriptions have received all matching records below it.
    pub done: u64,
}

impl Engine {
    /// Adds a stream, or changes its topics.
    pub fn add_stream(&mut self, at: u32, name: &str, guid: [u8; 16], log: Shared, patterns: Option<Vec<String>>) {
        if self.streams.len() <= at as usize {
            self.streams.resize_with(at as usize + 1, || None);
        }
        self.topics.forget_streams();
        if let Some(stream) = self.streams[at as usize].as_mut() {
            stream.patterns = patterns;
            return;
        }
        let done = lock(&log).as_ref().map_or(0, Log::safe);
        let (waiting, full, later) = (VecDeque::new(), Vec::new(), Vec::new());
        self.stream_names.resize_with(self.streams.len(), Box::default);
        self.levels.resize(self.streams.len(), 0);
        self.stream_names[at as usize] = [&guid[..], name.as_bytes()].concat().into();
        let new = Stream { log, patterns, waiting, done, later, full, touched: false, followed: false };
        self.streams[at as usize] = Some(Box::new(new));
    }

    /// Removes a stream, and refuses publishes that wait for it.
    pub fn remove_stream(&mut self, at: u32) {
        let Some(stream) = self.streams.get_mut(at as usize).and_then(Option::take) else { return };
        self.topics.forget_streams();
        self.touched.retain(|&other| other != at);
        for waiting in stream.waiting {
            self.refuse_run(&waiting, code::NO_STREAM, "the stream was removed");
        }
        for conn in stream.full {
            self.events.push(Event::Resume(conn));
        }
    }

    /// Sets the safety level of messages of a stream, as in STREAM. Clients get it with the next STREAM.
    pub fn set_level(&mut self, at: u32, level: u16) {
        let own = self.levels.get_mut(at as usize);
        let remote = at
            .checked_sub(REMOTE)
            .and_then(|at| self.remote_streams.get_mut(at as usize))
            .map(|remote| &mut remote.level);
        if own.or(remote).is_some_and(|before| std::mem::replace(before, level) != level) {
            for this in self.conns.iter_mut().flatten() {
                this.streams.retain(|&known| known != at);
            }
        }
    }

    pub fn follow_stream(&mut self, at: u32, yes: bool) {
        if let Some(stream) = self.streams.get_mut(at as usize).and_then(Option::as_mut) {
            stream.followed = yes;
        }
    }

    pub(super) fn stream_of(&mut self, topic: u32) -> u32 {
        let all = || self.streams.iter().enumerate().filter_map(|(at, stream)| Some((at as u32, stream.as_ref()?)));
        self.topics.stream(topic, |text| {
            let takes = |patterns: &Vec<String>| patterns.iter().any(|pattern| meet(pattern, text));
            let named = all().find(|(_, stream)| stream.patterns.as_ref().is_some_and(takes));
            named.or_else(|| all().find(|(_, stream)| stream.patterns.is_none())).map_or(NONE, |(at, _)| at)
        })
    }

    /// A durable PUBLISH: appends it to the log of its stream.
    pub(super) fn store(&mut self, conn: u32, topic: u32, frame: &[u8]) -> Checked<Flow> {
        let number = number_of(frame);
        let (mut body, mut expires, mut due) = (&frame[HEAD..], 0, 0);
        if frame[5] & flag::TIMES != 0 {
            let Some((rest, times)) = body.split_last_chunk::<16>().filter(|(rest, _)| rest.len() >= 16) else {
                return Err(Fault::protocol("a message without its times"));
            };
            let time = |at: usize| i64::from_le_bytes(times[at..at + 8].try_into().unwrap_or_default());
            (body, expires, due) = (rest, time(0), time(8));
        }
        let Body { time, fields, payload, .. } = Body::of(body, frame[5])?;
        if self.topics.is_wild(topic) {
            self.reject(conn, number, &Fault::new(code::WILDCARD, "a stored message has one topic"));
            return Ok(Flow::Go);
        }
        let at = self.stream_of(topic);
        let (clock, text) = (self.clock, self.topics.text(topic));
        let Some(stream) = self.streams.get_mut(at as usize).and_then(Option::as_mut) else {
            let fault = Fault::new(code::NO_STREAM, format!("no stream takes {text:?}"));
            self.reject(conn, number, &fault);
            return Ok(Flow::Go);
        };
        let Some(this) = self.conns[conn as usize].as_deref() else { return Ok(Flow::Go) };
        let (sender, session) = (&*this.who.name, this.who.session);
        let fields = (frame[5] & flag::FIELDS != 0).then_some(fields);
        let message = Message { topic: text, sender, time, session, number, expires, due, fields, payload };
        let closed = || Err(Refused::Failed("the stream is closed".into()));
        let stored = lock(&stream.log).as_mut().map_or_else(closed, |log| log.append(clock, &message));
        match stored {
            Ok(place) => {
                let (offset, sequence, again) = (place.offset, place.sequence, place.again);
                if sequence == 0 && !again {
                    stream.later.push((due, offset));
                }
                match stream.waiting.back_mut() {
                    Some(run) if run.follows(conn, session, number, offset, sequence, again) => run.count += 1,
                    _ => stream.waiting.push_back(Waiting { conn, session, number, count: 1, offset, sequence, again }),
                }
                if !std::mem::replace(&mut stream.touched, true) {
                    self.touched.push(at);
                }
            }
            Err(Refused::Full) => {
                stream.full.push(conn);
                if let Some(this) = self.conn(conn) {
                    // Processed again, so not counted twice.
                    this.count.received -= 1;
                    this.blocked_by = Some(conn);
                }
                self.events.push(Event::Pause(conn));
                return Ok(Flow::Wait);
            }
            Err(refused) => self.reject(conn, number, &fault_of(refused)),
        }
        Ok(Flow::Go)
    }

    /// Passes appended records to the writers, and delivers those that are safe at once.
    pub fn flush_streams(&mut self) {
        while let Some(at) = self.touched.pop() {
            let Some(stream) = self.streams[at as usize].as_mut() else { continue };
            stream.touched = false;
            let safe = lock(&stream.log).as_mut().map_or(0, |log| {
                log.flush();
                log.safe()
            });
            if safe > stream.done || stream.waiting.iter().any(|run| run.again) {
                self.commit(at);
            }
        }
    }

    /// Delivers and confirms safe messages, and reports those that could not be stored.
    pub fn commit(&mut self, at: u32) {
        let Some(mut stream) = self.streams.get_mut(at as usize).and_then(Option::take) else { return };
        let look = |log: &mut Log| (log.remove_unwritten(), log.safe(), log.reader());
        let Some((lost, safe, reader)) = lock(&stream.log).as_mut().map(look) else {
            self.streams[at as usize] = Some(stream);
            return;
        };
        if let Some(lost) = lost {
            let text = format!("it could not be stored: {}", lost.error);
            stream.later.retain(|&(_, offset)| offset < lost.from);
            stream.later.extend(lost.waiting);
            for mut run in std::mem::take(&mut stream.waiting) {
                // A run may span several writes, of which some succeeded.
                let kept = lost.from.saturating_sub(run.offset).min(u64::from(run.count)) as u32;
                if kept < run.count {
                    self.refuse_run(&run.split(kept), code::STORE_FAILED, &text);
                }
                if kept > 0 {
                    stream.waiting.push_back(run);
                }
            }
        }
        let before = stream.done;
        while stream.done < safe {
            if self.index.is_empty() {
                stream.done = safe;
                break;
            }
            let block = reader.read(stream.done, BLOCK).ok().filter(|block| block.next > stream.done);
            if block.as_ref().is_none_or(|block| block.first > stream.done) {
                // The records are gone or unreadable: stream subscriptions read on themselves, and get a gap.
                self.all_behind(at, stream.done);
            }
            let Some(block) = block else {
                stream.done = safe;
                break;
            };
            for record in records(&block.bytes) {
                self.spread(at, &record);
            }
            stream.done = block.next;
        }
        while stream.waiting.front().is_some_and(|run| run.offset < safe) {
            let Some(mut run) = stream.waiting.pop_front() else { break };
            let ready = u64::from(run.count).min(safe - run.offset) as u32;
            if ready < run.count && !run.again {
                let rest = run.split(ready);
                stream.waiting.push_front(rest);
            }
            self.tell_stored(at, &run);
        }
        stream.later.retain(|&(due, offset)| {
            if offset < safe {
                self.events.push(Event::Later { stream: at, due, offset });
            }
            offset >= safe
        });
        for conn in std::mem::take(&mut stream.full) {
            if self.conn(conn).is_some_and(|this| this.blocked_by == Some(conn)) {
                self.events.push(Event::Resume(conn));
            }
        }
        if stream.followed && stream.done > before {
            self.events.push(Event::Stored(at));
        }
        self.streams[at as usize] = Some(stream);
    }

    /// The lost end of a stream is restored up to here, and not delivered live. Stream subscriptions read the missing
    /// part. `whole`: it is complete, so subscriptions that had read more continue from here.
    pub fn recovered(&mut self, at: u32, end: u64, whole: bool) {
        let Some(stream) = self.streams.get_mut(at as usize).and_then(Option::as_mut) else { return };
        let done = stream.done;
        // Restored records may have been lost again before they were written.
        stream.done = if whole { end } else { done.max(end) };
        for this in self.conns.iter_mut().flatten().filter(|_| whole) {
            for (_, cursor) in this.cursors.iter_mut().filter(|((_, other), _)| *other == at) {
                cursor.next = cursor.next.min(end);
            }
        }
        if done < end {
            self.all_behind(at, done);
            // Another node may have read up to the former end, and now waits for live records.
            for link in self.links.clone() {
                self.send_gap(link, 0, at, done, done);
            }
        }
    }

    /// Live stream subscriptions fall behind from this offset on.
    pub(super) fn all_behind(&mut self, stream: u32, offset: u64) {
        let events = &mut self.events;
        for (conn, this) in self.conns.iter_mut().enumerate() {
            let Some(this) = this.as_deref_mut() else { continue };
            for (&(sub, _), cursor) in
                this.cursors.iter_mut().filter(|((_, other), cursor)| *other == stream && !cursor.behind)
            {
                cursor.behind = true;
                let offset = offset.max(cursor.next);
                events.push(Event::Behind { conn: conn as u32, sub, stream, offset });
            }
        }
    }

    fn here(&self, run: &Waiting) -> bool {
        self.sessions.get(&run.session) == Some(&run.conn)
    }

    /// After the end of a connection, another one with its number must not get its confirmations.
    pub(super) fn forget_runs(&mut self, conn: u32) {
        for stream in self.streams.iter_mut().flatten() {
            for run in stream.waiting.iter_mut().filter(|run| run.conn == conn) {
                run.conn = GONE;
            }
        }
    }

    fn refuse_run(&mut self, run: &Waiting, code: u16, text: &str) {
        if run.conn == NONE {
            self.events.push(Event::Own { ticket: run.number, code, text: text.into() });
        }
        if self.here(run) {
            for more in 0..u64::from(run.count) {
                self.reject(run.conn, run.number + more, &Fault::new(code, text));
            }
        }
    }

    fn tell_stored(&mut self, at: u32, run: &Waiting) {
        if run.conn == NONE {
            self.events.push(Event::Own { ticket: run.number, code: code::OK, text: String::new() });
        }
        if self.here(run) {
            self.tell_stream(run.conn, at);
            let flags = if run.again { flag::AGAIN } else { 0 };
            self.put(run.conn, |out| {
                let frame = Writer::new(out, kind::STORED, flags).u16(0).u32(at).u64(run.number).u32(run.count);
                frame.u64(run.offset).u64(run.sequence).end();
            });
        }
    }

    /// Announces the name of a stream to a client, before its number is used.
    pub(super) fn tell_stream(&mut self, conn: u32, at: u32) {
        let Some(this) = self.conns.get_mut(conn as usize).and_then(Option::as_deref_mut) else { return };
        if !this.streams.contains(&at) {
            this.streams.push(at);
            let remote = at.checked_sub(REMOTE).and_then(|at| self.remote_streams.get(at as usize));
            let Some(name) = remote.map(|remote| &remote.name).or_else(|| self.stream_names.get(at as usize)) else {
                return;
            };
            let level =
                remote.map_or_else(|| self.levels.get(at as usize).copied().unwrap_or(0), |remote| remote.level);
            this.outbox.push(&mut self.pool, 64, |out| {
                Writer::new(out, kind::STREAM, 0).u16(level).u32(at).bytes(name).end();
            });
        }
    }

    /// Appends delayed messages that are due to the end of their stream. Returns false if they could not be stored.
    pub fn release_due(&mut self, at: u32, block: &[u8]) -> bool {
        let clock = self.clock;
        let Some(stream) = self.streams.get_mut(at as usize).and_then(Option::as_mut) else { return true };
        let mut log = lock(&stream.log);
        let mut parked = records(block).filter(Record::is_parked);
        let all = log.as_mut().is_none_or(|log| parked.all(|record| log.release(clock, &record.message()).is_ok()));
        drop(log);
        if !std::mem::replace(&mut stream.touched, true) {
            self.touched.push(at);
        }
        self.flush_streams();
        all
    }

    /// Delivers a stored message to current subscribers.
    fn spread(&mut self, at: u32, record: &Record) {
        if record.is_hidden(self.clock) {
            return;
        }
        let topic = self.topics.use_text(record.topic);
        let mut route = self.topics.route(topic, &mut self.index);
        let narrowed = route.choice.as_ref().map(|choice| {
            let fields = Fields::read(record.fields.unwrap_or_default()).unwrap_or_default();
            let (sender, session, time, payload) = (record.sender, record.session(), record.time(), record.payload);
            let seen = Seen { fields: &fields, topic: record.topic, sender, session, time, payload };
            let mut wanted = std::mem::take(&mut self.wanted);
            let asked = choice.select(&self.index, &seen, &mut wanted);
            wanted.retain(|sub| reaches(sub, scope::GLOBAL, false));
            (wanted, asked)
        });
        let mut narrowed = narrowed.map(|(wanted, asked)| self.narrowed_to(wanted, asked));
        if !route.too_complex {
            let from = match self.sessions.get(&record.session()) {
                Some(&conn) => From::Conn(conn),
                None => From::Kept(0, record.session(), record.sender),
            };
            let place = Some((at, record.offset()));
            let passing = Passing { place, ..Passing::new(kind::RECORD, 0, topic, record.bytes) };
            if self.fan_out(from, passing, narrowed.as_mut().unwrap_or(&mut route)) == 0 {
                self.stats.unroutable += 1;
            }
        }
        self.widen(topic, route, narrowed);
        self.topics.unuse(topic);
    }

    /// Stores a message of the driver, which gets the result with its ticket.
    pub fn store_own(&mut self, ticket: u64, message: &Message) -> Checked<()> {
        let topic = self.topics.use_text(message.topic);
        let at = self.stream_of(topic);
        self.topics.unuse(topic);
        let clock = self.clock;
        let none = || Fault::new(code::NO_STREAM, format!("no stream takes {:?}", message.topic));
        let stream = self.streams.get_mut(at as usize).and_then(Option::as_mut).ok_or_else(none)?;
        let closed = || Err(Refused::Failed("the stream is closed".into()));
        let stored = lock(&stream.log).as_mut().map_or_else(closed, |log| log.append(clock, message));
        let place = stored.map_err(fault_of)?;
        let (offset, sequence, again) = (place.offset, place.sequence, place.again);
        let run = Waiting { conn: NONE, session: 0, number: ticket, count: 1, offset, sequence, again };
        stream.waiting.push_back(run);
        if !std::mem::replace(&mut stream.touched, true) {
            self.touched.push(at);
        }
        self.flush_streams();
        Ok(())
    }
}

/// The error for the publisher of a message that was not stored.
fn fault_of(refused: Refused) -> Fault {
    let (code, text) = match refused {
        Refused::Failed(error) => (code::STORE_FAILED, format!("it could not be stored: {error}")),
        Refused::NoSpace(why) => (code::NO_SPACE, format!("it could not be stored: {why}")),
        Refused::Full => (code::STORE_FAILED, "it could not be stored: too much waits to be written".into()),
        Refused::TooLate => (code::INVALID_SETTING, TOO_LATE.into()),
        Refused::TooLarge => (code::TOPIC_TOO_LONG, "topic or sender are too long to be stored".into()),
        Refused::TooOld => (code::TOO_OLD, "sent again so late that nobody knows whether it was stored before".into()),
    };
    Fault::new(code, text)
}

impl Waiting {
    fn follows(&self, conn: u32, session: u64, number: u64, offset: u64, sequence: u64, again: bool) -> bool {
        let count = u64::from(self.count);
        (self.conn, self.session, self.again, again) == (conn, session, false, false)
            && (self.number.checked_add(count), self.offset + count, self.sequence + count)
                == (Some(number), offset, sequence)
    }

    /// Keeps the first `first` messages, and returns the others.
    fn split(&mut self, first: u32) -> Self {
        let by = u64::from(first);
        let count = std::mem::replace(&mut self.count, first) - first;
        let (number, offset, sequence) = (self.number.wrapping_add(by), self.offset + by, self.sequence + by);
        Self { conn: self.conn, session: self.session, number, count, offset, sequence, again: false }
    }
}
