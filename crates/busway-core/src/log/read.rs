//! Reading a log from any thread: blocks by offset, and positions by time, topic and sequence.

use std::io;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::Arc;

use super::bucket::{index_name, log_name, Building, Index, Mark, Summary, Topic, Topics};
use super::files::{fill, rest};
use super::record::{behind, offset, records, size, wanted, Record, HEAD};
use super::Damage;
use crate::log::bucket::checkpoint::{self, whole_name};
use crate::log::bucket::dedup::Once;
use crate::log::recover::{begins_with, index, Scan, UNREADABLE};
use crate::log::writer::{Data, Loaded, Piece, Shared, State};
use crate::matching::selection::Selection;

/// The minimum bytes of a read.
const LEAST: usize = 64 << 10;

/// Consecutive records.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Block {
    pub bytes: Vec<u8>,
    /// Offset of the first record. If it is above the requested one, the records between are gone.
    pub first: u64,
    /// The next offset to read.
    pub next: u64,
}

/// The reading side of a log.
#[derive(Clone)]
pub struct Reader {
    pub(super) shared: Arc<Shared>,
}

enum Place {
    /// In this bucket, after this position; the next bucket begins with this offset.
    Bucket(Summary, Option<Mark>, u64),
    Memory(Data),
    /// No record before this offset.
    Later(u64),
}

impl State {
    /// Records from here on were not removed. If the first buckets are lost, it is the offset where they began.
    fn first(&self) -> u64 {
        let base = self.buckets.first().map_or(self.written, |bucket| bucket.summary.base);
        self.begin.map_or(base, |begin| begin.min(base))
    }

    fn place(&self, from: u64) -> Place {
        let at = self.buckets.partition_point(|bucket| bucket.summary.base <= from);
        if from < self.written {
            let next = self.buckets.get(at).map_or(self.written, |bucket| bucket.summary.base);
            return match at.checked_sub(1).map(|at| &self.buckets[at]) {
                Some(bucket) if from < bucket.summary.end => {
                    let end = self.ends.iter().find(|(base, end)| *base == bucket.summary.base && end.offset == from);
                    Place::Bucket(
                        bucket.summary,
                        end.map(|end| end.1).or_else(|| last_before(&bucket.marks, from)),
                        next,
                    )
                }
                _ => Place::Later(next),
            };
        }
        let pending = self.pending.iter().filter_map(|piece| match piece {
            Piece::Data(data) => Some(data),
            Piece::Seal(_) => None,
        });
        let held = self.writing.iter().chain(pending).find(|data| (data.from..data.summary.end).contains(&from));
        held.map_or(Place::Later(u64::MAX), |data| Place::Memory(data.clone()))
    }
}

impl Reader {
    pub fn first(&self) -> u64 {
        self.shared.state().first()
    }

    pub fn safe(&self) -> u64 {
        self.shared.safe_for_all()
    }

    /// As `safe`, whether or not a mirror has the records.
    pub fn written(&self) -> u64 {
        self.shared.safe.load(SeqCst)
    }

    pub fn damage(&self) -> Vec<Damage> {
        self.shared.state().damage.clone()
    }

    /// Bytes of records, number of buckets, and bytes of index files.
    pub fn usage(&self) -> (u64, usize, u64) {
        let state = self.shared.state();
        let indexes = state.buckets.iter().map(|bucket| bucket.index);
        let more = state.orphans.iter().chain(&state.wholes).map(|known| known.1);
        let bytes = state.buckets.iter().map(|bucket| bucket.summary.length).sum();
        (bytes, state.buckets.len(), indexes.chain(more).sum())
    }

    /// Reads safe records from an offset on: at most `most` bytes, but at least one record. It verifies checksums.
    pub fn read(&self, from: u64, most: usize) -> io::Result<Block> {
        let mut bytes = Vec::new();
        Ok(self.run(from, most, self.safe(), &mut bytes, |_| ())?.block(bytes))
    }

