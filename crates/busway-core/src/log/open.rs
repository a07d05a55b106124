//! What is found when a log is opened: only the last bucket is read, of the others only the heads of their indexes.
//!
//! A torn tail is cut. Anything else that is not as it was written is told and left as a hole; what lies behind stays. A hole
//! is told from a torn tail by a record behind it that begins a write, since all before it was safe then.

use std::collections::BTreeSet;
use std::io;

use crc32c::crc32c;

use super::bucket::{index_name, learn, log_name, Building, Index, Summary, Topics, HEAD};
use super::files::{replace, rest, Files};
use super::once::Once;
use super::record::{behind, Record};
use super::shared::Bucket;
use super::waiting::Waiting;
use super::Damage;

/// The file that has the offset of the first record that was not removed: u64, and its CRC-32C.
pub const FIRST: &str = "first";

#[derive(Default)]
pub struct Found {
    pub buckets: Vec<Bucket>,
    pub bucket: Building,
    pub topics: Topics,
    pub once: Once,
    pub waiting: Waiting,
    pub next: u64,
    pub stored: i64,
    pub damage: Vec<Damage>,
    pub carry: Option<u64>,
}

fn number(name: &str, end: &str) -> Option<u64> {
    name.strip_suffix(end).filter(|digits| digits.len() == 20)?.parse().ok()
}

fn first(files: &dyn Files, damage: &mut Vec<Damage>) -> io::Result<u64> {
    let bytes = rest(&*files.open(FIRST)?, 0, 13)?;
    let found = bytes.split_at_checked(8).filter(|(offset, crc)| crc32c(offset).to_le_bytes() == **crc);
    let found = found.and_then(|(offset, _)| Some(u64::from_le_bytes(offset.try_into().ok()?)));
    Ok(found.unwrap_or_else(|| {
        damage.push(Damage {
            file: FIRST.into(),
            position: 0,
            from: 0,
            to: Some(0),
            what: "the first offset is unreadable",
        });
        0
    }))
}

/// The index of a bucket, if it is sound.
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

/// Reads the records of a bucket into what is known of it.
pub struct Scan {
    pub building: Building,
    pub topics: Topics,
    pub once: Once,
    pub waiting: Waiting,
    /// The offset the next bucket begins with; None: this is the last.
    pub limit: Option<u64>,
}

