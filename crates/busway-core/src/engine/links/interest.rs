//! Interest: the subscriptions and services of this node's clients, merged for other nodes; each different one once,
//! with an id.
//!
//! Equal subscriptions share an entry. Many different rules on one pattern become one entry without rules, and this
//! node filters the messages when they arrive.

use rustc_hash::{FxHashMap, FxHashSet};
use std::sync::Arc;

use crate::matching::regex::PREFIX;
use crate::wire::frame::op;

/// The number of different rules on a pattern above which they are merged into one entry without rules.
const MANY: usize = 16;
/// The number down to which they stay merged.
const FEW: usize = 8;
/// The size of a frame's entries in bytes above which the next ones go into another frame.
const PORTION: usize = 60 << 10;
/// Regular expressions per frame: compiling one takes time, and between frames other connections are processed.
const EXPRESSIONS: usize = 8;

/// A subscription or a service that is wanted.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Want {
    pub service: bool,
    /// Pattern, or the topic of a service.
    pub text: Box<str>,
    pub group: Box<str>,
    pub rules: Box<[u8]>,
    pub policy: u8,
    /// LISTEN and SINCE, or SHARED and ASKS.
    pub flags: u8,
}

#[derive(Debug)]
struct Entry {
    want: Arc<Want>,
    /// The engine's number of the group, or of the topic of a service.
    number: u32,
    uses: u32,
    /// Other nodes know it.
    announced: bool,
    /// It is merged into an entry without rules.
    folded: bool,
    /// Is in `changed`.
    listed: bool,
}

impl Entry {
    fn shown(&self) -> bool {
        self.uses > 0 && !self.folded
    }
}

/// Different rules on one pattern.
#[derive(Debug, Default)]
struct Fold {
    members: FxHashSet<u32>,
    /// The entry without rules that represents them.
    cover: Option<u32>,
}

#[derive(Debug, Default)]
pub struct Interest {
    ids: FxHashMap<Arc<Want>, u32>,
    entries: FxHashMap<u32, Entry>,
    folds: FxHashMap<Want, Fold>,
    /// Entries of subscriptions, by their keys in the index.
    of: FxHashMap<u32, u32>,
    changed: Vec<u32>,
    last: u32,
}

impl Interest {
    /// The number of entries that other nodes know or will know.
    pub fn len(&self) -> usize {
        self.entries.values().filter(|entry| entry.shown()).count()
    }

    pub fn has_changed(&self) -> bool {
        !self.changed.is_empty()
    }

    /// Adds a subscription or service, and returns the id of its entry. `number` is the engine's for group or topic.
    pub fn add(&mut self, want: Want, number: u32) -> u32 {
        let known = self.ids.get(&want).copied();
        let foldable = !want.rules.is_empty() && want.group.is_empty();
        let id = known.unwrap_or_else(|| {
            self.last = self.last.wrapping_add(1);
            let want = Arc::new(want.clone());
            self.ids.insert(want.clone(), self.last);
            let entry = Entry { want, number, uses: 0, announced: false, folded: false, listed: false };
            self.entries.insert(self.last, entry);
            self.last
        });
        if let Some(entry) = self.entries.get_mut(&id) {
            entry.uses += 1;
            if entry.uses > 1 {
                return id;
            }
        }
        self.list(id);
        if foldable {
            let bare = Want { rules: Box::default(), ..want };
            let fold = self.folds.entry(bare.clone()).or_default();
            fold.members.insert(id);
            if fold.cover.is_some() {
                self.set_folded(id, true);
            } else if fold.members.len() > MANY {
                self.cover(&bare, number);
            }
        }
        id
    }

    /// Removes a subscription or service.
    pub fn remove(&mut self, id: u32) {
        let Some(entry) = self.entries.get_mut(&id) else { return };
        entry.uses -= 1;
        if entry.uses > 0 {
            return;
        }
        let want = entry.want.clone();
        self.ids.remove(&want);
        self.list(id);
        if want.rules.is_empty() || !want.group.is_empty() {
            return;
        }
        let bare = Want { rules: Box::default(), ..(*want).clone() };
        let Some(fold) = self.folds.get_mut(&bare) else { return };
        fold.members.remove(&id);
        let (left, cover) = (fold.members.len(), fold.cover);
        if left <= FEW && cover.is_some() {
            let members: Vec<_> = fold.members.iter().copied().collect();
            fold.cover = None;
            for id in members {
                self.set_folded(id, false);
            }
            self.remove(cover.unwrap_or_default());
        }
        if left == 0 {
            self.folds.remove(&bare);
        }
    }

