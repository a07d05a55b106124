//! Subscriptions by regular expression: `re:` and an expression that must match the whole topic.
//!
//! An expression is compiled to a complete automaton when a client subscribes, and refused if that is large. So a match
//! costs at most one step per byte of the topic, whatever the expression is.

use regex_automata::dfa::{dense, sparse, Automaton, StartKind};
use regex_automata::nfa::thompson::{self, WhichCaptures};
use regex_automata::util::{primitives::StateID, start, syntax};
use regex_automata::{Anchored, MatchKind};
use rustc_hash::FxHashSet;

use crate::matching::topic::{has_wildcard, segments, Segment};
use crate::wire::frame::{code, Checked, Fault};

pub const PREFIX: &str = "re:";
/// The maximum size of an expression during compilation, in bytes.
const WORKSPACE: usize = 1 << 20;
/// The maximum size of a compiled expression, in bytes.
const SIZE: usize = 64 << 10;
const LARGE: &str = r"the expression is too large; repeat less, or say [a-z] or (?-u:\w) for \w and [0-9] for \d";
/// The maximum length of the literal prefix of an automaton.
const LITERAL: usize = 256;
/// The cost of a pair of the product in steps; measured, a step is about a byte of a topic.
const PAIR: usize = 8;

#[derive(Debug)]
pub struct Pattern {
    dfa: sparse::DFA<Vec<u8>>,
    start: StateID,
    /// A byte of each class of the automaton, of those that may be part of a segment.
    kinds: Box<[u8]>,
}

fn make(expression: &str) -> Result<sparse::DFA<Vec<u8>>, String> {
    let tree = syntax::parse(expression).map_err(|fault| fault.to_string())?;
    if tree.properties().look_set().contains_word_unicode() {
        return Err(r"a word boundary is known as (?-u:\b) only".into());
    }
    let thompson = thompson::Config::new().which_captures(WhichCaptures::None).nfa_size_limit(Some(WORKSPACE));
    let nfa = thompson::Compiler::new().configure(thompson).build_from_hir(&tree).map_err(|_| LARGE)?;
    // All matches, since only a match that ends with the topic counts, be it first or last.
    let config = dense::Config::new().match_kind(MatchKind::All).start_kind(StartKind::Anchored).accelerate(false);
    let config = config.dfa_size_limit(Some(WORKSPACE)).determinize_size_limit(Some(WORKSPACE / 4));
    let dfa = dense::Builder::new().configure(config).build_from_nfa(&nfa).map_err(|_| LARGE)?;
    let dfa = dfa.to_sparse().map_err(|_| LARGE)?;
    if dfa.memory_usage() > SIZE {
        return Err(LARGE.into());
    }
    Ok(dfa)
}

impl Pattern {
    /// Compiles `expression`, without the prefix `re:`.
    pub fn new(expression: &str) -> Checked<Self> {
        let wrong = |text| Fault::new(code::INVALID_PATTERN, format!("{expression:?}: {text}"));
        let dfa = make(expression).map_err(wrong)?;
        let start = dfa.start_state(&start::Config::new().anchored(Anchored::Yes));
        let start = start.map_err(|fault| wrong(fault.to_string()))?;
        let mut seen = FxHashSet::default();
        // The last byte of each class: see `Place::Wild`.
        let bytes = (0x20..=0xff_u8).rev().filter(|byte| !matches!(byte, b'/' | b'*' | 0x7f));
        let kinds = bytes.filter(|&byte| seen.insert(dfa.byte_classes().get(byte))).collect();
        Ok(Self { dfa, start, kinds })
    }

    /// The common prefix of all matching topics.
    pub fn prefix(&self) -> Vec<u8> {
        let (mut prefix, mut state) = (Vec::new(), self.start);
        while prefix.len() < LITERAL && !self.ends(state) {
            let mut next = (0x20..=0xff_u8).map(|byte| (byte, self.dfa.next_state(state, byte)));
            let mut alive = next.by_ref().filter(|(_, state)| !self.dfa.is_dead_state(*state));
            let (Some((byte, only)), None) = (alive.next(), alive.next()) else { break };
            prefix.push(byte);
            state = only;
        }
        prefix
    }

    fn ends(&self, state: StateID) -> bool {
        self.dfa.is_match_state(self.dfa.next_eoi_state(state))
    }

    /// True if the expression matches this topic, or some topic that matches if it has wildcards.
    pub fn matches(&self, topic: &str) -> bool {
        self.matches_within(topic, &mut usize::MAX.clone()) == Some(true)
    }

    /// As `matches`; None if it would take more than `steps`, which it counts down.
    pub fn matches_within(&self, topic: &str, steps: &mut usize) -> Option<bool> {
        if has_wildcard(topic) {
            let product = Product {
                pattern: self,
                segments: segments(topic).collect(),
                seen: FxHashSet::default(),
                todo: vec![(self.start, Place::Before(0, true))],
            };
            return product.meets(steps);
        }
        *steps = steps.checked_sub(topic.len())?;
        let mut state = self.start;
        for &byte in topic.as_bytes() {
            state = self.dfa.next_state(state, byte);
            if self.dfa.is_dead_state(state) {
                return Some(false);
            }
        }
        Some(self.ends(state))
    }
}