impl Scan {
    /// The bytes begin behind what `building` has, whose length becomes the one up to which they are sound.
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
                    learn(&record, &mut self.building, &mut self.topics, &mut self.once, &mut self.waiting);
                    at += record.bytes.len();
                    continue;
                }
                Some(record) => Some((at, record.offset())),
                None => behind(bytes, at, expected, limit),
            };
            let mut told = Damage {
                file: file.clone(),
                position: start + at as u64,
                from: expected,
                to: self.limit,
                what: "a torn tail",
            };
            match next {
                Some((to, offset)) if self.limit.is_some() || was_safe(bytes, to, expected) => {
                    (told.to, told.what) = (Some(offset), "a bad record");
                    damage.push(told);
                    self.topics.skip(offset - expected);
                    (at, self.building.summary.end) = (to, offset);
                }
                _ => {
                    damage.push(told);
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

/// Whether some record from here on begins a write.
fn was_safe(bytes: &[u8], mut at: usize, expected: u64) -> bool {
    while at < bytes.len() {
        match Record::sound(&bytes[at..]) {
            Some(record) if record.begins_group() => return true,
            Some(record) => at += record.bytes.len(),
            None => match behind(bytes, at, expected, u64::MAX) {
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
    found: Found,
}

/// Says that everything before this offset was removed.
pub fn begin_with(files: &dyn Files, first: u64) -> io::Result<()> {
    let mut bytes = first.to_le_bytes().to_vec();
    bytes.extend_from_slice(&crc32c(&bytes).to_le_bytes());
    replace(files, FIRST, &bytes, true)
}

/// What is there; if that is nothing, a log that begins with this offset.
pub fn open(files: &dyn Files, fresh: u64) -> io::Result<Found> {
    let mut names = files.list()?;
    let ours = |name: &String| name == FIRST || [".log", ".idx"].iter().any(|end| number(name, end).is_some());
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
        found: Found::default(),
    };
    let begin = if names.iter().any(|name| name == FIRST) { first(files, &mut opening.found.damage)? } else { 0 };
    opening.finish_removal(begin)?;
    opening.run(begin)?;
    Ok(opening.found)
}

impl Opening<'_> {
    /// Removes what a trim that was cut short has left.
    fn finish_removal(&mut self, begin: u64) -> io::Result<()> {
        for base in self.logs.iter().filter(|base| **base < begin) {
            self.files.remove(&log_name(*base))?;
        }
        self.logs.retain(|base| *base >= begin);
        let newest = self.indexes.last().copied();
        for base in self.indexes.iter().filter(|base| **base < begin && Some(**base) != newest) {
            self.files.remove(&index_name(*base))?;
        }
        self.indexes.retain(|base| *base >= begin || Some(*base) == newest);
        self.found.carry = newest.filter(|base| *base < begin);
        Ok(())
    }

    fn told(&mut self, file: String, range: (u64, u64), what: &'static str) {
        self.found.damage.push(Damage { file, position: 0, from: range.0, to: Some(range.1), what });
    }

    fn run(&mut self, begin: u64) -> io::Result<()> {
        let mut next = begin;
        let bases: Vec<u64> = self.logs.union(&self.indexes).copied().filter(|base| *base >= begin).collect();
        for (i, base) in bases.iter().copied().enumerate() {
            if base > next {
                self.told(log_name(next), (next, base), "a bucket is missing");
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
            let (topics, once, waiting, end) = self.before(u64::MAX)?;
            (self.found.topics, self.found.once, self.found.waiting) = (topics, once, waiting);
            next = next.max(end);
        }
        if !active || self.found.bucket.summary.end < next {
            self.found.topics.roll();
            self.found.bucket = Building::new(next);
        }
        self.found.next = next;
        // What went with old records was told then.
        self.found.waiting.trim(begin);
        self.found.waiting.dropped = 0;
        self.found.stored = self.found.buckets.last().map_or(0, |bucket| bucket.summary.last);
        if let Some(base) = self.found.carry {
            let known = if self.found.buckets.is_empty() { index(self.files, base)? } else { None };
            self.found.stored = known.map_or(self.found.stored, |index| index.summary.last);
        }
        Ok(())
    }

    /// An index whose bucket is gone.
    fn only_index(&mut self, base: u64) -> io::Result<Option<u64>> {
        let end = summary(self.files, base)?.map(|summary| summary.end);
        self.told(log_name(base), (base, end.unwrap_or(base)), "a bucket is missing");
        Ok(end)
    }

    /// What was known before a bucket: topics, publishers, what waits, the offset up to which it is.
    fn before(&mut self, base: u64) -> io::Result<(Topics, Once, Waiting, u64)> {
        let earlier: Vec<u64> = self.indexes.range(..base).rev().copied().collect();
        for earlier in earlier {
            if let Some(index) = index(self.files, earlier)? {
                return Ok((index.carry(false), index.once(), index.waiting(), index.summary.end));
            }
            self.told(index_name(earlier), (earlier, earlier), "an index is unreadable");
        }
        Ok((Topics::default(), Once::default(), Waiting::default(), 0))
    }

    fn scan(&mut self, base: u64, limit: Option<u64>) -> io::Result<Scan> {
        let (mut topics, once, waiting, end) = self.before(base)?;
        topics.skip(base.saturating_sub(end));
        let file = self.files.open(&log_name(base))?;
        let bytes = rest(&*file, 0, file.size()?)?;
        let building = Building::new(base);
        let mut scan = Scan { building, topics, once, waiting, limit };
        scan.run(&bytes, &mut self.found.damage);
        Ok(scan)
    }

    /// A bucket that is not the last: its index speaks for it, or is made anew.
    fn sealed(&mut self, base: u64, limit: u64) -> io::Result<u64> {
        let size = self.files.open(&log_name(base))?.size()?;
        let known = if self.indexes.contains(&base) { summary(self.files, base)? } else { None };
        let fits = |summary: &Summary| summary.length == size && summary.end <= limit;
        let known = known.filter(fits);
        let summary = match known {
            Some(summary) => summary,
            None => Summary { length: size, ..self.index_anew(base, limit)? },
        };
        self.found.buckets.push(Bucket { summary, sealed: true, marks: Vec::new() });
        Ok(known.map_or(limit, |summary| summary.end))
    }

    fn index_anew(&mut self, base: u64, limit: u64) -> io::Result<Summary> {
        self.told(index_name(base), (base, base), "an index was made anew");
        let mut scan = self.scan(base, Some(limit))?;
        let end = scan.building.summary.end;
        if end < limit && self.found.damage.last().is_none_or(|told| told.to != Some(limit)) {
            self.told(log_name(base), (end, limit), "records are missing");
            scan.topics.skip(limit - end);
        }
        replace(self.files, &index_name(base), &scan.building.index(&scan.topics, &scan.once, &scan.waiting), true)?;
        self.indexes.insert(base);
        Ok(scan.building.summary)
    }

    fn last(&mut self, base: u64) -> io::Result<u64> {
        let file = self.files.open(&log_name(base))?;
        let size = file.size()?;
        let known = if self.indexes.contains(&base) { index(self.files, base)? } else { None };
        if known.is_none() && self.indexes.contains(&base) {
            self.told(index_name(base), (base, base), "an index is unreadable");
        }
        let mut next = base;
        let scan = match known {
            Some(index) if index.summary.length <= size => {
                let bytes = rest(&*file, index.summary.length, size)?;
                let (building, topics) = (index.building(), index.carry(true));
                let (once, waiting) = (index.once(), index.waiting());
                let mut scan = Scan { building, topics, once, waiting, limit: None };
                scan.run(&bytes, &mut self.found.damage);
                scan
            }
            Some(index) => {
                let mut scan = self.scan(base, None)?;
                next = index.summary.end;
                self.told(log_name(base), (scan.building.summary.end, next), "records are missing");
                (scan.topics, scan.once, scan.waiting) = (index.carry(false), index.once(), index.waiting());
                scan
            }
            None => self.scan(base, None)?,
        };
        if scan.building.summary.length < size {
            file.cut(scan.building.summary.length)?;
            file.sync()?;
        }
        let Scan { building, topics, once, waiting, .. } = scan;
        next = next.max(building.summary.end);
        let missing = building.summary.end < next;
        if building.summary.count > 0 {
            let marks = building.marks.clone();
            self.found.buckets.push(Bucket { summary: building.summary, sealed: missing, marks });
        }
        (self.found.bucket, self.found.topics, self.found.once, self.found.waiting) = (building, topics, once, waiting);
        Ok(next)
    }
}
