//! Slots of topics and senders: small integers that replace long names on a connection.
//!
//! The table is bounded; a new key takes the slot that was filled longest ago.

use rustc_hash::FxHashMap;
use std::hash::Hash;

#[derive(Debug)]
pub struct Numbers<K> {
    keys: Vec<Option<K>>,
    slots: FxHashMap<K, u32>,
    next: usize,
    most: usize,
}

/// The slot of a key.
#[derive(Debug, PartialEq, Eq)]
pub enum Slot<K> {
    /// The slot was known.
    Known(u32),
    /// The slot was filled now, so the peer must be told; with the key that it replaced.
    Filled(u32, Option<K>),
}

impl<K: Eq + Hash + Clone> Numbers<K> {
    pub fn new(most: usize) -> Self {
        Self { keys: Vec::new(), slots: FxHashMap::default(), next: 0, most: most.max(1) }
    }

    /// True if `slot` still has `key`: validates a cached slot.
    #[inline]
    pub fn is(&self, slot: u32, key: &K) -> bool {
        matches!(self.keys.get(slot as usize), Some(Some(known)) if known == key)
    }

    pub fn get<Q: ?Sized + Eq + Hash>(&self, key: &Q) -> Option<u32>
    where
        K: std::borrow::Borrow<Q>,
    {
        self.slots.get(key).copied()
    }

    pub fn slot(&mut self, key: &K) -> Slot<K> {
        if let Some(&slot) = self.slots.get(key) {
            return Slot::Known(slot);
        }
        let slot = self.next;
        self.next = (slot + 1) % self.most;
        if slot == self.keys.len() {
            self.keys.push(None);
        }
        let gone = self.keys[slot].replace(key.clone());
        if let Some(gone) = &gone {
            self.slots.remove(gone);
        }
        self.slots.insert(key.clone(), slot as u32);
        Slot::Filled(slot as u32, gone)
    }

    pub fn keys(&self) -> impl Iterator<Item = &K> {
        self.keys.iter().flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_goes() {
        let mut numbers = Numbers::new(2);
        assert_eq!(numbers.slot(&7), Slot::Filled(0, None));
        assert_eq!(numbers.slot(&8), Slot::Filled(1, None));
        assert_eq!(numbers.slot(&7), Slot::Known(0));
        assert_eq!(numbers.slot(&9), Slot::Filled(0, Some(7)));
        assert!(numbers.is(0, &9) && !numbers.is(0, &7) && numbers.get(&7).is_none());
        assert_eq!(numbers.keys().count(), 2);
    }
}
