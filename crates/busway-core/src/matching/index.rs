//! The index of subscriptions by topic: a trie of patterns, and the regular expressions. The engine calls it.
//!
//! It is compact: a node has 56 bytes, and one table for the whole trie holds the children, so that a hundred thousand
//! subscriptions take tens of megabytes.

use hashbrown::HashTable;
use rustc_hash::{FxHashMap, FxHashSet, FxHasher};
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use crate::matching::grants::{verb, Grants};
use crate::matching::regex::PREFIX;
use crate::matching::regex_index::Expressions;
use crate::matching::rules::Rules;
use crate::matching::topic::{check, segments, Segment};
use crate::wire::frame::{scope, Checked};

const NONE: u32 = u32::MAX;
const ROOT: u32 = 0;
/// Positions of the trie that a topic may visit: some 50 ms.
const VISITS: usize = 1_000_000;
/// The cost of a visit in steps of an expression.
const VISIT: usize = 4;

/// A subscription in the index.
#[derive(Debug, Clone, Copy)]
pub struct Subscription {
    pub conn: u32,
    /// The id that its client chose.
    pub id: u32,
    /// The number of the group's name, `u32::MAX` without a group.
    pub group: u32,
    pub policy: u8,
    pub echo: bool,
    /// It gets copies of pushes and requests, but is never asked to accept them.
    pub listen: bool,
    /// It is notified when a retained message is withdrawn.
    pub watch: bool,
    /// It represents the interest of another node's clients.
    pub link: bool,
    /// The scope of the messages that it wants.
    pub scope: u8,
    /// Its node in the trie, or its index among the expressions.
    home: u32,
    pub expression: bool,
    next: u32,
    prev: u32,
}

impl Subscription {
    pub const ALONE: u32 = NONE;

    pub fn new(conn: u32, id: u32, group: u32, policy: u8, echo: bool, listen: bool) -> Self {
        let (home, next, prev) = (NONE, NONE, NONE);
        Self {
            conn,
            id,
            group,
            policy,
            echo,
            listen,
            watch: false,
            link: false,
            scope: scope::GLOBAL,
            home,
            expression: false,
            next,
            prev,
        }
    }
}

#[derive(Debug)]
struct Node {
    word: Box<str>,
    parent: u32,
    /// The list of children besides the table, for publishes with wildcards.
    first: u32,
    next: u32,
    prev: u32,
    one: u32,
    many: u32,
    /// The first of the subscriptions whose pattern ends here.
    subs: u32,
    is_many: bool,
    is_one: bool,
}

impl Node {
    fn new(word: &str, parent: u32) -> Self {
        let (first, next, prev, one, many, subs) = (NONE, NONE, NONE, NONE, NONE, NONE);
        Self { word: word.into(), parent, first, next, prev, one, many, subs, is_many: false, is_one: false }
    }

    fn is_bare(&self) -> bool {
        self.first == NONE && self.one == NONE && self.many == NONE && self.subs == NONE
    }
}

#[derive(Debug)]
pub struct Index {
    nodes: Vec<Node>,
    free_nodes: Vec<u32>,
    table: HashTable<u32>,
    subs: Vec<Subscription>,
    free_subs: Vec<u32>,
    pub expressions: Expressions,
    live: usize,
    /// The rules of subscriptions that have any.
    rules: FxHashMap<u32, Box<Rules>>,
    /// The grants of subscriptions that get only the topics that these allow.
    guards: FxHashMap<u32, Arc<Grants>>,
    /// The number of listeners.
    pub listeners: usize,
    /// The number of subscriptions that watch retained messages.
    pub watchers: usize,
    /// The number of subscriptions with a scope.
    pub scoped: usize,
    stack: Vec<(u32, u32)>,
    seen: FxHashSet<(u32, u32)>,
}

impl Default for Index {
    fn default() -> Self {
        Self {
            nodes: vec![Node::new("", NONE)],
            free_nodes: Vec::new(),
            table: HashTable::new(),
            subs: Vec::new(),
            free_subs: Vec::new(),
            expressions: Expressions::default(),
            live: 0,
            rules: FxHashMap::default(),
            guards: FxHashMap::default(),
            listeners: 0,
            watchers: 0,
            scoped: 0,
            stack: Vec::new(),
            seen: FxHashSet::default(),
        }
    }
}

fn hash(parent: u32, word: &str) -> u64 {
    let mut hasher = FxHasher::default();
    parent.hash(&mut hasher);
    word.hash(&mut hasher);
    hasher.finish()
}

impl Index {
    pub fn len(&self) -> usize {
        self.live
    }

    pub fn is_empty(&self) -> bool {
        self.live == 0
    }

    pub fn get(&self, key: u32) -> &Subscription {
        &self.subs[key as usize]
    }

