//! A block with an index, for channels that deliver its records a few at a time.

use super::columns::Asking;
use super::record::{records, Record};
use crate::matching::selection::Selection;

/// Consecutive records, with the positions where they begin.
#[derive(Debug)]
pub struct Block {
    bytes: Box<[u8]>,
    /// Offset and position of each record, sorted.
    index: Vec<(u64, u32)>,
}

impl Block {
    /// Indexes the bytes of a read, which are fewer than 4 GiB.
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

    /// The spans (first offset, count) of matching records from an offset on. Delayed records, records that expired by
    /// `now`, and records with the topic `but` are left out.
    pub fn find<'a>(&'a self, from: u64, selection: &'a Selection, but: &str, now: i64) -> Vec<(u64, u64)> {
        let mut found = Vec::<(u64, u64)>::new();
        let begin = self.index.partition_point(|&(offset, _)| offset < from);
        let place = self.index.get(begin).map_or(self.bytes.len(), |&(_, place)| place as usize);
        let mut asking = Asking::new(selection);
        for record in records(&self.bytes[place..]) {
            let offset = record.offset();
            if record.is_hidden(now) || record.topic == but || !asking.asked(&record) {
                continue;
            }
            match found.last_mut() {
                Some((first, count)) if *first + *count == offset => *count += 1,
                _ => found.push((offset, 1)),
            }
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::record::Message;

    fn block(all: &[(u64, &str, i64, u64)]) -> Block {
        let mut bytes = Vec::new();
        for &(offset, topic, expires, sequence) in all {
            Message { topic, expires, payload: b"x", ..Message::default() }.encode(offset, sequence, 1, &mut bytes);
        }
        Block::new(&bytes)
    }

    #[test]
    fn finds_runs_and_leaves_out_what_waits_or_has_expired() {
        let block = block(&[
            (3, "a", 0, 1),
            (4, "a", 0, 2),
            (5, "b", 0, 1),
            (7, "a", 0, 3),
            (8, "a", 0, 0),
            (9, "a", 40, 4),
            (10, "a", 60, 5),
        ]);
        let selection = Selection::new("a", b"").unwrap();
        let found = block.find(4, &selection, "dead", 50);
        assert_eq!(found, [(4, 1), (7, 1), (10, 1)]);
        let all = Selection::new("**", b"").unwrap();
        assert_eq!(block.find(0, &all, "b", 0), [(3, 2), (7, 1), (9, 2)]);
        assert_eq!(block.get(7).unwrap().offset(), 7);
        assert!(block.get(6).is_none() && block.get(11).is_none());
    }
}
