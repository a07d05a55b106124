//! The appending side of a log: gives offsets and sequences, encodes records, hands them to the writer, and removes old buckets.
//!
//! One thread appends. `append` only encodes into memory; `flush` hands all that to the writer. What the writer could not store
//! is taken back by `settle`, which makes offsets and sequences go on behind the last safe record.

use std::collections::VecDeque;
use std::io;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use super::bucket::{index_name, log_name, Building, Topic, Topics};
use super::files::{replace, rest, Files};
use super::front::Front;
use super::mend::Closing;
use super::once::{Known, Once};
use super::open::{self, Scan};
use super::record::{records, Message};
use super::scan::Reader;
use super::shared::{Bell, Bucket, Data, Piece, Seal, Shared, State, Writer, RETRY};
use super::simulated::Simulated;
use super::trim::Trimmed;
use super::waiting::{Parked, Waiting};
use super::{whole, Error, Position, Refused, Safety, Settings};
use crate::clock;

/// Records that were not stored, from the first offset to before the second; both will be given again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lost {
    pub from: u64,
    pub to: u64,
    pub error: String,
    /// When and where: what was due, and waits again.
    pub waiting: Vec<(i64, u64)>,
}

/// Bytes of buckets and indexes behind one `whole` before there is another, unless it is larger itself.
const BEHIND: u64 = 1 << 20;
/// And at most so many indexes, which are read when the log is opened.
const INDEXES: u64 = 1024;
/// How far a clock is set back before it is asked which of both times was wrong.
const STEP: i64 = 60_000_000_000;

pub struct Log {
    pub(super) shared: Arc<Shared>,
    pub(super) settings: Settings,
    pub(super) topics: Topics,
    pub(super) once: Once,
    pub(super) waiting: Waiting,
    pub(super) bucket: Building,
    /// Records that were not flushed, and where in the bucket they begin.
    pub(super) tail: Vec<u8>,
    tail_from: u64,
    tail_at: u64,
    /// Marks of the bucket that the writer has.
    marked: usize,
    pub(super) next: u64,
    pub(super) stored: i64,
    /// What a clock showed that was not set back since, and when.
    steady: Option<(Duration, i64)>,
    /// Since when it is known that the newest record is later than the clock.
    ahead: Option<i64>,
    /// Bytes and buckets since there was a `whole`.
    behind: (u64, u64),
    failed: Option<(Duration, String)>,
    held: (u64, u64),
    /// Without a thread.
    pub(super) writer: Option<Writer>,
    thread: Option<JoinHandle<()>>,
    /// Nothing is written before `write` is called.
    by_hand: bool,
    /// Somebody else stores what is appended, and says so.
    pub(super) front: Option<Front>,
    /// What is in the tail is written as it is.
    pub(super) verbatim: bool,
    /// Nothing new is taken for now.
    pub(super) resting: bool,
    /// Holes that are being closed.
    pub(super) closing: Vec<Closing>,
    closed: bool,
}

impl Log {
    /// Opens or makes a log; with a `bell` a thread writes and rings it, without one `flush` writes.
    ///
    /// One that is made begins with the offset `begin`.
    pub fn open(files: Arc<dyn Files>, settings: Settings, bell: Option<Bell>, begin: u64) -> Result<Self, Error> {
        if !files.lock()? {
            return Err(Error::InUse);
        }
        let found = open::open(&*files, begin).inspect_err(|_| files.unlock())?;
        Ok(Self::start(files, settings, bell, found, true))
    }

    /// Has one without a thread wait with each write until `write` is called: its disk is as slow as whoever calls that.
    #[must_use]
    pub fn by_hand(mut self) -> Self {
        self.by_hand = true;
        self
    }

    /// Writes what was flushed, as the thread would; `settle` tells what could not be written.
    pub fn write(&mut self) {
        if let Some(writer) = &mut self.writer {
            while writer.step(&self.shared) {}
        }
    }

    /// Bytes that were flushed and are not written yet.
    pub fn unwritten(&self) -> usize {
        self.shared.waiting.load(SeqCst)
    }

    /// A log in memory.
    pub fn memory(settings: Settings, begin: u64) -> Self {
        let settings = Settings { bucket_bytes: settings.bucket_bytes.min(1 << 20), ..settings };
        let found = open::Found { next: begin, bucket: Building::new(begin), ..open::Found::default() };
        Self::start(Arc::new(Simulated::new(false)), settings, None, found, false)
    }

