//! Recovery when a log is opened: it reads the last bucket, the newest checkpoint, the indexes after it, and only the
//! heads of older indexes.
//!
//! A torn tail is cut. Other corrupt data is reported as damage and becomes a hole; the records after it stay. A record
//! after a hole that begins a write shows that the missing records were safe, so it is not a torn tail. Otherwise the
//! publisher may send some of them again, and they must not be stored after later ones.

use std::collections::BTreeSet;
use std::io;

use crc32c::crc32c;

use super::bucket::{index_name, learn, log_name, Building, Index, Summary, Topics, HEAD};
use super::files::{replace, rest, Files};
use super::record::{behind, Record};
use super::Damage;
use crate::log::bucket::checkpoint::{self, whole_name, Whole};
use crate::log::bucket::dedup::Once;
use crate::log::bucket::delayed::Waiting;
use crate::log::writer::Bucket;

/// The file with the offset of the first record that was not removed: u64, and its CRC-32C.
pub const FIRST: &str = "first";
/// The file with the offset after the last record when the log was closed, in the same format: fewer records mean a
/// loss.
pub const NEXT: &str = "next";
pub const UNREADABLE: &str = "what was known of all before is unreadable";

/// The description of an incomplete write.
pub const TORN: &str = "a torn tail";

#[derive(Default)]
pub struct Found {
    pub buckets: Vec<Bucket>,
    pub bucket: Building,
    pub topics: Topics,
    pub once: Once,
    pub waiting: Waiting,
    /// Records before this offset were removed. None: the log is in memory.
    pub begin: Option<u64>,
    pub next: u64,
    pub stored: i64,
    pub damage: Vec<Damage>,
    /// See `shared::State`.
    pub orphans: Vec<(u64, u64)>,
    pub wholes: Vec<(u64, u64)>,
    /// Bytes and buckets after the newest checkpoint.
    pub behind: (u64, u64),
}

fn number(name: &str, end: &str) -> Option<u64> {
    name.strip_suffix(end).filter(|digits| digits.len() == 20)?.parse().ok()
}

/// Reads an offset from its file, if it is valid.
fn read_note(files: &dyn Files, name: &str) -> io::Result<Option<u64>> {
    let bytes = rest(&*files.open(name)?, 0, 13)?;
    let found = bytes.split_at_checked(8).filter(|(offset, crc)| crc32c(offset).to_le_bytes() == **crc);
    Ok(found.and_then(|(offset, _)| Some(u64::from_le_bytes(offset.try_into().ok()?))))
}

/// Reads an offset from its file; 0 if there is none.
fn noted(files: &dyn Files, names: &[String], name: &str, damage: &mut Vec<Damage>) -> io::Result<u64> {
    if !names.iter().any(|known| known == name) {
        return Ok(0);
    }
    Ok(read_note(files, name)?.unwrap_or_else(|| {
        damage.push(Damage {
            file: name.into(),
            position: 0,
            from: 0,
            to: Some(0),
            what: "an offset that was noted is unreadable",
        });
        0
    }))
}

/// Reads the index of a bucket, if it is valid.
pub fn index(files: &dyn Files, base: u64) -> io::Result<Option<Index>> {
    let file = match files.open(&index_name(base)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        file => file?,
    };
    Ok(Index::read(rest(&*file, 0, file.size()?)?).filter(|index| index.summary.base == base))
}

fn summary(files: &dyn Files, base: u64) -> io::Result<Option<Summary>> {
    let head = rest(&*files.open(&index_name(base))?, 0, HEAD as u64)?;
    Ok(Summary::read(&head).map(|found| found.0).filter(|found| found.base == base))
}

/// Reads the records of a bucket, and builds its index.
pub struct Scan {
    pub building: Building,
    pub topics: Topics,
    pub once: Once,
    /// The first offset of the next bucket; None: this is the last one.
    pub limit: Option<u64>,
}

impl Scan {
    pub fn index(&self) -> io::Result<Index> {
        let index = Index::read(self.building.index(&self.topics, &self.once));
        index.ok_or_else(|| io::Error::other("an index could not be made anew"))
    }