    /// The rules of a subscription.
    #[inline]
    pub fn rules(&self, key: u32) -> Option<&Rules> {
        self.rules.get(&key).map(|rules| &**rules)
    }

    /// Limits a subscription to the topics that its user may subscribe to; None: no limit.
    pub fn guard(&mut self, key: u32, grants: Option<Arc<Grants>>) {
        match grants {
            Some(grants) => self.guards.insert(key, grants),
            None => self.guards.remove(&key),
        };
    }

    /// Sets other grants, if the subscription has a guard.
    pub fn reguard(&mut self, key: u32, grants: Option<&Arc<Grants>>) {
        if self.guards.remove(&key).is_some() {
            self.guard(key, grants.cloned());
        }
    }

    /// Removes subscriptions that must not get messages of a topic.
    pub fn withhold(&self, topic: &str, keys: &mut Vec<u32>) {
        if !self.guards.is_empty() {
            keys.retain(|key| self.guards.get(key).is_none_or(|grants| grants.may(verb::SUBSCRIBE, topic)));
        }
    }

    /// Adds a subscription, and returns the key to remove it.
    pub fn insert(&mut self, pattern: &str, mut sub: Subscription, rules: Option<Box<Rules>>) -> Checked<u32> {
        if let Some(expression) = pattern.strip_prefix(PREFIX) {
            sub.expression = true;
            sub.home = self.expressions.place(expression, NONE)?;
        } else {
            sub.home = ROOT;
            for segment in segments(check(pattern)?) {
                sub.home = self.child_or_new(sub.home, segment);
            }
        }
        let key = self.keep(sub);
        self.listeners += usize::from(sub.listen);
        self.watchers += usize::from(sub.watch);
        self.scoped += usize::from(sub.scope != scope::GLOBAL);
        self.rules.extend(rules.map(|rules| (key, rules)));
        let next = std::mem::replace(self.first(&sub), key);
        self.subs[key as usize].next = next;
        if next != NONE {
            self.subs[next as usize].prev = key;
        }
        Ok(key)
    }

    /// The keys of all subscriptions with exactly this pattern.
    pub fn at(&mut self, pattern: &str) -> Vec<u32> {
        let mut out = Vec::new();
        let first = if let Some(expression) = pattern.strip_prefix(PREFIX) {
            self.expressions.find(expression).and_then(|home| self.expressions.subs(home).copied())
        } else {
            let mut parts = segments(pattern.strip_prefix('/').unwrap_or(pattern));
            let below = |home: u32, segment| self.child(home, segment);
            parts.try_fold(ROOT, below).map(|home| self.nodes[home as usize].subs)
        };
        collect(&self.subs, first.unwrap_or(NONE), &mut out);
        out
    }

    /// The head of the list that contains a subscription.
    fn first(&mut self, sub: &Subscription) -> &mut u32 {
        match self.expressions.subs(sub.home) {
            Some(subs) if sub.expression => subs,
            _ => &mut self.nodes[sub.home as usize].subs,
        }
    }

    fn keep(&mut self, sub: Subscription) -> u32 {
        self.live += 1;
        if let Some(key) = self.free_subs.pop() {
            self.subs[key as usize] = sub;
            return key;
        }
        self.subs.push(sub);
        self.subs.len() as u32 - 1
    }

    pub fn remove(&mut self, key: u32) {
        let sub = self.subs[key as usize];
        self.live -= 1;
        self.listeners -= usize::from(sub.listen);
        self.watchers -= usize::from(sub.watch);
        self.scoped -= usize::from(sub.scope != scope::GLOBAL);
        self.rules.remove(&key);
        self.guards.remove(&key);
        self.free_subs.push(key);
        if sub.next != NONE {
            self.subs[sub.next as usize].prev = sub.prev;
        }
        if sub.prev != NONE {
            self.subs[sub.prev as usize].next = sub.next;
            return;
        }
        *self.first(&sub) = sub.next;
        if !sub.expression {
            self.prune(sub.home);
        } else if sub.next == NONE {
            self.expressions.remove(sub.home);
        }
    }

    fn find(&self, parent: u32, word: &str) -> Option<u32> {
        let same = |&node: &u32| {
            let node = &self.nodes[node as usize];
            node.parent == parent && &*node.word == word
        };
        self.table.find(hash(parent, word), same).copied()
    }

    fn child(&self, parent: u32, segment: Segment) -> Option<u32> {
        match segment {
            Segment::Word(word) => self.find(parent, word),
            Segment::One => Some(self.nodes[parent as usize].one).filter(|&node| node != NONE),
            Segment::Many => Some(self.nodes[parent as usize].many).filter(|&node| node != NONE),
        }
    }

    fn child_or_new(&mut self, parent: u32, segment: Segment) -> u32 {
        self.child(parent, segment).unwrap_or_else(|| self.new_child(parent, segment))
    }