    pub(super) fn start(
        files: Arc<dyn Files>,
        settings: Settings,
        bell: Option<Bell>,
        found: open::Found,
        indexed: bool,
    ) -> Self {
        let open::Found { buckets, bucket, topics, once, waiting, next, stored, damage, orphans, wholes, behind } =
            found;
        let threaded = bell.is_some();
        let shared = Arc::new(Shared {
            files,
            indexed,
            state: Mutex::new(State { settings, buckets, damage, orphans, wholes, written: next, ..State::default() }),
            trimming: Mutex::default(),
            work: Condvar::new(),
            safe: next.into(),
            cap: u64::MAX.into(),
            waiting: 0.into(),
            failed: false.into(),
            stuck: false.into(),
            bell: bell.unwrap_or_else(|| Box::new(|| {})),
        });
        let thread = threaded.then(|| {
            let shared = shared.clone();
            std::thread::spawn(move || Writer::default().run(&shared))
        });
        Self {
            shared,
            settings,
            topics,
            once,
            waiting,
            tail: Vec::new(),
            tail_from: next,
            tail_at: bucket.summary.length,
            marked: bucket.marks.len(),
            bucket,
            next,
            stored,
            steady: None,
            ahead: None,
            behind,
            failed: None,
            held: (0, 0),
            writer: (!threaded).then(Writer::default),
            thread,
            by_hand: false,
            front: None,
            verbatim: false,
            resting: false,
            closing: Vec::new(),
            closed: false,
        }
    }

    /// For reading, from any thread.
    pub fn reader(&self) -> Reader {
        Reader { shared: self.shared.clone() }
    }

    /// Settings may change at any time.
    pub fn set(&mut self, settings: Settings) {
        self.flush();
        self.settings = settings;
        self.shared.state().settings = settings;
    }

    /// The offset that is given next.
    pub fn next(&self) -> u64 {
        self.next
    }

    /// Offset behind the last record that is as safe as promised.
    pub fn safe(&self) -> u64 {
        self.shared.safe_for_all()
    }

    pub fn settings(&self) -> Settings {
        self.settings
    }

    /// What of each topic is in the bucket that is written to, and the base of that: for `Reader::topics`.
    pub fn inside(&self) -> (Vec<Topic>, u64) {
        (self.topics.inside().cloned().collect(), self.bucket.summary.base)
    }

    /// Why what was promised to be stored is not written yet, if that is so, and how many records that are.
    pub fn stuck(&self) -> Option<(String, u64)> {
        let state = self.shared.state();
        Some((state.stuck.clone()?, self.shared.safe.load(SeqCst).saturating_sub(state.written)))
    }

    /// Every topic that was ever stored: its last sequence.
    pub fn sequences(&self) -> impl Iterator<Item = (&str, u64)> {
        self.topics.all.iter().map(|topic| (&*topic.text, topic.last))
    }

    /// What waits to be due.
    pub fn waiting(&self) -> &Waiting {
        &self.waiting
    }

    /// Takes a message; it is stored when `safe` is above its offset.
    #[inline]
    pub fn append(&mut self, now: i64, message: &Message<'_>) -> Result<Position, Refused> {
        if self.resting {
            return Err(Refused::Full);
        }
        self.check_writing()?;
        let size = message.size().ok_or(Refused::TooLarge)?;
        if message.session != 0 {
            match self.once.find(message.session, message.number) {
                Known::New => {}
                Known::At(offset) => return self.again(offset),
                Known::TooOld => return Err(Refused::TooOld),
            }
        }
        self.put(now, message, size, false)
    }

    /// Takes a message once more that was parked and is due now; None: it does not wait any more, or has expired.
    pub fn release(&mut self, now: i64, message: &Message<'_>) -> Result<Option<Position>, Refused> {
        if self.resting {
            return Err(Refused::Full);
        }
        let (session, number) = (message.session, message.number);
        if !self.waiting.has(session, number) {
            return Ok(None);
        }
        if message.expires != 0 && message.expires <= now {
            self.waiting.remove(session, number);
            return Ok(None);
        }
        self.check_writing()?;
        let size = message.size().ok_or(Refused::TooLarge)?;
        let place = self.put(now.max(message.due), message, size, true)?;
        self.waiting.release(session, number, place.offset, self.safe());
        Ok(Some(place))
    }

