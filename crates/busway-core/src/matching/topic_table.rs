//! The topics in use, each with a number and its cached route; removed when no connection and no service uses it.

use hashbrown::HashTable;
use rustc_hash::FxHasher;
use std::hash::{Hash, Hasher};

use crate::matching::index::Index;
use crate::matching::route::Route;
use crate::matching::topic;

#[derive(Debug)]
struct Topic {
    text: Box<str>,
    uses: u32,
    /// How many messages were published on it since it is in use.
    messages: u64,
    wild: bool,
    reserved: bool,
    route: Option<Box<Route>>,
    /// The stream that stores the topic, once it was looked up.
    stream: Option<u32>,
}

#[derive(Debug, Default)]
pub struct Topics {
    all: Vec<Topic>,
    free: Vec<u32>,
    table: HashTable<u32>,
    /// Counts changes of interest; a route of another epoch is stale.
    pub epoch: u64,
}

fn hash(text: &str) -> u64 {
    let mut hasher = FxHasher::default();
    text.hash(&mut hasher);
    hasher.finish()
}

impl Topics {
    pub fn len(&self) -> usize {
        self.all.len() - self.free.len()
    }

    pub fn find(&self, text: &str) -> Option<u32> {
        self.table.find(hash(text), |&id| &*self.all[id as usize].text == text).copied()
    }

    /// Returns the number of a checked topic, and adds a use.
    pub fn use_text(&mut self, text: &str) -> u32 {
        if let Some(id) = self.find(text) {
            self.all[id as usize].uses += 1;
            return id;
        }
        let (wild, reserved) = (topic::has_wildcard(text), topic::is_reserved(text));
        let new = Topic { text: text.into(), uses: 1, messages: 0, wild, reserved, route: None, stream: None };
        let id = self.free.pop().unwrap_or(self.all.len() as u32);
        if id as usize == self.all.len() {
            self.all.push(new);
        } else {
            self.all[id as usize] = new;
        }
        let all = &self.all;
        self.table.insert_unique(hash(text), id, |&id| hash(&all[id as usize].text));
        id
    }

    pub fn use_again(&mut self, id: u32) {
        self.all[id as usize].uses += 1;
    }

    pub fn unuse(&mut self, id: u32) {
        let topic = &mut self.all[id as usize];
        topic.uses -= 1;
        if topic.uses == 0 {
            let text = std::mem::take(&mut topic.text);
            topic.route = None;
            if let Ok(entry) = self.table.find_entry(hash(&text), |&other| other == id) {
                entry.remove();
            }
            self.free.push(id);
        }
    }

    pub fn stream(&mut self, id: u32, find: impl FnOnce(&str) -> u32) -> u32 {
        let topic = &mut self.all[id as usize];
        *topic.stream.get_or_insert_with(|| find(&topic.text))
    }

    /// Clears the cached streams after streams were added or removed.
    pub fn forget_streams(&mut self) {
        self.all.iter_mut().for_each(|topic| topic.stream = None);
    }

    /// Counts messages that were published on a topic; -1 for one that will be processed again.
    #[inline]
    pub fn count(&mut self, id: u32, messages: i64) {
        let topic = &mut self.all[id as usize];
        topic.messages = topic.messages.wrapping_add_signed(messages);
    }

    pub fn messages(&self, id: u32) -> u64 {
        self.all[id as usize].messages
    }

    /// Calls `visit` with the text and the messages of at most `most` topics from a number on. Reserved topics and
    /// those with wildcards are left out. Returns where to continue, and whether there are more.
    pub fn each(&self, from: usize, most: usize, mut visit: impl FnMut(&str, u64)) -> (usize, bool) {
        let end = self.all.len().min(from.saturating_add(most));
        let used = self.all[from.min(end)..end].iter().filter(|topic| topic.uses > 0);
        used.filter(|topic| !topic.wild && !topic.reserved).for_each(|topic| visit(&topic.text, topic.messages));
        (end, end < self.all.len())
    }

    pub fn text(&self, id: u32) -> &str {
        &self.all[id as usize].text
    }

    pub fn is_wild(&self, id: u32) -> bool {
        self.all[id as usize].wild
    }

    pub fn is_reserved(&self, id: u32) -> bool {
        self.all[id as usize].reserved
    }

    /// Takes the route out, rebuilt if interest has changed; return it with `keep`.
    #[inline]
    pub fn route(&mut self, id: u32, index: &mut Index) -> Box<Route> {
        let topic = &mut self.all[id as usize];
        match topic.route.take() {
            Some(route) if route.epoch == self.epoch => route,
            _ => Box::new(Route::build(index, &topic.text, self.epoch)),
        }
    }

    #[inline]
    pub fn keep(&mut self, id: u32, route: Box<Route>) {
        self.all[id as usize].route = Some(route);
    }
}