    /// As `read`, for all written records, whether or not a mirror has them.
    pub fn read_written(&self, from: u64, most: usize) -> io::Result<Block> {
        let mut bytes = Vec::new();
        Ok(self.run(from, most, self.written(), &mut bytes, |_| ())?.block(bytes))
    }

    /// As `read` up to `end`, with a reused buffer: calls `use_it` with each record. Returns the first offset, and the
    /// next to read.
    pub fn scan(
        &self,
        from: u64,
        end: u64,
        most: usize,
        buffer: &mut Vec<u8>,
        use_it: impl FnMut(&Record<'_>),
    ) -> io::Result<(u64, u64)> {
        let run = self.run(from, most, self.safe().min(end), buffer, use_it)?;
        Ok((run.first, run.next))
    }

    fn run(
        &self,
        mut from: u64,
        most: usize,
        safe: u64,
        buffer: &mut Vec<u8>,
        mut use_it: impl FnMut(&Record<'_>),
    ) -> io::Result<Run> {
        while from < safe {
            let place = self.shared.state().place(from);
            let found = match place {
                Place::Later(next) => Err(next),
                Place::Memory(data) => {
                    let run = Run::find(&data.bytes, data.from, from, most, safe, &mut use_it);
                    buffer.clear();
                    buffer.extend_from_slice(&data.bytes[..run.end]);
                    Ok(run)
                }
                Place::Bucket(summary, mark, next) => {
                    match self.read_bucket(&summary, mark, from, most, safe, next, buffer, &mut use_it) {
                        // If it was removed in the meantime, it is no longer in the list.
                        Err(error) if error.kind() == io::ErrorKind::NotFound && from < self.first() => {
                            Err(self.first())
                        }
                        // The file was deleted while in use: report it, and continue with the next bucket.
                        Err(error) if error.kind() == io::ErrorKind::NotFound => {
                            self.lose(&summary);
                            Err(next)
                        }
                        found => found?,
                    }
                }
            };
            match found {
                Ok(run) => return Ok(run),
                Err(later) => from = later,
            }
        }
        let end = from.min(safe);
        Ok(Run { start: 0, end: 0, first: end, next: end })
    }

    /// Reads a run of records in a bucket, or returns the offset of the next bucket.
    #[allow(clippy::too_many_arguments)]
    fn read_bucket(
        &self,
        summary: &Summary,
        mark: Option<Mark>,
        mut from: u64,
        most: usize,
        safe: u64,
        later: u64,
        buffer: &mut Vec<u8>,
        use_it: &mut impl FnMut(&Record<'_>),
    ) -> io::Result<Result<Run, u64>> {
        let Loaded { file, index } = &*self.load(summary)?;
        let known = mark.filter(|mark| mark.offset == from);
        let mark = known.or_else(|| index.as_ref().map_or(mark, |index| last_before(&index.marks, from)));
        let (mut position, mut expected) = mark.map_or((0, summary.base), |mark| (mark.position, mark.offset));
        let mut want = most.max(LEAST) as u64 + if known.is_some() { 0 } else { LEAST as u64 };
        loop {
            let end = (position + want).min(summary.length);
            let size = fill(&**file, position, end, buffer)?;
            let bytes = &buffer[..size];
            let run = Run::find(bytes, expected, from, most, safe, use_it);
            if run.end > run.start || run.next >= safe {
                let end = Mark { offset: run.next, position: position + run.end as u64, stored: 0 };
                self.shared.read_up_to(summary.base, end);
                return Ok(Ok(run));
            }
            let left = &bytes[run.start..];
            let whole = (position + bytes.len() as u64) == end;
            (position, expected) = (position + run.start as u64, run.next);
            if position == summary.length {
                return Ok(Err(later));
            }
            let size = wanted(left).map_or(if left.len() < HEAD { HEAD } else { 0 }, |size| size);
            if whole && size > left.len() && position + size as u64 <= summary.length {
                want = size.max(LEAST) as u64;
                continue;
            }
            let all = rest(&**file, position, summary.length)?;
            let jump = Record::sound(&all).map(|record| (0, record.offset()));
            let jump = jump.filter(|(_, offset)| (expected + 1..summary.end).contains(offset));
            let found = jump.or_else(|| behind(&all, 0, expected, summary.end));
            let to = Some(found.map_or(later, |(_, offset)| offset));
            self.shared.tell(Damage {
                file: log_name(summary.base),
                position,
                from: expected,
                to,
                what: "a bad record",
            });
            let Some((skip, offset)) = found else { return Ok(Err(later)) };
            (position, expected, from) = (position + skip as u64, offset, from.max(offset));
        }
    }

    /// Loads the file and the index of a bucket. A bad index is rebuilt in memory.
    fn load(&self, summary: &Summary) -> io::Result<Arc<Loaded>> {
        if let Some(loaded) = self.shared.loaded(summary.base) {
            return Ok(loaded);
        }
        let files = &*self.shared.files;
        let gone = |error: &io::Error| {
            if error.kind() == io::ErrorKind::NotFound && summary.base >= self.first() {
                self.lose(summary);
            }
        };
        let file = files.open(&log_name(summary.base)).inspect_err(gone)?;
        let sealed = self
            .shared
            .state()
            .buckets
            .iter()
            .any(|bucket| bucket.summary.base == summary.base && bucket.sealed && bucket.marks.is_empty());
        let index = if sealed {
            let known = index(files, summary.base)?.filter(|index| index.summary.length == summary.length);
            match known {
                Some(index) => Some(index),
                None => Some(self.index_anew(summary)?),
            }
        } else {
            None
        };
        let loaded = Arc::new(Loaded { file, index });
        self.shared.keep(summary.base, &loaded);
        Ok(loaded)
    }

    /// Removes a bucket whose file is gone.
    fn lose(&self, summary: &Summary) {
        // The process that writes a log may remove old buckets while it is viewed, which is no damage.
        let begin = begins_with(&*self.shared.files);
        if summary.base < begin {
            self.shared.state().buckets.retain(|bucket| bucket.summary.base >= begin || !bucket.sealed);
            return;
        }
        let (file, from, to) = (log_name(summary.base), summary.base, Some(summary.end));
        self.shared.tell(Damage { file, position: 0, from, to, what: "a bucket is missing" });
        self.shared.state().buckets.retain(|bucket| bucket.summary.base != summary.base || !bucket.sealed);
    }

    fn index_anew(&self, summary: &Summary) -> io::Result<Index> {
        let file = self.shared.files.open(&log_name(summary.base))?;
        let bytes = rest(&*file, 0, summary.length)?;
        let (building, topics, once) = (Building::new(summary.base), Topics::default(), Once::default());
        let mut scan = Scan { building, topics, once, limit: Some(summary.end) };
        let mut damage = Vec::new();
        scan.run(&bytes, &mut damage);
        let file = index_name(summary.base);
        damage.push(Damage {
            file,
            position: 0,
            from: summary.base,
            to: Some(summary.base),
            what: "an index is unreadable",
        });
        for damage in damage {
            self.shared.tell(damage);
        }
        scan.index()
    }

    /// The sequence of a record, safe or not.
    pub fn sequence_at(&self, offset: u64) -> io::Result<Option<u64>> {
        let mut found = None;
        let is = |record: &Record<'_>| record.offset() == offset;
        self.run(offset, 1, u64::MAX, &mut Vec::new(), |record| found = is(record).then(|| record.sequence()))?;
        Ok(found)
    }

    /// The first record from an offset on for which `is` returns true; None: there is none yet.
    fn walk(&self, mut from: u64, to: u64, is: impl Fn(&Record<'_>) -> bool) -> io::Result<Option<u64>> {
        while from < to {
            let block = self.read(from, 1 << 20)?;
            let found = records(&block.bytes).find(&is);
            if found.is_some() || block.bytes.is_empty() {
                return Ok(found.map(|record| record.offset()));
            }
            from = block.next;
        }
        Ok(None)
    }

    fn summaries(&self) -> Vec<Summary> {
        self.shared.state().buckets.iter().map(|bucket| bucket.summary).collect()
    }

    fn marks(&self, base: u64) -> Vec<Mark> {
        let state = self.shared.state();
        let own = state.buckets.iter().find(|bucket| bucket.summary.base == base);
        own.map(|bucket| bucket.marks.clone()).unwrap_or_default()
    }

    /// Offset of the first record stored at this time or later; the end if there is none.
    pub fn find_time(&self, stored: i64) -> io::Result<u64> {
        // A clock that was ahead for a while has left buckets with later times than the next ones. Within a bucket
        // times grow.
        let earlier = |summary: &Summary| summary.count > 0 && summary.first < stored;
        let from = match self.summaries().iter().rfind(|summary| earlier(summary)) {
            None => self.first(),
            Some(summary) => {
                let loaded = self.load(summary)?;
                let own = self.marks(summary.base);
                let marks = loaded.index.as_ref().map_or(&own, |index| &index.marks);
                let before = marks.partition_point(|mark| mark.stored < stored);
                marks[..before].last().map_or(summary.base, |mark| mark.offset)
            }
        };
        let found = self.walk(from, u64::MAX, |record| record.stored() >= stored)?;
        Ok(found.unwrap_or_else(|| self.safe()))
    }

    /// Offset of the first record of a topic with this sequence or a later one.
    pub fn find(&self, topic: &str, sequence: u64) -> io::Result<Option<u64>> {
        let is = |record: &Record<'_>| record.topic == topic && record.sequence() >= sequence.max(1);
        for summary in self.summaries() {
            let loaded = self.load(&summary)?;
            let Some(index) = &loaded.index else { return self.walk(summary.base, u64::MAX, is) };
            match index.topic(topic) {
                Some([last, _, count, first]) if count > 0 && last >= sequence => {
                    if let Some(found) = self.walk(first, summary.end, is)? {
                        return Ok(Some(found));
                    }
                }
                _ => {}
            }
        }
        let (from, safe) = (self.shared.state().written, self.safe());
        self.walk(from, safe, is)
    }

    /// The first offset that may have a record for a selection, after buckets without its topics. Lost records are not
    /// skipped, since their topics are unknown.
    pub fn skip(&self, from: u64, selection: &Selection) -> io::Result<u64> {
        let mut at = from;
        for summary in self.summaries().into_iter().filter(|summary| summary.end > from) {
            let loaded = self.load(&summary)?;
            let whole = summary.base <= at && summary.count == summary.end - summary.base;
            let Some(index) = loaded.index.as_ref().filter(|_| whole) else { return Ok(at) };
            let covers = |(topic, [_, _, count, _]): (&str, [u64; 4])| count > 0 && selection.covers(topic);
            let there = match selection.literal() {
                Some(topic) => index.topic(topic).is_some_and(|row| row[2] > 0),
                None => index.topics().any(covers),
            };
            if there {
                return Ok(at);
            }
            at = summary.end;
        }
        Ok(at)
    }

    /// Stored topics: first and last sequence, number of records. Those of the current bucket come from `open`, with
    /// its base.
    pub fn topics(&self, open: &[Topic], base: u64) -> io::Result<Vec<(String, u64, u64, u64)>> {
        let mut all = std::collections::BTreeMap::<String, (u64, u64, u64)>::new();
        let mut add = |text: &str, last: u64, first: u64, count: u64| {
            if count > 0 {
                let known = all.entry(text.into()).or_insert((first, last, 0));
                (known.1, known.2) = (last, known.2 + count);
            }
        };
        // Waiting records are in no bucket yet.
        let (written, waiting): (Vec<_>, Vec<_>) = {
            let state = self.shared.state();
            let pending = state.pending.iter().filter_map(|piece| match piece {
                Piece::Data(data) => Some(data),
                Piece::Seal(_) => None,
            });
            let waiting = state.writing.iter().chain(pending).filter(|data| data.base != base);
            let written = state.buckets.iter().map(|bucket| bucket.summary).filter(|summary| summary.base != base);
            (written.collect(), waiting.map(|data| data.bytes.clone()).collect())
        };
        for summary in written {
            if let Some(index) = &self.load(&summary)?.index {
                index.topics().for_each(|(text, [last, first, count, _])| add(text, last, first, count));
            } else {
                let one = |record: &Record<'_>| u64::from(!record.is_parked());
                self.each(&summary, |record| add(record.topic, record.sequence(), record.sequence(), one(record)))?;
            }
        }
        for bytes in waiting {
            let there = records(&bytes).filter(|record| !record.is_parked());
            there.for_each(|record| add(record.topic, record.sequence(), record.sequence(), 1));
        }
        for topic in open {
            add(&topic.text, topic.last, topic.first, topic.count);
        }
        Ok(all.into_iter().map(|(text, (first, last, count))| (text, first, last, count)).collect())
    }

    /// Calls `use_it` with every record of a bucket.
    fn each(&self, summary: &Summary, mut use_it: impl FnMut(&Record<'_>)) -> io::Result<()> {
        let mut from = summary.base;
        while from < summary.end {
            let block = self.read(from, 1 << 20)?;
            records(&block.bytes).filter(|record| record.offset() < summary.end).for_each(|record| use_it(&record));
            from = if block.bytes.is_empty() { summary.end } else { block.next };
        }
        Ok(())
    }

    /// Reads all records to find all damage.
    pub fn check(&self) -> io::Result<Vec<Damage>> {
        for summary in self.summaries() {
            self.load(&summary)?;
        }
        self.walk(0, u64::MAX, |_| false)?;
        let (wholes, orphans) = {
            let state = self.shared.state();
            (state.wholes.clone(), state.orphans.clone())
        };
        let files = &*self.shared.files;
        let tell = |file, at, what| self.shared.tell(Damage { file, position: 0, from: at, to: Some(at), what });
        for (end, _) in wholes.into_iter().filter(|known| known.1 > 0) {
            if checkpoint::read(files, end)?.is_none() {
                tell(whole_name(end), end, UNREADABLE);
            }
        }
        for (base, _) in orphans.into_iter().filter(|known| known.1 > 0) {
            if index(files, base)?.is_none() {
                tell(index_name(base), base, "an index is unreadable");
            }
        }
        Ok(self.damage())
    }
}

fn last_before(marks: &[Mark], offset: u64) -> Option<Mark> {
    marks[..marks.partition_point(|mark| mark.offset <= offset)].last().copied()
}

/// The requested records in bytes that begin with a record.
#[derive(Debug)]
struct Run {
    start: usize,
    end: usize,
    first: u64,
    next: u64,
}

impl Run {
    /// `expected` is the offset of the first record in the bytes. Stops at one that is corrupt or out of order.
    fn find(
        bytes: &[u8],
        expected: u64,
        from: u64,
        most: usize,
        safe: u64,
        use_it: &mut impl FnMut(&Record<'_>),
    ) -> Self {
        let (mut start, mut next) = (0, expected);
        // Before the first requested record only lengths and offsets matter.
        while next < from {
            match size(&bytes[start..]) {
                Some(size) if offset(&bytes[start..]) == next => (start, next) = (start + size, next + 1),
                _ => return Self { start, end: start, first: next, next },
            }
        }
        let (mut end, first) = (start, next);
        while next < safe {
            match Record::sound(&bytes[end..]) {
                Some(record)
                    if record.offset() == next && (end == start || end + record.bytes.len() - start <= most) =>
                {
                    use_it(&record);
                    (end, next) = (end + record.bytes.len(), next + 1);
                }
                _ => break,
            }
        }
        Self { start, end, first, next }
    }

    fn block(&self, mut bytes: Vec<u8>) -> Block {
        bytes.truncate(self.end);
        bytes.drain(..self.start);
        Block { bytes, first: self.first, next: self.next }
    }
}
