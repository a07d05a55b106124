//! The state of a bucket while it grows, and its index file after it is sealed.
//!
//! A bucket is `<offset of its first record, 20 digits>.log`; its index has the same name with `.idx`:
//!
//! ```text
//! offset  size  what
//! 0       8     "BWAYIDX2"
//! 8       8     base u64      offset of the first record
//! 16      8     end u64       offset after the last record
//! 24      8     length u64    bytes of the .log that this describes
//! 32      8     count u64     records (fewer than end - base: some were lost)
//! 40      8     first i64     when the first was stored
//! 48      8     last i64      when the last was stored
//! 56      8     0
//! 64      8     size u64      bytes of the body
//! 72      4     crc u32       of the body
//! 76      4     crc u32       of the first 76 bytes
//! 80      …     body: skipped u64, marks (offset, position, stored), changes of delayed messages (see `delayed`),
//!               publishers (see `dedup`), topics
//! ```
//! The lists of the body begin with their length. A topic has its last sequence, then those of this bucket: first
//! sequence, number of records, offset of the first; then its name (u64 length, bytes). Topics are sorted. Publishers,
//! topics and delayed messages are the changes of this bucket; a checkpoint and the indexes after it give the complete
//! state. `skipped` are sequences that no topic assigns, since the topics of lost records in this bucket are unknown.

pub(in crate::log) mod checkpoint;
pub mod dedup;
pub mod delayed;
pub(in crate::log) mod presync;
pub(in crate::log) mod seal;
pub(in crate::log) mod varint;

use std::hash::Hasher;

use crc32c::crc32c;
use hashbrown::HashTable;
use rustc_hash::FxHasher;

use crate::log::bucket::dedup::Once;
use crate::log::bucket::delayed::Moves;
use crate::log::bucket::varint::{Reader, Writer};
use crate::log::record::Record;

const MAGIC: &[u8; 8] = b"BWAYIDX2";
pub const HEAD: usize = 80;
/// Bytes between two marks.
const STEP: u64 = 64 << 10;

pub fn log_name(base: u64) -> String {
    format!("{base:020}.log")
}

pub fn index_name(base: u64) -> String {
    format!("{base:020}.idx")
}

/// The position of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mark {
    pub offset: u64,
    pub position: u64,
    pub stored: i64,
}

/// The summary of a bucket.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Summary {
    pub base: u64,
    pub end: u64,
    pub length: u64,
    pub count: u64,
    pub first: i64,
    pub last: i64,
}

impl Summary {
    pub fn new(base: u64) -> Self {
        Self { base, end: base, ..Self::default() }
    }

    /// Parses the head of an index; also returns the size of the body and its checksum.
    pub fn read(head: &[u8]) -> Option<(Self, usize, u32)> {
        let (words, crc) = head.get(..HEAD)?.split_at(76);
        if &words[..8] != MAGIC || crc32c(words).to_le_bytes() != crc {
            return None;
        }
        let rest = &mut &words[8..];
        let (base, end, length, count) = (rest.u64()?, rest.u64()?, rest.u64()?, rest.u64()?);
        let (first, last, _, size) = (rest.i64()?, rest.i64()?, rest.i64()?, rest.u64()?);
        let crc = u32::from_le_bytes(rest.bytes(4)?.try_into().ok()?);
        Some((Self { base, end, length, count, first, last }, usize::try_from(size).ok()?, crc))
    }

    fn write(&self, body: &[u8], out: &mut Vec<u8>) {
        out.extend_from_slice(MAGIC);
        for word in [self.base, self.end, self.length, self.count] {
            out.u64(word);
        }
        for word in [self.first, self.last, 0] {
            out.i64(word);
        }
        out.u64(body.len() as u64);
        out.extend_from_slice(&crc32c(body).to_le_bytes());
        out.extend_from_slice(&crc32c(out).to_le_bytes());
        out.extend_from_slice(body);
    }
}

/// The current bucket.
#[derive(Debug, Default)]
pub struct Building {
    pub summary: Summary,
    pub marks: Vec<Mark>,
    pub moves: Moves,
    /// Records that were lost between others.
    pub skipped: u64,
}

impl Building {
    pub fn new(base: u64) -> Self {
        Self { summary: Summary::new(base), ..Self::default() }
    }