    #[inline]
    fn put(&mut self, now: i64, message: &Message<'_>, size: usize, released: bool) -> Result<Position, Refused> {
        let waiting = self.shared.waiting.load(Relaxed) + self.tail.len();
        if waiting > 0 && waiting + size > self.settings.pending_bytes {
            return Err(Refused::Full);
        }
        let stored = self.stamp(now);
        let (session, number, due) = (message.session, message.number, message.due);
        let parked = due > stored && session != 0;
        if parked && self.settings.max_delay > 0 && due - stored > self.settings.max_delay {
            return Err(Refused::TooLate);
        }
        let (own, (bytes, count)) = (&self.bucket.summary, self.settings.bucket());
        let full = own.length + size as u64 > bytes || own.count >= count;
        if own.count > 0 && (full || stored - own.first > self.settings.bucket_age) {
            self.roll(stored);
        }
        let offset = self.next;
        let sequence = if parked {
            let parked = Parked { due, offset, session, number };
            self.waiting.add(parked);
            self.bucket.moves.park(parked);
            0
        } else {
            self.topics.append(message.topic, offset)
        };
        if released {
            self.bucket.moves.release(session, number, offset);
        }
        let due = if parked || released { due } else { 0 };
        Message { due, ..*message }.encode(offset, sequence, stored, &mut self.tail);
        self.bucket.add(offset, stored, size);
        if session != 0 && !released {
            self.once.add(session, number, offset, stored);
        }
        (self.next, self.stored) = (offset + 1, stored);
        Ok(Position { offset, sequence, again: false })
    }

    /// When the next record is stored. A clock that is set back a little, or was wrong for a while, is held; but if it had been
    /// ahead, its times end here, with their bucket: so within a bucket times only grow.
    #[inline]
    fn stamp(&mut self, now: i64) -> i64 {
        let back = self.stored.saturating_sub(now) > STEP;
        if back && !self.was_ahead(now) {
            return self.stored;
        }
        if self.steady.is_none() {
            self.steady = Some((clock::steady(), now));
        }
        if back {
            if self.bucket.summary.count > 0 {
                self.roll(now);
            }
            return now;
        }
        now.max(self.stored)
    }

    /// Whether it was the time of the last record that was wrong, and not this one.
    #[cold]
    fn was_ahead(&self, now: i64) -> bool {
        if let Some((when, clock)) = self.steady {
            let expected = clock
                .saturating_add(i64::try_from(clock::steady().saturating_sub(when).as_nanos()).unwrap_or(i64::MAX));
            return now.abs_diff(expected) < self.stored.abs_diff(expected);
        }
        match &self.shared.state().buckets[..] {
            [.., before, last] => before.summary.last <= now && last.summary.first - now > STEP,
            _ => false,
        }
    }

    /// Where a session's messages are, of so many numbers from one on: each with its position. What is not known any more is left out,
    /// as what never came.
    pub fn placed(&mut self, session: u64, first: u64, count: u64) -> Result<Vec<(u64, Position)>, Refused> {
        let mut found = Vec::new();
        for number in first..first.saturating_add(count) {
            if let Known::At(offset) = self.once.find(session, number) {
                found.push((number, self.again(offset)?));
            }
        }
        Ok(found)
    }

    /// The position of a message that was sent again; its sequence is 0 if the record is gone.
    fn again(&mut self, offset: u64) -> Result<Position, Refused> {
        self.flush();
        let found = self.reader().sequence_at(offset).map_err(|error| Refused::Failed(error.to_string()))?;
        let known = found.or_else(|| self.front.as_ref().and_then(|front| front.sequence_at(offset)));
        Ok(Position { offset, sequence: known.unwrap_or(0), again: true })
    }

    /// Nothing new is taken while what was taken before can't be written.
    #[inline]
    pub(super) fn check_writing(&mut self) -> Result<(), Refused> {
        if self.failed.is_some() || self.shared.failed.load(Relaxed) || self.shared.stuck.load(Relaxed) {
            return self.try_again();
        }
        Ok(())
    }

    #[cold]
    fn try_again(&mut self) -> Result<(), Refused> {
        // The owner has to hear of what was lost before anything new is taken.
        let told = |error: &str| Err(Refused::Failed(error.into()));
        let state = self.shared.state();
        if let Some(error) = state.failure.as_ref().map(|failure| &failure.error).or(state.stuck.as_ref()) {
            return told(error);
        }
        drop(state);
        match &self.failed {
            Some((until, error)) if clock::steady() < *until => told(error),
            _ => {
                self.failed = None;
                Ok(())
            }
        }
    }

