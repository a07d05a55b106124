//! A block that is looked at more than once: a channel hands its records out a few at a time.

use super::columns::Asking;
use super::record::{records, Record};
use crate::selection::Selection;

/// Records one after the other, with the places where they begin.
#[derive(Debug)]
pub struct Block {
    bytes: Box<[u8]>,
    /// Offset and place of each record, sorted.
    index: Vec<(u64, u32)>,
}

/// What a channel chooses of a block.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// First offset and how many.
    pub spans: Vec<(u64, u64)>,
    /// The same of those that are not due yet, and when they will be.
    pub due: Vec<(u64, u64, i64)>,
}

impl Block {
    /// From what a log read, which has fewer than 4 GiB.
    pub fn new(bytes: &[u8]) -> Self {
        let begin = bytes.as_ptr().addr();
        let place = |record: &Record<'_>| (record.bytes.as_ptr().addr() - begin) as u32;
        let index = records(bytes).map(|record| (record.offset(), place(&record))).collect();
        Self { bytes: bytes.into(), index }
    }

    pub fn len(&self) -> usize {
        self.index.len()
    }

    pub fn is_empty(&self) -> bool {
        self.index.is_empty()
    }

    /// The record with this offset.
    pub fn get(&self, offset: u64) -> Option<Record<'_>> {
        let at = self.index.binary_search_by_key(&offset, |&(offset, _)| offset).ok()?;
        Record::read(&self.bytes[self.index[at].1 as usize..])
    }

    /// What of the records from an offset on is asked for, has not expired by `now`, and has another topic than `but`.
    pub fn find<'a>(&'a self, from: u64, selection: &'a Selection, but: &str, now: i64) -> Found {
        let mut found = Found::default();
        let begin = self.index.partition_point(|&(offset, _)| offset < from);
        let place = self.index.get(begin).map_or(self.bytes.len(), |&(_, place)| place as usize);
        let mut asking = Asking::new(selection);
        for record in records(&self.bytes[place..]) {
            let (offset, expires, due) = (record.offset(), record.expires(), record.due());
            if (expires != 0 && expires <= now) || record.topic == but || !asking.asked(&record) {
                continue;
            }
            if due > now {
                found.due.push((offset, 1, due));
                continue;
            }
            match found.spans.last_mut() {
                Some((first, count)) if *first + *count == offset => *count += 1,
                _ => found.spans.push((offset, 1)),
            }
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::super::record::Message;
    use super::*;

    fn block(all: &[(u64, &str, i64, i64)]) -> Block {
        let mut bytes = Vec::new();
        for &(offset, topic, expires, due) in all {
            Message { topic, expires, due, payload: b"x", ..Message::default() }.encode(offset, 1, 1, &mut bytes);
        }
        Block::new(&bytes)
    }

    #[test]
    fn finds_runs_and_what_is_due_later() {
        let block = block(&[
            (3, "a", 0, 0),
            (4, "a", 0, 0),
            (5, "b", 0, 0),
            (7, "a", 0, 0),
            (8, "a", 0, 90),
            (9, "a", 40, 0),
            (10, "a", 60, 50),
        ]);
        let selection = Selection::new("a", b"").unwrap();
        let found = block.find(4, &selection, "dead", 50);
        assert_eq!(found, Found { spans: vec![(4, 1), (7, 1), (10, 1)], due: vec![(8, 1, 90)] });
        let all = Selection::new("**", b"").unwrap();
        assert_eq!(block.find(0, &all, "b", 0).spans, vec![(3, 2), (7, 1), (9, 1)]);
        assert_eq!(block.get(7).unwrap().offset(), 7);
        assert!(block.get(6).is_none() && block.get(11).is_none());
    }
}