    /// Processes bytes after those in `building`, whose length then covers the valid ones.
    pub fn run(&mut self, bytes: &[u8], damage: &mut Vec<Damage>) {
        let start = self.building.summary.length;
        let file = log_name(self.building.summary.base);
        let limit = self.limit.unwrap_or(u64::MAX);
        let mut at = 0;
        while at < bytes.len() {
            let expected = self.building.summary.end;
            let found = Record::sound(&bytes[at..]).filter(|record| (expected..limit).contains(&record.offset()));
            let next = match found {
                Some(record) if record.offset() == expected => {
                    self.building.summary.length = start + at as u64;
                    learn(&record, &mut self.building, &mut self.topics, &mut self.once);
                    at += record.bytes.len();
                    continue;
                }
                Some(record) => Some((at, record.offset())),
                None => behind(bytes, at, expected, limit),
            };
            let mut lost =
                Damage { file: file.clone(), position: start + at as u64, from: expected, to: self.limit, what: TORN };
            match next {
                Some((to, offset)) if self.limit.is_some() || was_safe(bytes, to, offset) => {
                    (lost.to, lost.what) = (Some(offset), "a bad record");
                    damage.push(lost);
                    self.topics.skip(offset - expected);
                    self.building.skipped += offset - expected;
                    (at, self.building.summary.end) = (to, offset);
                }
                _ => {
                    damage.push(lost);
                    if let Some(limit) = self.limit {
                        self.topics.skip(limit - expected);
                        at = bytes.len();
                    }
                    break;
                }
            }
        }
        self.building.summary.length = start + at as u64;
    }
}

/// True if a record from here on shows that all records before this offset were safe.
fn was_safe(bytes: &[u8], mut at: usize, offset: u64) -> bool {
    while at < bytes.len() {
        match Record::sound(&bytes[at..]) {
            Some(record) if record.sure().is_some_and(|sure| sure >= offset) => return true,
            Some(record) => at += record.bytes.len(),
            None => match behind(bytes, at, offset, u64::MAX) {
                Some((to, _)) => at = to,
                None => return false,
            },
        }
    }
    false
}

struct Opening<'a> {
    files: &'a dyn Files,
    logs: BTreeSet<u64>,
    indexes: BTreeSet<u64>,
    wholes: BTreeSet<u64>,
    found: Found,
}

/// Writes that all records before this offset were removed.
pub fn begin_with(files: &dyn Files, first: u64) -> io::Result<()> {
    note(files, FIRST, first)
}

/// Reads the first offset; 0 if it was never written.
pub fn begins_with(files: &dyn Files) -> u64 {
    read_note(files, FIRST).ok().flatten().unwrap_or(0)
}

/// Writes that the log ended at this offset.
pub fn end_with(files: &dyn Files, next: u64) -> io::Result<()> {
    note(files, NEXT, next)
}

fn note(files: &dyn Files, name: &str, offset: u64) -> io::Result<()> {
    let mut bytes = offset.to_le_bytes().to_vec();
    bytes.extend_from_slice(&crc32c(&bytes).to_le_bytes());
    replace(files, name, &bytes, true)
}

/// Opens the existing log, or creates one that begins with this offset.
pub fn open(files: &dyn Files, fresh: u64) -> io::Result<Found> {
    let mut names = files.list()?;
    let ours = |name: &String| {
        name == FIRST || name == NEXT || [".log", ".idx", ".all"].iter().any(|end| number(name, end).is_some())
    };
    if fresh > 0 && !names.iter().any(ours) {
        begin_with(files, fresh)?;
        names = files.list()?;
    }
    for name in names.iter().filter(|name| name.strip_suffix(".tmp").is_some()) {
        files.remove(name)?;
    }
    let mut opening = Opening {
        files,
        logs: names.iter().filter_map(|name| number(name, ".log")).collect(),
        indexes: names.iter().filter_map(|name| number(name, ".idx")).collect(),
        wholes: names.iter().filter_map(|name| number(name, ".all")).collect(),
        found: Found::default(),
    };
    let begin = noted(files, &names, FIRST, &mut opening.found.damage)?;
    let end = noted(files, &names, NEXT, &mut opening.found.damage)?;
    opening.finish_removal(begin)?;
    opening.run(begin, end)?;
    opening.measure(begin)?;
    opening.found.begin = Some(begin);
    Ok(opening.found)
}

