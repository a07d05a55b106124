//! Delayed messages, which are delivered at a later time.
//!
//! A delayed message is parked: stored without a sequence, so that it does not count in its topic, and nobody receives
//! it. When it is due, it is appended again with the same session and number, which ends the delay. So the records
//! alone give the delayed messages: an index has the changes of its bucket, a checkpoint all of them.

use std::collections::VecDeque;

use hashbrown::HashMap;

use crate::log::bucket::varint::{Reader, Writer};
use crate::log::record::Record;

/// Session and number of a message.
type Key = (u64, u64);

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Parked {
    pub due: i64,
    pub offset: u64,
    pub session: u64,
    pub number: u64,
}

impl Parked {
    fn key(&self) -> Key {
        (self.session, self.number)
    }
}

/// The changes by the records of a bucket.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Moves {
    parked: Vec<Parked>,
    /// Messages that were appended again: the offset, and their keys.
    released: Vec<(u64, Key)>,
}

impl Moves {
    pub fn park(&mut self, parked: Parked) {
        self.parked.push(parked);
    }

    pub fn release(&mut self, session: u64, number: u64, offset: u64) {
        self.released.push((offset, (session, number)));
    }

    /// Adds a record that was read.
    #[inline]
    pub fn learn(&mut self, record: &Record<'_>) {
        if record.is_parked() {
            let (due, offset, session, number) = (record.due(), record.offset(), record.session(), record.number());
            self.park(Parked { due, offset, session, number });
        } else if record.is_released() {
            self.release(record.session(), record.number(), record.offset());
        }
    }

    /// Removes records from this offset on, which were not stored.
    pub fn retract(&mut self, from: u64) {
        self.parked.retain(|parked| parked.offset < from);
        self.released.retain(|(offset, _)| *offset < from);
    }

    pub fn write(&self, out: &mut Vec<u8>) {
        write(&self.parked, out);
        out.u64(self.released.len() as u64);
        for (offset, (session, number)) in &self.released {
            out.u64(*offset);
            out.u64(*session);
            out.u64(*number);
        }
    }

    pub fn read(bytes: &mut &[u8]) -> Option<Self> {
        let mut moves = Self { parked: read(bytes)?, released: Vec::new() };
        for _ in 0..bytes.count(24)? {
            moves.released.push((bytes.u64()?, (bytes.u64()?, bytes.u64()?)));
        }
        Some(moves)
    }
}

fn write(all: &[Parked], out: &mut Vec<u8>) {
    out.u64(all.len() as u64);
    for Parked { due, offset, session, number } in all {
        out.i64(*due);
        out.u64(*offset);
        out.u64(*session);
        out.u64(*number);
    }
}

fn read(bytes: &mut &[u8]) -> Option<Vec<Parked>> {
    let mut all = Vec::new();
    for _ in 0..bytes.count(32)? {
        all.push(Parked { due: bytes.i64()?, offset: bytes.u64()?, session: bytes.u64()?, number: bytes.u64()? });
    }
    Some(all)
}

#[derive(Debug, Default)]
pub struct Waiting {
    all: HashMap<Key, Parked>,
    /// Messages that were appended again, with the offset, as long as that can be rolled back.
    released: VecDeque<(u64, Parked)>,
    /// The number of messages that were removed before they were due.
    pub dropped: u64,
}

impl Waiting {
    pub fn len(&self) -> usize {
        self.all.len()
    }

    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    pub fn has(&self, session: u64, number: u64) -> bool {
        self.all.contains_key(&(session, number))
    }

    pub fn add(&mut self, parked: Parked) {
        self.all.insert(parked.key(), parked);
    }

    pub fn remove(&mut self, session: u64, number: u64) -> Option<Parked> {
        self.all.remove(&(session, number))
    }

    /// The message was appended again at this offset. Records below `safe` can't be rolled back.
    pub fn release(&mut self, session: u64, number: u64, offset: u64, safe: u64) {
        while self.released.front().is_some_and(|(at, _)| *at < safe) {
            self.released.pop_front();
        }
        if let Some(parked) = self.remove(session, number) {
            self.released.push_back((offset, parked));
        }
    }

    /// Removes records from this offset on, which were not stored. Returns the messages that wait again.
    pub fn retract(&mut self, from: u64) -> Vec<Parked> {
        self.all.retain(|_, parked| parked.offset < from);
        let mut again = Vec::new();
        let kept = self.released.partition_point(|(at, _)| *at < from);
        for (_, parked) in self.released.split_off(kept) {
            if parked.offset < from {
                self.add(parked);
                again.push(parked);
            }
        }
        again
    }

    /// Removes messages below this offset, whose records were removed.
    pub fn trim(&mut self, first: u64) {
        let before = self.all.len();
        self.all.retain(|_, parked| parked.offset >= first);
        self.dropped += (before - self.all.len()) as u64;
    }

    /// Applies the changes of a bucket, or of a part of it.
    pub fn apply(&mut self, moves: &Moves) {
        moves.parked.iter().for_each(|parked| self.add(*parked));
        for (_, (session, number)) in &moves.released {
            self.remove(*session, *number);
        }
    }

    /// The approximate size in a checkpoint.
    pub fn weight(&self) -> u64 {
        32 * self.all.len() as u64
    }

    /// Sorted by due time.
    pub fn sorted(&self) -> Vec<Parked> {
        let mut all: Vec<Parked> = self.all.values().copied().collect();
        all.sort_unstable();
        all
    }

    pub fn write(&self, out: &mut Vec<u8>) {
        write(&self.sorted(), out);
    }

    pub fn read(bytes: &mut &[u8]) -> Option<Self> {
        let mut waiting = Self::default();
        read(bytes)?.into_iter().for_each(|parked| waiting.add(parked));
        Some(waiting)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parked(number: u32, offset: u64) -> Parked {
        Parked { due: 100 - i64::from(number), offset, session: 7, number: number.into() }
    }

    #[test]
    fn what_is_taken_back_waits_again() {
        let mut waiting = Waiting::default();
        (1..=4).for_each(|number| waiting.add(parked(number, number.into())));
        waiting.release(7, 1, 5, 5);
        waiting.release(7, 2, 6, 6);
        waiting.release(7, 3, 8, 6);
        assert_eq!(waiting.sorted(), [parked(4, 4)]);
        waiting.add(parked(5, 7));
        assert_eq!(waiting.retract(6), [parked(2, 2), parked(3, 3)]);
        assert_eq!(waiting.sorted(), [parked(4, 4), parked(3, 3), parked(2, 2)]);
        waiting.trim(4);
        assert_eq!((waiting.sorted(), waiting.dropped), (vec![parked(4, 4)], 2));
        let mut bytes = Vec::new();
        waiting.write(&mut bytes);
        assert_eq!(Waiting::read(&mut &bytes[..]).unwrap().sorted(), waiting.sorted());
    }
}