    #[inline]
    pub fn add(&mut self, offset: u64, stored: i64, size: usize) {
        let own = &mut self.summary;
        if own.count == 0 {
            own.first = stored;
        }
        if self.marks.last().is_none_or(|mark| own.length - mark.position >= STEP) {
            self.marks.push(Mark { offset, position: own.length, stored });
        }
        (own.end, own.last) = (offset + 1, stored);
        own.length += size as u64;
        own.count += 1;
    }

    /// Removes records from this offset on.
    pub fn retract(&mut self, offset: u64, length: u64, count: u64) {
        self.marks.retain(|mark| mark.offset < offset);
        self.moves.retract(offset);
        (self.summary.end, self.summary.length) = (offset, length);
        self.summary.count -= count;
    }

    pub fn index(&self, topics: &Topics, once: &Once) -> Vec<u8> {
        let mut body = Vec::new();
        body.u64(self.skipped);
        body.u64(self.marks.len() as u64);
        for mark in &self.marks {
            body.u64(mark.offset);
            body.u64(mark.position);
            body.i64(mark.stored);
        }
        self.moves.write(&mut body);
        once.write(self.summary.base, &mut body);
        let mut sorted: Vec<&Topic> = topics.inside().collect();
        sorted.sort_unstable_by(|a, b| a.text.cmp(&b.text));
        body.u64(sorted.len() as u64);
        for topic in sorted {
            for word in [topic.last, topic.first, topic.count, topic.offset, topic.text.len() as u64] {
                body.u64(word);
            }
            body.extend_from_slice(topic.text.as_bytes());
        }
        let mut out = Vec::with_capacity(HEAD + body.len());
        self.summary.write(&body, &mut out);
        out
    }
}

/// A stored topic, with its records in the current bucket.
#[derive(Debug, Clone, Default)]
pub struct Topic {
    pub text: Box<str>,
    /// The last assigned sequence.
    pub last: u64,
    /// In this bucket: the first sequence, the number of records, the offset of the first.
    pub first: u64,
    pub count: u64,
    pub offset: u64,
}

/// All topics that were ever stored.
#[derive(Debug, Default)]
pub struct Topics {
    pub all: Vec<Topic>,
    table: HashTable<u32>,
    recent: usize,
    /// Topics with a record in this bucket, including removed ones.
    inside: Vec<u32>,
    /// The approximate size in a checkpoint.
    pub weight: u64,
}

pub fn hash(text: &[u8]) -> u64 {
    let mut hasher = FxHasher::default();
    hasher.write(text);
    hasher.finish()
}

impl Topics {
    #[inline]
    pub fn get(&mut self, text: &str) -> &mut Topic {
        if self.all.get(self.recent).is_none_or(|recent| *recent.text != *text) {
            let hashed = hash(text.as_bytes());
            let known = self.table.find(hashed, |&slot| *self.all[slot as usize].text == *text).copied();
            let slot = known.unwrap_or(self.all.len() as u32);
            if known.is_none() {
                self.all.push(Topic { text: text.into(), ..Topic::default() });
                self.weight += text.len() as u64 + 6;
                let all = &self.all;
                self.table.insert_unique(hashed, slot, |&slot| hash(all[slot as usize].text.as_bytes()));
            }
            self.recent = slot as usize;
        }
        &mut self.all[self.recent]
    }

    /// Adds a record of a topic to this bucket.
    #[inline]
    pub fn add(&mut self, text: &str, sequence: u64, offset: u64) {
        let topic = self.get(text);
        let new = topic.count == 0;
        topic.add(sequence, offset);
        if new {
            self.inside.push(self.recent as u32);
        }
    }

    /// Adds a record with the next sequence, and returns it.
    #[inline]
    pub fn append(&mut self, text: &str, offset: u64) -> u64 {
        let topic = self.get(text);
        let (new, sequence) = (topic.count == 0, topic.last + 1);
        topic.add(sequence, offset);
        if new {
            self.inside.push(self.recent as u32);
        }
        sequence
    }

    /// Topics with a record in this bucket.
    pub fn inside(&self) -> impl Iterator<Item = &Topic> {
        let mut slots: Vec<u32> = self.inside.clone();
        slots.sort_unstable();
        slots.dedup();
        slots.into_iter().map(|slot| &self.all[slot as usize]).filter(|topic| topic.count > 0)
    }

    /// Begins a new bucket.
    pub fn roll(&mut self) {
        for slot in self.inside.drain(..) {
            let topic = &mut self.all[slot as usize];
            (topic.first, topic.count, topic.offset) = (0, 0, 0);
        }
    }