/// The position in a walk through the bytes of a topic with wildcards.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Place {
    /// Before segment `.0`; `.1`: the topic is still empty, so it needs no slash.
    Before(usize, bool),
    /// In the word at segment `.0`, at byte `.1`.
    Word(usize, usize),
    /// In a segment for the `*` at `.0` (or `**`, which may take another one after it); `.1`: after the byte C2, which
    /// together with one below A0 would be a control character.
    Wild(usize, bool),
}

/// The search for a topic that matches both the expression and the pattern.
struct Product<'a> {
    pattern: &'a Pattern,
    segments: Vec<Segment<'a>>,
    seen: FxHashSet<(StateID, Place)>,
    todo: Vec<(StateID, Place)>,
}

impl Product<'_> {
    fn meets(mut self, steps: &mut usize) -> Option<bool> {
        while let Some((state, place)) = self.todo.pop() {
            if self.pattern.dfa.is_dead_state(state) || !self.seen.insert((state, place)) {
                continue;
            }
            *steps = steps.checked_sub(PAIR)?;
            match place {
                Place::Before(i, first) => {
                    let Some(&segment) = self.segments.get(i) else {
                        if self.pattern.ends(state) {
                            return Some(true);
                        }
                        continue;
                    };
                    let next = if first { state } else { self.pattern.dfa.next_state(state, b'/') };
                    match segment {
                        Segment::Word(_) => self.todo.push((next, Place::Word(i, 0))),
                        Segment::One => self.any(next, i, false, steps)?,
                        Segment::Many => {
                            self.any(next, i, false, steps)?;
                            self.todo.push((state, Place::Before(i + 1, first)));
                        }
                    }
                }
                Place::Word(i, at) => {
                    let Some(Segment::Word(word)) = self.segments.get(i) else { continue };
                    self.todo.push(match word.as_bytes().get(at) {
                        None => (state, Place::Before(i + 1, false)),
                        Some(&byte) => (self.pattern.dfa.next_state(state, byte), Place::Word(i, at + 1)),
                    });
                }
                Place::Wild(i, after) => {
                    self.any(state, i, after, steps)?;
                    let again = usize::from(self.segments[i] != Segment::Many);
                    self.todo.push((state, Place::Before(i + again, false)));
                }
            }
        }
        Some(false)
    }

    /// Takes a byte of a segment for a wildcard.
    fn any(&mut self, state: StateID, i: usize, after: bool, steps: &mut usize) -> Option<()> {
        *steps = steps.checked_sub(self.pattern.kinds.len())?;
        let mut last = None;
        for &byte in self.pattern.kinds.iter().filter(|&&byte| !after || byte >= 0xa0) {
            let next = (self.pattern.dfa.next_state(state, byte), Place::Wild(i, byte == 0xc2));
            if !self.pattern.dfa.is_dead_state(next.0) && last.replace(next) != Some(next) {
                self.todo.push(next);
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
        for good in ["a|ab", "ab|a", "(a|ab)(c|)", r"^ab$|^$", r"(?-u:\b)ab(?-u:\b)", r"\w+(/\w+){3}|ab"] {
            assert!(Pattern::new(good).unwrap().matches("ab"), "{good}");
        }
        for bad in ["(", "a)|(?:b", "(?:a{1000}){1000}", "[01]*1[01]{20}", r"\bab\b", "(?s-u:.)"] {
            assert_eq!(Pattern::new(bad).unwrap_err().code, code::INVALID_PATTERN, "{bad}");
        }
    }

    #[test]
    fn meets_wildcards() {
        let pattern = Pattern::new("a/[xy]+/é?").unwrap();
        assert!(
            pattern.matches("a/*/*") && pattern.matches("**") && pattern.matches("a/**/é") && pattern.matches("*/x/**")
        );
        assert!(!pattern.matches("a/*") && !pattern.matches("*/z/**") && !pattern.matches("a/*/*/*"));
        // A wildcard matches only characters that a topic may contain.
        for (expression, yes) in [("[\u{80}-\u{9f}]", false), ("[\u{80}-\u{a0}]", true), ("[\n*]", false)] {
            assert_eq!(Pattern::new(expression).unwrap().matches("*"), yes, "{expression:?}");
        }
    }

    #[test]
    fn beginnings() {
        let cases: [(&str, &[u8]); 6] = [
            ("dev-1/.*", b"dev-1/"),
            ("(ab|abc)d?", b"ab"),
            ("[ab]c", b""),
            ("", b""),
            ("é|è", b"\xc3"),
            ("(?i)a", b""),
        ];
        for (expression, prefix) in cases {
            assert_eq!(Pattern::new(expression).unwrap().prefix(), prefix, "{expression}");
        }
    }

    #[test]
    fn counts_its_steps() {
        let pattern = Pattern::new(".*").unwrap();
        for topic in ["a/b/c", "**/a/*", "*/**"] {
            let (mut few, mut many) = (4, 10_000);
            assert_eq!(pattern.matches_within(topic, &mut few), None);
            assert_eq!(pattern.matches_within(topic, &mut many), Some(true));
            assert!(many < 10_000);
        }
    }
}
