//! Regular-expression subscriptions: `re:` and an expression that must match the whole topic, in linear time.

use regex::{Regex, RegexBuilder};
use regex_automata::hybrid::{dfa::Cache, dfa::Config, dfa::DFA, LazyStateID};
use regex_automata::{util::start, Anchored};
use rustc_hash::FxHashSet;

use crate::frame::{code, Checked, Fault};
use crate::topic::{fragments, Fragment};

pub const PREFIX: &str = "re:";
/// Compiled size one expression may have.
const SIZE: usize = 256 << 10;
/// States of the product that are looked at before a wildcard publish is taken to match.
const STATES: usize = 20_000;

#[derive(Debug)]
pub struct Pattern {
    whole: Regex,
}

impl Pattern {
    /// `expression` without its prefix.
    pub fn new(expression: &str) -> Checked<Self> {
        let build = |text: &str| RegexBuilder::new(text).size_limit(SIZE).build();
        // On its own first, so that no unbalanced bracket can slip out of the group that is put around it.
        let whole = build(expression).and_then(|_| build(&format!(r"\A(?:{expression})\z")));
        let whole = whole.map_err(|fault| Fault::new(code::INVALID_PATTERN, format!("{expression:?}: {fault}")))?;
        Ok(Self { whole })
    }

    /// Whether the expression matches this topic; one with wildcards: some topic that belongs to it.
    pub fn matches(&self, topic: &str) -> bool {
        if topic.contains('*') {
            Product::new(&self.whole, topic).is_none_or(|mut product| product.meets())
        } else {
            self.whole.is_match(topic)
        }
    }
}

/// Where a walk through the bytes of a topic with wildcards stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Place {
    /// Before fragment `.0`; `.1`: nothing was written yet, so no slash is due.
    Before(usize, bool),
    /// In the word at fragment `.0`, at byte `.1`.
    Word(usize, usize),
    /// In a fragment that `*` (or `**`, which may take another one after it) at `.0` stands for.
    Wild(usize),
}

/// The search for a topic that the expression and the pattern have in common.
struct Product<'a> {
    dfa: DFA,
    cache: Cache,
    fragments: Vec<Fragment<'a>>,
    seen: FxHashSet<(LazyStateID, Place)>,
    todo: Vec<(LazyStateID, Place)>,
}

impl<'a> Product<'a> {
    fn new(whole: &Regex, topic: &'a str) -> Option<Self> {
        let config = Config::new().cache_capacity(8 << 20).minimum_cache_clear_count(Some(0));
        let dfa = DFA::builder().configure(config).build(whole.as_str()).ok()?;
        let mut cache = dfa.create_cache();
        let start = dfa.start_state(&mut cache, &start::Config::new().anchored(Anchored::Yes)).ok()?;
        let todo = vec![(start, Place::Before(0, true))];
        Some(Self { dfa, cache, fragments: fragments(topic).collect(), seen: FxHashSet::default(), todo })
    }

    /// True also when the search grows too large: better one message too many than one lost.
    fn meets(&mut self) -> bool {
        while let Some((state, place)) = self.todo.pop() {
            if !self.seen.insert((state, place)) {
                continue;
            }
            if self.seen.len() > STATES {
                return true;
            }
            match self.step(state, place) {
                Some(false) => {}
                _ => return true,
            }
        }
        false
    }

    /// Whether this place ends in a match; None: the automaton grew too large.
    fn step(&mut self, state: LazyStateID, place: Place) -> Option<bool> {
        match place {
            Place::Before(i, first) => match self.fragments.get(i).copied() {
                None => {
                    let end = self.dfa.next_eoi_state(&mut self.cache, state).ok()?;
                    return Some(end.is_match());
                }
                Some(fragment) => {
                    let next = if first { state } else { self.next(state, b'/')? };
                    match fragment {
                        Fragment::Word(_) => self.todo.push((next, Place::Word(i, 0))),
                        Fragment::One => self.any(next, i)?,
                        Fragment::Many => {
                            self.todo.push((state, Place::Before(i + 1, first)));
                            self.any(next, i)?;
                        }
                    }
                }
            },
            Place::Word(i, at) => {
                let Some(Fragment::Word(word)) = self.fragments.get(i).copied() else { return Some(false) };
                match word.as_bytes().get(at) {
                    None => self.todo.push((state, Place::Before(i + 1, false))),
                    Some(&byte) => {
                        let next = self.next(state, byte)?;
                        self.todo.push((next, Place::Word(i, at + 1)));
                    }
                }
            }
            Place::Wild(i) => {
                let again = usize::from(self.fragments.get(i) != Some(&Fragment::Many));
                self.todo.push((state, Place::Before(i + again, false)));
                self.any(state, i)?;
            }
        }
        Some(false)
    }

    fn next(&mut self, state: LazyStateID, byte: u8) -> Option<LazyStateID> {
        self.dfa.next_state(&mut self.cache, state, byte).ok()
    }

    /// One more byte of a fragment that a wildcard stands for.
    fn any(&mut self, state: LazyStateID, i: usize) -> Option<()> {
        let mut done = [false; 256];
        for byte in 0x20..=0xff_u8 {
            if matches!(byte, b'/' | b'*' | 0x7f) {
                continue;
            }
            let class = self.dfa.byte_classes().get(byte) as usize;
            if !std::mem::replace(&mut done[class], true) {
                let next = self.next(state, byte)?;
                if !next.is_dead() {
                    self.todo.push((next, Place::Wild(i)));
                }
            }
        }
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_topics_only() {
        let pattern = Pattern::new("CHANNEL_.*|x").unwrap();
        assert!(pattern.matches("CHANNEL_A") && pattern.matches("x"));
        assert!(!pattern.matches("A_CHANNEL_A") && !pattern.matches("xx"));
        for bad in ["(", "a)|(?:b", "(?:a{1000}){1000}"] {
            assert_eq!(Pattern::new(bad).unwrap_err().code, code::INVALID_PATTERN);
        }
    }

    #[test]
    fn meets_wildcards() {
        let pattern = Pattern::new("a/[xy]+/é?").unwrap();
        assert!(
            pattern.matches("a/*/*") && pattern.matches("**") && pattern.matches("a/**/é") && pattern.matches("*/x/**")
        );
        assert!(!pattern.matches("a/*") && !pattern.matches("*/z/**") && !pattern.matches("a/*/*/*"));
    }
}