    fn new_child(&mut self, parent: u32, segment: Segment) -> u32 {
        let word = if let Segment::Word(word) = segment { word } else { "" };
        let mut node = Node::new(word, parent);
        node.is_one = segment == Segment::One;
        node.is_many = segment == Segment::Many;
        let id = self.free_nodes.pop().unwrap_or(self.nodes.len() as u32);
        match segment {
            Segment::One => self.nodes[parent as usize].one = id,
            Segment::Many => self.nodes[parent as usize].many = id,
            Segment::Word(_) => {
                node.next = std::mem::replace(&mut self.nodes[parent as usize].first, id);
                if node.next != NONE {
                    self.nodes[node.next as usize].prev = id;
                }
            }
        }
        if id as usize == self.nodes.len() {
            self.nodes.push(node);
        } else {
            self.nodes[id as usize] = node;
        }
        if let Segment::Word(word) = segment {
            let nodes = &self.nodes;
            let rehash = |&node: &u32| hash(nodes[node as usize].parent, &nodes[node as usize].word);
            self.table.insert_unique(hash(parent, word), id, rehash);
        }
        id
    }

    /// Removes empty nodes, from `node` upwards.
    fn prune(&mut self, mut node: u32) {
        while node != ROOT && self.nodes[node as usize].is_bare() {
            let gone = &mut self.nodes[node as usize];
            let (parent, next, prev) = (gone.parent, gone.next, gone.prev);
            if gone.is_one {
                self.nodes[parent as usize].one = NONE;
            } else if gone.is_many {
                self.nodes[parent as usize].many = NONE;
            } else {
                if let Ok(entry) = self.table.find_entry(hash(parent, &gone.word), |&other| other == node) {
                    entry.remove();
                }
                gone.word = Box::default();
                if next != NONE {
                    self.nodes[next as usize].prev = prev;
                }
                if prev == NONE {
                    self.nodes[parent as usize].first = next;
                } else {
                    self.nodes[prev as usize].next = next;
                }
            }
            self.free_nodes.push(node);
            node = parent;
        }
    }

    /// Collects the keys of all matching subscriptions, each once; false: matching the expressions exceeded the limit.
    #[must_use]
    pub fn matches(&mut self, topic: &str, out: &mut Vec<u32>) -> bool {
        let path: Vec<_> = segments(topic).collect();
        let (mut stack, mut seen) = (std::mem::take(&mut self.stack), std::mem::take(&mut self.seen));
        stack.push((ROOT, 0));
        while let Some((id, at)) = stack.pop() {
            if !seen.insert((id, at)) {
                continue;
            }
            if seen.len() > VISITS {
                stack.clear();
                out.clear();
                break;
            }
            let node = &self.nodes[id as usize];
            if node.many != NONE {
                stack.push((node.many, at));
            }
            let Some(&segment) = path.get(at as usize) else {
                collect(&self.subs, node.subs, out);
                continue;
            };
            if node.is_many {
                stack.push((id, at + 1));
            }
            // A `**` of the publish stays while it takes a segment of the pattern, or ends.
            let then = at + u32::from(segment != Segment::Many);
            if segment == Segment::Many {
                stack.push((id, at + 1));
            }
            if node.one != NONE {
                stack.push((node.one, then));
            }
            if let Segment::Word(word) = segment {
                stack.extend(self.find(id, word).map(|child| (child, then)));
            } else {
                let mut child = node.first;
                while child != NONE {
                    stack.push((child, then));
                    child = self.nodes[child as usize].next;
                }
            }
        }
        let visits = seen.len();
        seen.clear();
        // Few topics need so much: don't keep the capacity of the worst one.
        seen.shrink_to(1 << 16);
        stack.shrink_to(1 << 16);
        (self.stack, self.seen) = (stack, seen);
        self.expressions.steps += visits * VISIT;
        visits <= VISITS && self.expressions.matches(topic, |key| collect(&self.subs, key, out))
    }
}

fn collect(subs: &[Subscription], mut key: u32, out: &mut Vec<u32>) {
    while key != NONE {
        out.push(key);
        key = subs[key as usize].next;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_removed_leaves_nothing_behind() {
        let mut index = Index::default();
        let patterns = ["a/b", "a/*", "a/**", "**/b", "re:a/.", "a/b", "re:a/.", ""];
        let keys: Vec<_> = patterns
            .iter()
            .map(|text| index.insert(text, Subscription::new(0, 0, NONE, 0, true, false), None).unwrap())
            .collect();
        let mut found = Vec::new();
        assert!(index.matches("a/b", &mut found));
        found.sort_unstable();
        assert_eq!(found, keys[..7]);
        for key in keys {
            index.remove(key);
        }
        assert!(index.is_empty() && index.nodes[0].is_bare() && index.table.is_empty() && index.expressions.is_empty());
        assert_eq!(index.free_nodes.len() + 1, index.nodes.len());
    }
}