    /// Hands what was appended to the writer.
    pub fn flush(&mut self) {
        if !self.tail.is_empty() {
            let bytes = std::mem::take(&mut self.tail);
            let size = bytes.len();
            self.shared.waiting.fetch_add(size, SeqCst);
            let mut state = self.shared.state();
            let (summary, marks) = (self.bucket.summary, &self.bucket.marks[self.marked..]);
            match state.pending.back_mut() {
                // What was handed over must not change.
                Some(Piece::Data(data))
                    if data.base == summary.base && self.front.is_none() && data.verbatim == self.verbatim =>
                {
                    Arc::make_mut(&mut data.bytes).extend_from_slice(&bytes);
                    data.marks.extend_from_slice(marks);
                    data.summary = summary;
                    self.tail = bytes;
                    self.tail.clear();
                }
                _ => {
                    let marks = marks.to_vec();
                    let (base, position, from) = (summary.base, self.tail_at, self.tail_from);
                    state.pending.push_back(Piece::Data(Data {
                        base,
                        position,
                        from,
                        summary,
                        marks,
                        bytes: Arc::new(bytes),
                        verbatim: self.verbatim,
                    }));
                    self.tail = Vec::with_capacity(size);
                }
            }
            if self.settings.safety == Safety::Memory {
                // Before the writer can see it: it takes back nothing that is promised.
                self.shared.safe.fetch_max(self.next, SeqCst);
            }
            drop(state);
            self.marked = self.bucket.marks.len();
            (self.tail_from, self.tail_at) = (self.next, summary.length);
        }
        self.wake();
    }

    fn wake(&mut self) {
        match (&self.front, &mut self.writer) {
            (Some(front), _) => front.wake(&self.shared),
            (None, Some(_)) if self.by_hand => {}
            (None, Some(writer)) => while writer.step(&self.shared) {},
            (None, None) => self.shared.work.notify_one(),
        }
    }

    /// Begins a new bucket.
    pub(super) fn roll(&mut self, now: i64) {
        self.flush();
        self.once.forget(now - self.settings.once_age);
        let mut seal = Seal { base: self.bucket.summary.base, index: Vec::new(), whole: None };
        if self.shared.indexed {
            seal.index = self.bucket.index(&self.topics, &self.once);
            self.behind.0 += self.bucket.summary.length + seal.index.len() as u64;
            self.behind.1 += 1;
            let weight = self.topics.weight + self.once.weight() + self.waiting.weight();
            if self.behind.0 >= BEHIND.min(4 * self.settings.bucket_bytes).max(weight) || self.behind.1 >= INDEXES {
                self.behind = (0, 0);
                let all = whole::write(self.next, self.stored, &self.topics, &self.once, &self.waiting);
                seal.whole = Some((self.next, all));
            }
        }
        self.shared.state().pending.push_back(Piece::Seal(seal));
        self.fresh();
        self.wake();
        if !self.shared.indexed {
            // A log in memory keeps its bounds by itself; there are no files whose removal could fail.
            let _ = self.shared.trim(&self.settings, |_, _| false, u64::MAX);
            if self.front.is_none() {
                self.drop_waiting(self.reader().first());
            }
        }
    }

    /// Goes on with a bucket as it was found.
    pub(super) fn go_on(&mut self, bucket: Building, stored: i64, behind: (u64, u64)) {
        (self.tail_from, self.tail_at, self.marked) = (self.next, bucket.summary.length, bucket.marks.len());
        (self.bucket, self.stored, self.behind) = (bucket, stored, behind);
    }

    pub(super) fn fresh(&mut self) {
        self.topics.roll();
        self.bucket = Building::new(self.next);
        (self.tail_from, self.tail_at, self.marked) = (self.next, 0, 0);
    }

    /// Takes back what could not be written; to be called when the bell has rung.
    pub fn settle(&mut self) -> Option<Lost> {
        if !self.shared.failed.load(SeqCst) {
            return None;
        }
        let mut state = self.shared.state();
        let mut failure = state.failure.take()?;
        let mut sealed = failure.poisoned;
        // Of a front those that wait still are not lost: what is, was said when it failed.
        let lost = if self.front.is_some() { VecDeque::new() } else { std::mem::take(&mut state.pending) };
        for piece in lost {
            match piece {
                Piece::Data(data) => failure.refused.push(data),
                Piece::Seal(_) => sealed = true,
            }
        }
        let Data { base, position: length, from, .. } = failure.refused[0];
        let to = self.next;
        self.shared.waiting.store(state.pending.iter().map(Piece::size).sum(), SeqCst);
        self.shared.failed.store(false, SeqCst);
        drop(state);
        let tail = std::mem::take(&mut self.tail);
        let blocks = failure.refused.iter().map(|data| data.bytes.as_slice()).chain([&tail[..]]);
        let all: Vec<_> = blocks.flat_map(records).collect();
        for record in all.iter().rev() {
            if !record.is_parked() {
                self.topics.get(record.topic).retract(record.sequence());
            }
            if record.session() != 0 && !record.is_released() {
                self.once.retract(record.session(), record.number());
            }
        }
        let waiting = self.waiting.retract(from).into_iter().map(|parked| (parked.due, parked.offset)).collect();
        self.next = from;
        if sealed || length == 0 {
            let indexed = self.shared.indexed;
            let index = if indexed { self.index_again(base, length) } else { (length > 0).then(Vec::new) };
            if let Some(index) = index {
                self.shared.state().pending.push_back(Piece::Seal(Seal { base, index, whole: None }));
            }
            self.fresh();
        } else {
            self.bucket.retract(from, length, all.len() as u64);
            (self.tail_from, self.tail_at, self.marked) = (from, length, self.bucket.marks.len());
        }
        self.failed = Some((clock::steady() + RETRY, failure.error.clone()));
        Some(Lost { from, to, error: failure.error, waiting })
    }