    /// Skips sequences for lost records of unknown topics, which must not be assigned again.
    pub fn skip(&mut self, lost: u64) {
        for topic in &mut self.all {
            topic.last = topic.last.saturating_add(lost);
        }
    }
}

impl Topic {
    #[inline]
    pub fn add(&mut self, sequence: u64, offset: u64) {
        if self.count == 0 {
            (self.first, self.offset) = (sequence, offset);
        }
        self.last = sequence;
        self.count += 1;
    }

    pub fn retract(&mut self, sequence: u64) {
        self.last = sequence - 1;
        self.count = self.count.saturating_sub(1);
    }
}

/// A valid index, as bytes that are searched in place.
#[derive(Debug, Default)]
pub struct Index {
    pub summary: Summary,
    pub marks: Vec<Mark>,
    pub moves: Moves,
    skipped: u64,
    bytes: Vec<u8>,
    once: usize,
    /// Where each topic begins.
    topics: Vec<u32>,
}

impl Index {
    pub fn read(bytes: Vec<u8>) -> Option<Self> {
        let (summary, size, crc) = Summary::read(&bytes)?;
        let mut rest = &bytes[HEAD..];
        if rest.len() != size || crc32c(rest) != crc {
            return None;
        }
        let read = &mut rest;
        let skipped = read.u64()?;
        let mut marks = Vec::new();
        for _ in 0..read.count(24)? {
            marks.push(Mark { offset: read.u64()?, position: read.u64()?, stored: read.i64()? });
        }
        let moves = Moves::read(read)?;
        let once = bytes.len() - read.len();
        Once::default().read(0, read)?;
        let (mut topics, mut last) = (Vec::new(), None);
        for _ in 0..read.count(40)? {
            topics.push(u32::try_from(bytes.len() - read.len()).ok()?);
            read.bytes(32)?;
            let size = read.u64()?;
            let name = std::str::from_utf8(read.bytes(usize::try_from(size).ok()?)?).ok()?;
            if last.replace(name).is_some_and(|last| last >= name) {
                return None;
            }
        }
        rest.is_empty().then_some(Self { summary, marks, moves, skipped, bytes, once, topics })
    }

    fn row(&self, at: u32) -> Option<(&str, [u64; 4])> {
        let mut rest = &self.bytes[at as usize..];
        let words = [rest.u64()?, rest.u64()?, rest.u64()?, rest.u64()?];
        let size = rest.u64()?;
        Some((std::str::from_utf8(rest.bytes(usize::try_from(size).ok()?)?).ok()?, words))
    }

    /// Topics of this bucket: last sequence, first sequence, number of records, first offset.
    pub fn topics(&self) -> impl Iterator<Item = (&str, [u64; 4])> {
        self.topics.iter().filter_map(|at| self.row(*at))
    }

    pub fn topic(&self, text: &str) -> Option<[u64; 4]> {
        let name = |at: &u32| self.row(*at).map_or("", |row| row.0);
        let at = self.topics.binary_search_by(|at| name(at).cmp(text)).ok()?;
        self.row(self.topics[at]).map(|row| row.1)
    }

    /// Updates the state at an offset in this bucket to the state after it; for topics the bucket becomes the current
    /// one.
    pub fn carry(&self, from: u64, topics: &mut Topics, once: &mut Once) {
        topics.roll();
        if from <= self.summary.base {
            topics.skip(self.skipped);
        }
        for (text, [last, first, count, offset]) in self.topics() {
            topics.add(text, last, offset);
            let topic = topics.get(text);
            (topic.first, topic.count) = (first, count);
        }
        let read = once.read(from, &mut &self.bytes[self.once..]);
        debug_assert!(read.is_some(), "an index that could be read can be read again");
    }

    pub fn building(&self) -> Building {
        let Self { summary, skipped, .. } = *self;
        Building { summary, marks: self.marks.clone(), moves: self.moves.clone(), skipped }
    }
}

/// Adds a record that was read to the state of its bucket.
pub fn learn(record: &Record<'_>, building: &mut Building, topics: &mut Topics, once: &mut Once) {
    let (offset, stored) = (record.offset(), record.stored());
    building.add(offset, stored, record.bytes.len());
    building.moves.learn(record);
    if !record.is_parked() {
        topics.add(record.topic, record.sequence(), offset);
    }
    if record.session() != 0 && !record.is_released() {
        once.add(record.session(), record.number(), offset, stored);
    }
}
