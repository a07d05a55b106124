//! The regular expressions of subscriptions: each once, found by the literal prefix of its topics.

use rustc_hash::FxHashMap;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound::{Excluded, Included, Unbounded};
use std::sync::Arc;

use crate::matching::regex::Pattern;
use crate::matching::topic::has_wildcard;
use crate::wire::frame::Checked;

/// Steps that a topic may take with all expressions together: some 25 ms.
pub const BUDGET: usize = 4_000_000;
/// Steps after which other connections are processed.
pub const ENOUGH: usize = BUDGET / 4;
/// The cost of trying an expression, besides the steps inside it.
const TURN: usize = 32;

#[derive(Debug)]
struct Expression {
    text: Arc<str>,
    pattern: Pattern,
    /// The first of its subscriptions.
    subs: u32,
}

#[derive(Debug, Default)]
pub struct Expressions {
    all: Vec<Option<Expression>>,
    free: Vec<u32>,
    texts: FxHashMap<Arc<str>, u32>,
    beginnings: BTreeMap<Box<[u8]>, BTreeSet<u32>>,
    /// Steps since the engine last read it; compiling an expression counts as many.
    pub steps: usize,
}

impl Expressions {
    /// The index of an expression, which is compiled if new; `none` is the end of a list of subscriptions.
    pub fn place(&mut self, text: &str, none: u32) -> Checked<u32> {
        if let Some(&home) = self.texts.get(text) {
            return Ok(home);
        }
        self.steps += ENOUGH;
        let pattern = Pattern::new(text)?;
        let text: Arc<str> = text.into();
        let home = self.free.pop().unwrap_or(self.all.len() as u32);
        if home as usize == self.all.len() {
            self.all.push(None);
        }
        self.texts.insert(text.clone(), home);
        self.beginnings.entry(pattern.prefix().into()).or_default().insert(home);
        self.all[home as usize] = Some(Expression { text, pattern, subs: none });
        Ok(home)
    }

    /// The index of a known expression.
    pub fn find(&self, text: &str) -> Option<u32> {
        self.texts.get(text).copied()
    }

    pub fn remove(&mut self, home: u32) {
        let Some(gone) = self.all[home as usize].take() else { return };
        self.free.push(home);
        self.texts.remove(&gone.text);
        let beginning = gone.pattern.prefix();
        if let Some(same) = self.beginnings.get_mut(&*beginning) {
            same.remove(&home);
            if same.is_empty() {
                self.beginnings.remove(&*beginning);
            }
        }
    }

    /// The head of the list of an expression's subscriptions.
    pub fn subs(&mut self, home: u32) -> Option<&mut u32> {
        self.all.get_mut(home as usize)?.as_mut().map(|this| &mut this.subs)
    }

    pub fn is_empty(&self) -> bool {
        self.texts.is_empty() && self.beginnings.is_empty() && self.free.len() == self.all.len()
    }

    /// Calls `found` with the subscriptions of each matching expression; false: that exceeded the limit, and some are
    /// missing.
    pub fn matches(&mut self, topic: &str, mut found: impl FnMut(u32)) -> bool {
        let mut left = BUDGET;
        let done = self.candidates(topic, |this| {
            left = left.checked_sub(TURN)?;
            if this.pattern.matches_within(topic, &mut left)? {
                found(this.subs);
            }
            Some(())
        });
        self.steps += BUDGET - left;
        done.is_some()
    }

    /// Calls `each` with the expressions whose prefix fits, until it returns None.
    fn candidates(&self, topic: &str, mut each: impl FnMut(&Expression) -> Option<()>) -> Option<()> {
        let mut each =
            |homes: &BTreeSet<u32>| homes.iter().try_for_each(|&home| each(self.all[home as usize].as_ref()?));
        let wild = has_wildcard(topic);
        // `a/**` stands for `a`, too.
        let known = topic.split('*').next().unwrap_or("");
        let known = if wild { known.trim_end_matches('/') } else { known }.as_bytes();
        // All prefixes of `known`, from long to short: in sorted order, each is the nearest one below the previous.
        let mut upto = known;
        while let Some((beginning, homes)) = self.beginnings.range::<[u8], _>((Unbounded, Included(upto))).next_back() {
            let same = beginning.iter().zip(known).take_while(|(a, b)| a == b).count();
            if same == beginning.len() {
                each(homes)?;
                if same == 0 {
                    break;
                }
                upto = &known[..same - 1];
            } else {
                upto = &known[..same];
            }
        }
        if wild {
            let longer = self.beginnings.range::<[u8], _>((Excluded(known), Unbounded));
            for (_, homes) in longer.take_while(|(beginning, _)| beginning.starts_with(known)) {
                each(homes)?;
            }
        }
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_whose_beginning_fits_are_tried() {
        let mut all = Expressions::default();
        let texts = ["a/.*", "a", "a/b/.*", "a/b/c", "a/bb.*", "b.*", ".*", "", "a?/?b?", "é.*"];
        for (i, text) in texts.iter().enumerate() {
            let home = all.place(text, u32::MAX).unwrap();
            *all.subs(home).unwrap() = i as u32;
            assert_eq!(all.place(text, u32::MAX), Ok(home));
        }
        for topic in ["", "a", "a/b", "a/b/c", "a/b/cc", "a/bbb", "b", "é", "a/**", "a/*", "a/b/*", "**", "*/b", "é/**"]
        {
            let mut found = Vec::new();
            assert!(all.matches(topic, |i| found.push(i)));
            found.sort_unstable();
            let expected = (0..texts.len()).filter(|&i| Pattern::new(texts[i]).unwrap().matches(topic));
            assert_eq!(found, expected.map(|i| i as u32).collect::<Vec<_>>(), "{topic}");
        }
    }

    #[test]
    fn too_much_is_said_to_be() {
        let mut all = Expressions::default();
        for i in 0..50 {
            all.place(&format!("(0|1|/){{{i}}}.*1(0|1|/){{7}}x"), 0).unwrap();
        }
        assert!(all.matches("0/1", |_| {}) && all.matches("0/**", |_| {}));
        all.steps = 0;
        assert!(!all.matches(&("*/**/".repeat(100) + "y"), |_| {}));
        assert!(all.steps <= BUDGET);
    }
}