    fn cover(&mut self, bare: &Want, number: u32) {
        let cover = self.add(bare.clone(), number);
        let Some(fold) = self.folds.get_mut(bare) else { return };
        fold.cover = Some(cover);
        let members: Vec<_> = fold.members.iter().copied().collect();
        for id in members {
            self.set_folded(id, true);
        }
    }

    fn set_folded(&mut self, id: u32, yes: bool) {
        if let Some(entry) = self.entries.get_mut(&id) {
            entry.folded = yes;
        }
        self.list(id);
    }

    fn list(&mut self, id: u32) {
        if let Some(entry) = self.entries.get_mut(&id) {
            if !std::mem::replace(&mut entry.listed, true) {
                self.changed.push(id);
            }
        }
    }

    /// Adds a subscription, by its key in the index.
    pub fn subscribe(&mut self, key: u32, want: Want, group: u32) {
        let id = self.add(want, group);
        self.of.insert(key, id);
    }

    pub fn unsubscribe(&mut self, key: u32) {
        if let Some(id) = self.of.remove(&key) {
            self.remove(id);
        }
    }

    /// The number of the group of an entry, if it exists and is still wanted.
    pub fn group(&self, id: u32) -> Option<u32> {
        self.entries.get(&id).filter(|entry| !entry.want.service && entry.uses > 0).map(|entry| entry.number)
    }

    /// The topic of a service, if the entry exists and is still served.
    pub fn topic(&self, id: u32) -> Option<u32> {
        self.entries.get(&id).filter(|entry| entry.want.service && entry.uses > 0).map(|entry| entry.number)
    }

    pub fn want(&self, id: u32) -> Option<&Want> {
        self.entries.get(&id).map(|entry| &*entry.want)
    }

    /// The entry by which other nodes know a subscription.
    pub fn of(&self, key: u32) -> Option<u32> {
        let id = *self.of.get(&key)?;
        let entry = self.entries.get(&id)?;
        if !entry.folded {
            return Some(id);
        }
        let bare = Want { rules: Box::default(), ..(*entry.want).clone() };
        self.folds.get(&bare)?.cover
    }

    /// The changes since the last call, as the entries of frames with their count.
    pub fn changes(&mut self) -> Vec<(u16, Vec<u8>)> {
        let mut frames = Frames::default();
        let changed = std::mem::take(&mut self.changed);
        // New entries come first, so that no message is missed when one entry replaces others.
        for &id in &changed {
            let Some(entry) = self.entries.get_mut(&id) else { continue };
            if entry.shown() && !std::mem::replace(&mut entry.announced, true) {
                frames.add(id, &entry.want);
            }
        }
        for id in changed {
            let Some(entry) = self.entries.get_mut(&id) else { continue };
            entry.listed = false;
            if !entry.shown() && std::mem::replace(&mut entry.announced, false) {
                frames.remove(id, entry.want.service);
            }
            if entry.uses == 0 {
                self.entries.remove(&id);
            }
        }
        frames.done
    }

    /// All entries that other nodes know.
    pub fn all(&self) -> Vec<(u16, Vec<u8>)> {
        let mut frames = Frames::default();
        let mut announced: Vec<_> = self.entries.iter().filter(|(_, entry)| entry.announced).collect();
        announced.sort_unstable_by_key(|(id, _)| **id);
        for (&id, entry) in announced {
            frames.add(id, &entry.want);
        }
        frames.done
    }
}

/// Entries that are being written into frames.
#[derive(Debug, Default)]
struct Frames {
    done: Vec<(u16, Vec<u8>)>,
    /// The number of expressions in the last frame.
    expressions: usize,
}

impl Frames {
    fn last(&mut self) -> &mut Vec<u8> {
        let full = |(count, bytes): &(u16, Vec<u8>)| bytes.len() >= PORTION || *count == u16::MAX;
        if self.expressions >= EXPRESSIONS || self.done.last().is_none_or(full) {
            self.done.push((0, Vec::new()));
            self.expressions = 0;
        }
        let at = self.done.len() - 1;
        self.done[at].0 += 1;
        &mut self.done[at].1
    }