impl Opening<'_> {
    /// Completes an interrupted trim.
    fn finish_removal(&mut self, begin: u64) -> io::Result<()> {
        for base in self.logs.iter().filter(|base| **base < begin) {
            self.files.remove(&log_name(*base))?;
        }
        self.logs.retain(|base| *base >= begin);
        // Files that are older than the last two checkpoints and the indexes after them.
        while self.wholes.len() > 2 {
            self.wholes.pop_first().map_or(Ok(()), |end| self.files.remove(&whole_name(end)))?;
        }
        let cut = if self.wholes.len() == 2 { self.wholes.first().copied().unwrap_or(0) } else { 0 };
        // A bucket may have grown after a checkpoint, when it was opened again.
        let cut = self.indexes.range(..cut).next_back().copied().unwrap_or(cut);
        let stays = |base: &u64| *base >= begin.min(cut);
        for base in self.indexes.iter().filter(|base| !stays(base)) {
            self.files.remove(&index_name(*base))?;
        }
        self.indexes.retain(stays);
        Ok(())
    }

    /// Measures the files beside the buckets.
    fn measure(&mut self, begin: u64) -> io::Result<()> {
        let size = |name: String| self.files.open(&name)?.size();
        for bucket in &mut self.found.buckets {
            let base = bucket.summary.base;
            bucket.index = if self.indexes.contains(&base) { size(index_name(base))? } else { 0 };
        }
        for base in self.indexes.range(..begin) {
            self.found.orphans.push((*base, size(index_name(*base))?));
        }
        for end in &self.wholes {
            self.found.wholes.push((*end, size(whole_name(*end))?));
        }
        let last = self.wholes.last().copied().unwrap_or(0);
        let behind = self.found.buckets.iter().filter(|bucket| bucket.sealed && bucket.summary.base >= last);
        self.found.behind = behind.fold((0, 0), |sum, one| (sum.0 + one.summary.length + one.index, sum.1 + 1));
        Ok(())
    }

    fn report(&mut self, file: String, range: (u64, u64), what: &'static str) {
        let damage = Damage { file, position: 0, from: range.0, to: Some(range.1), what };
        if !self.found.damage.contains(&damage) {
            self.found.damage.push(damage);
        }
    }

    fn run(&mut self, begin: u64, end: u64) -> io::Result<()> {
        let mut next = begin;
        let bases: Vec<u64> = self.logs.union(&self.indexes).copied().filter(|base| *base >= begin).collect();
        for (i, base) in bases.iter().copied().enumerate() {
            if base > next {
                self.report(log_name(next), (next, base), "a bucket is missing");
            }
            let limit = bases.get(i + 1).copied();
            next = match (self.logs.contains(&base), limit) {
                (false, _) => self.only_index(base)?.unwrap_or(base),
                (true, Some(limit)) => self.sealed(base, limit)?,
                (true, None) => self.last(base)?,
            };
        }
        let active = bases.last().is_some_and(|base| self.logs.contains(base));
        if !active {
            let known = self.before(u64::MAX)?;
            if next < known.end {
                self.report(log_name(next), (next, known.end), "a bucket is missing");
                next = known.end;
            }
            (self.found.topics, self.found.once, self.found.waiting) = (known.topics, known.once, known.waiting);
            self.found.stored = known.stored;
        }
        if next < end {
            self.report(log_name(next), (next, end), "a bucket is missing");
            self.found.topics.skip(end - next);
            if let Some(last) = self.found.buckets.last_mut() {
                last.sealed = true;
            }
            next = end;
        }
        if !active || self.found.bucket.summary.end < next {
            self.found.topics.roll();
            self.found.bucket = Building::new(next);
        }
        self.found.next = next;
        // Delayed messages that were removed were reported then.
        self.found.waiting.trim(begin);
        self.found.waiting.dropped = 0;
        self.found.stored = self.found.buckets.last().map_or(self.found.stored, |bucket| bucket.summary.last);
        Ok(())
    }

    /// Handles an index without its bucket.
    fn only_index(&mut self, base: u64) -> io::Result<Option<u64>> {
        let end = summary(self.files, base)?.map(|summary| summary.end);
        self.report(log_name(base), (base, end.unwrap_or(base)), "a bucket is missing");
        Ok(end)
    }

    /// Loads the state before a bucket.
    fn before(&mut self, base: u64) -> io::Result<Whole> {
        let mut known = Whole::default();
        for end in self.wholes.iter().rev().copied().collect::<Vec<_>>() {
            if let Some(whole) = checkpoint::read(self.files, end)? {
                known = whole;
                break;
            }
            self.report(whole_name(end), (end, end), UNREADABLE);
            self.files.remove(&whole_name(end))?;
            self.wholes.remove(&end);
        }
        let begin = self.indexes.range(..known.end).next_back().copied().unwrap_or(known.end);
        for earlier in self.indexes.range(begin..base.max(begin)).copied().collect::<Vec<_>>() {
            let mut found = index(self.files, earlier)?;
            // Its head was valid, or it would have been rebuilt before.
            let limit = self.logs.range(earlier + 1..).next().copied().filter(|_| self.logs.contains(&earlier));
            if let Some(limit) = limit.filter(|_| found.is_none()) {
                self.index_anew(earlier, limit)?;
                found = index(self.files, earlier)?;
            }
            match found {
                Some(index) => Self::carry(&mut known, &index),
                None => self.report(index_name(earlier), (earlier, earlier), "an index is unreadable"),
            }
        }
        if base < u64::MAX {
            known.topics.skip(base.saturating_sub(known.end));
        }
        known.topics.roll();
        Ok(known)
    }

    fn carry(known: &mut Whole, index: &Index) {
        let Summary { base, end, last, .. } = index.summary;
        if end <= known.end {
            return;
        }
        known.topics.skip(base.saturating_sub(known.end));
        index.carry(known.end, &mut known.topics, &mut known.once);
        known.waiting.apply(&index.moves);
        (known.end, known.stored) = (end, last);
    }

    /// Handles a bucket that is not the last one: it uses its index, or rebuilds it.
    fn sealed(&mut self, base: u64, limit: u64) -> io::Result<u64> {
        let size = self.files.open(&log_name(base))?.size()?;
        let known = if self.indexes.contains(&base) { summary(self.files, base)? } else { None };
        let fits = |summary: &Summary| summary.length == size && summary.end <= limit;
        let known = known.filter(fits);
        let summary = match known {
            Some(summary) => summary,
            None => Summary { length: size, ..self.index_anew(base, limit)? },
        };
        self.found.buckets.push(Bucket { summary, sealed: true, marks: Vec::new(), index: 0 });
        Ok(known.map_or(limit, |summary| summary.end))
    }

    fn index_anew(&mut self, base: u64, limit: u64) -> io::Result<Summary> {
        self.report(index_name(base), (base, base), "an index was made anew");
        let file = self.files.open(&log_name(base))?;
        let bytes = rest(&*file, 0, file.size()?)?;
        let (building, topics, once) = (Building::new(base), Topics::default(), Once::default());
        let mut scan = Scan { building, topics, once, limit: Some(limit) };
        scan.run(&bytes, &mut self.found.damage);
        let end = scan.building.summary.end;
        if end < limit && self.found.damage.last().is_none_or(|damage| damage.to != Some(limit)) {
            self.report(log_name(base), (end, limit), "records are missing");
            scan.topics.skip(limit - end);
        }
        replace(self.files, &index_name(base), &scan.building.index(&scan.topics, &scan.once), true)?;
        self.indexes.insert(base);
        Ok(scan.building.summary)
    }

    fn last(&mut self, base: u64) -> io::Result<u64> {
        let file = self.files.open(&log_name(base))?;
        let size = file.size()?;
        let known = if self.indexes.contains(&base) { index(self.files, base)? } else { None };
        if known.is_none() && self.indexes.contains(&base) {
            self.report(index_name(base), (base, base), "an index is unreadable");
        }
        let mut all = self.before(base)?;
        let (building, topics, once) = (Building::new(base), Topics::default(), Once::default());
        let mut scan = Scan { building, topics, once, limit: None };
        match known {
            Some(index) if index.summary.length <= size => {
                index.carry(base, &mut scan.topics, &mut scan.once);
                scan.building = index.building();
            }
            // The index also covers missing records.
            Some(index) => Self::carry(&mut all, &index),
            None => {}
        }
        let bytes = rest(&*file, scan.building.summary.length, size)?;
        scan.run(&bytes, &mut self.found.damage);
        let mut next = scan.building.summary.end;
        if next < all.end {
            self.report(log_name(base), (next, all.end), "records are missing");
            next = all.end;
        } else {
            scan.index()?.carry(all.end, &mut all.topics, &mut all.once);
            all.waiting.apply(&scan.building.moves);
        }
        if scan.building.summary.length < size {
            file.cut(scan.building.summary.length)?;
        }
        // A killed process may not have synced its writes. Readers see these records now, so sync them first.
        if !bytes.is_empty() {
            file.sync()?;
            self.files.sync()?;
        }
        let building = scan.building;
        let missing = building.summary.end < next;
        if building.summary.count > 0 {
            let marks = building.marks.clone();
            self.found.buckets.push(Bucket { summary: building.summary, sealed: missing, marks, index: 0 });
        }
        (self.found.bucket, self.found.topics, self.found.once) = (building, all.topics, all.once);
        (self.found.waiting, self.found.stored) = (all.waiting, all.stored);
        Ok(next)
    }
}