    /// The index of a bucket that ends earlier than it was to; None: nothing is in it, or it can't be read now.
    fn index_again(&mut self, base: u64, length: u64) -> Option<Vec<u8>> {
        let bytes = rest(&*self.shared.files.open(&log_name(base)).ok()?, 0, length).ok()?;
        let (building, topics, once) = (Building::new(base), Topics::default(), Once::default());
        let mut scan = Scan { building, topics, once, limit: Some(self.next) };
        scan.run(&bytes, &mut Vec::new());
        (length > 0).then(|| scan.building.index(&scan.topics, &self.once))
    }

    /// Removes whole buckets by age, bytes and count; none with an offset of `hold` or above.
    pub fn trim(&mut self, now: i64, hold: u64) -> io::Result<Trimmed> {
        let settings = self.settings;
        self.once.forget(now - settings.once_age);
        let old = |last: i64| settings.max_age > 0 && last < now - settings.max_age;
        let ahead = |time: i64| time - now > STEP;
        let own = self.bucket.summary;
        if own.count > 0 && (now - own.first > settings.bucket_age || old(own.last) || ahead(own.first)) {
            self.roll(now);
        }
        self.ahead = ahead(self.stored).then(|| self.ahead.unwrap_or(now));
        let since = self.ahead;
        // A bucket whose times can't be right was stored before what comes behind it, and before that was seen.
        let gone = |state: &State, at: usize| {
            let times = |bucket: &Bucket| (bucket.summary.first, bucket.summary.last);
            let behind = || state.buckets[at + 1..].iter().map(|bucket| times(bucket).0).find(|first| !ahead(*first));
            let last = Some(times(&state.buckets[at]).1).filter(|last| !ahead(*last));
            last.or_else(behind).or(since).is_some_and(old)
        };
        let gone = self.shared.trim(&settings, gone, hold)?;
        self.held = gone.held;
        if gone.buckets > 0 && self.front.is_none() {
            self.drop_waiting(self.reader().first());
        }
        Ok(gone)
    }

    /// What was over the limits at the last `trim` and is held: records, bytes.
    pub fn held(&self) -> (u64, u64) {
        self.held
    }

    /// Nothing below this offset is there any more, so nothing of it will be due.
    pub fn drop_waiting(&mut self, first: u64) {
        self.waiting.trim(first);
    }

    /// Writes all that waits and lets go of the folder; an error tells what of it could not be stored.
    pub fn close(&mut self) -> io::Result<()> {
        if std::mem::replace(&mut self.closed, true) {
            return Ok(());
        }
        self.by_hand = false;
        self.flush();
        self.shared.state().closing = true;
        self.wake();
        let ended =
            self.thread.take().map_or(Ok(()), |thread| thread.join().map_err(|_| io::Error::other("the writer ended")));
        let stuck = self.stuck().map(|(error, count)| format!("{count} acknowledged messages are lost: {error}"));
        let lost =
            stuck.or_else(|| self.settle().map(|lost| lost.error)).map_or(Ok(()), |error| Err(io::Error::other(error)));
        let kept = if lost.is_ok() && self.shared.indexed { self.checkpoint() } else { Ok(()) };
        self.shared.files.unlock();
        ended.and(lost).and(kept)
    }

    /// The index of the bucket so far, so that the next one to open it need not read it, and how far the log went.
    fn checkpoint(&mut self) -> io::Result<()> {
        let (own, files) = (self.bucket.summary, &*self.shared.files);
        if own.count > 0 {
            files.open(&log_name(own.base))?.sync()?;
            replace(files, &index_name(own.base), &self.bucket.index(&self.topics, &self.once), true)?;
        }
        if self.next > 0 {
            open::end_with(files, self.next)?;
        }
        Ok(())
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        // Who wants to know calls close.
        let _ = self.close();
    }
}