    fn add(&mut self, id: u32, want: &Want) {
        let expression = !want.service && want.text.starts_with(PREFIX);
        let out = self.last();
        out.extend_from_slice(&[if want.service { op::SERVE } else { op::SUBSCRIBE }, want.flags, want.policy, 0]);
        out.extend_from_slice(&id.to_le_bytes());
        for text in [&want.text, &want.group] {
            out.extend_from_slice(&(text.len() as u16).to_le_bytes());
            out.extend_from_slice(text.as_bytes());
        }
        out.extend_from_slice(&(want.rules.len() as u32).to_le_bytes());
        out.extend_from_slice(&want.rules);
        self.expressions += usize::from(expression);
    }

    fn remove(&mut self, id: u32, service: bool) {
        let out = self.last();
        out.extend_from_slice(&[if service { op::UNSERVE } else { op::UNSUBSCRIBE }, 0, 0, 0]);
        out.extend_from_slice(&id.to_le_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn want(text: &str, group: &str, rules: &[u8]) -> Want {
        Want { service: false, text: text.into(), group: group.into(), rules: rules.into(), policy: 0, flags: 0 }
    }

    /// The number of added and removed entries.
    fn announced(interest: &mut Interest) -> (usize, usize) {
        let (mut added, mut removed) = (0, 0);
        for (count, bytes) in interest.changes() {
            let mut at = 0;
            for _ in 0..count {
                let short = |at: usize| usize::from(u16::from_le_bytes([bytes[at], bytes[at + 1]]));
                if bytes[at] == op::UNSUBSCRIBE {
                    removed += 1;
                    at += 8;
                    continue;
                }
                added += 1;
                at += 8;
                at += 2 + short(at);
                at += 2 + short(at);
                at += 4 + short(at);
            }
            assert_eq!(at, bytes.len());
        }
        (added, removed)
    }

    #[test]
    fn the_same_is_told_once() {
        let mut interest = Interest::default();
        interest.subscribe(1, want("a", "", b""), u32::MAX);
        interest.subscribe(2, want("a", "", b""), u32::MAX);
        interest.subscribe(3, want("a", "g", b""), 0);
        assert_eq!(announced(&mut interest), (2, 0));
        interest.unsubscribe(1);
        assert!(!interest.has_changed());
        interest.unsubscribe(2);
        assert_eq!(announced(&mut interest), (0, 1));
        // An entry that is added and removed between two calls is no change.
        interest.subscribe(4, want("b", "", b""), u32::MAX);
        interest.unsubscribe(4);
        assert_eq!(announced(&mut interest), (0, 0));
        interest.unsubscribe(3);
        assert_eq!((announced(&mut interest), interest.len(), interest.entries.len()), ((0, 1), 0, 0));
    }

    #[test]
    fn many_rules_are_told_as_none() {
        let mut interest = Interest::default();
        for key in 0..16_u8 {
            interest.subscribe(u32::from(key), want("a", "", &[key + 1]), u32::MAX);
            interest.subscribe(u32::from(key) + 100, want("a", "g", &[key + 1]), 3);
        }
        assert_eq!(announced(&mut interest), (32, 0));
        interest.subscribe(16, want("a", "", &[17]), u32::MAX);
        assert_eq!(announced(&mut interest), (1, 16));
        interest.subscribe(17, want("a", "", &[18]), u32::MAX);
        assert_eq!(announced(&mut interest), (0, 0));
        interest.unsubscribe(17);
        assert_eq!(announced(&mut interest), (0, 0));
        let cover = interest.of(0);
        assert!(cover.is_some() && (0..17).all(|key| interest.of(key) == cover));
        assert_eq!(cover.and_then(|id| interest.group(id)), Some(u32::MAX));
        for key in 9..17 {
            interest.unsubscribe(key);
        }
        assert!(!interest.has_changed() || announced(&mut interest) == (0, 0));
        interest.unsubscribe(8);
        assert_eq!(announced(&mut interest), (8, 1));
        for key in (0..8).chain(100..116) {
            interest.unsubscribe(key);
        }
        assert_eq!(announced(&mut interest), (0, 24));
        assert!(interest.entries.is_empty() && interest.folds.is_empty() && interest.ids.is_empty());
    }
}
