//! Grants: which operations a user may carry out on which topics. The engine asks them once per connection, topic and
//! verb; the services of the broker and the doors ask them for each call.
//!
//! A deny that has a topic in common with the request wins. Otherwise one allow must cover the whole request: each
//! topic that the requested pattern matches.

use rustc_hash::FxHashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::matching::index::{Index, Subscription};
use crate::matching::regex::PREFIX;
use crate::matching::topic::{check, has_wildcard, is_reserved, segments, Segment};
use crate::wire::frame::Checked;

/// The operations, by the number of their bit. The engine caches the answers for those before `SUBSCRIBE`.
pub mod verb {
    pub const PUBLISH: u8 = 0;
    pub const PUSH: u8 = 1;
    pub const REQUEST: u8 = 2;
    pub const STORE: u8 = 3;
    pub const RETAIN: u8 = 4;
    pub const SUBSCRIBE: u8 = 5;
    pub const SERVE: u8 = 6;
    pub const READ: u8 = 7;
    pub const CONSUME: u8 = 8;
    pub const MANAGE: u8 = 9;
    pub const OBSERVE: u8 = 10;
    pub const ADMIN: u8 = 11;
}

/// The names of the operations, by number.
pub const VERBS: [&str; 12] = [
    "publish",
    "push",
    "request",
    "store",
    "retain",
    "subscribe",
    "serve",
    "read",
    "consume",
    "manage",
    "observe",
    "admin",
];

/// Steps of one comparison of two patterns, after which one does not count as covered. Real patterns need a few.
const STEPS: usize = 10_000;

#[derive(Debug)]
struct Grant {
    /// Bits of verbs.
    verbs: u16,
    deny: bool,
    pattern: Box<str>,
}

impl Grant {
    /// True if the pattern matches every topic of the request. A grant includes topics of the broker only if it names
    /// them: `**` does not.
    fn covers(&self, requested: &str) -> bool {
        if *self.pattern == *requested {
            return true;
        }
        if is_reserved(requested) && !is_reserved(&self.pattern) {
            return false;
        }
        // The index has found the pattern, so both have a topic in common.
        !has_wildcard(requested) || (!self.pattern.starts_with(PREFIX) && contains(&self.pattern, requested))
    }
}

/// The grants of one role, which its users share.
#[derive(Debug)]
pub struct GrantSet {
    grants: Box<[Grant]>,
    /// The grants by pattern: the id of a subscription is the number of its grant.
    index: Mutex<Index>,
}

impl GrantSet {
    /// Compiles bits of verbs with patterns. Allows have lower numbers than denies.
    pub fn new<S: AsRef<str>>(allow: &[(u16, S)], deny: &[(u16, S)]) -> Checked<Self> {
        let mut index = Index::default();
        let mut grants = Vec::with_capacity(allow.len() + deny.len());
        let sides = allow.iter().map(|one| (one, false)).chain(deny.iter().map(|one| (one, true)));
        for ((verbs, pattern), deny) in sides {
            let (verbs, pattern) = (*verbs, pattern.as_ref());
            let pattern = if pattern.starts_with(PREFIX) { pattern } else { check(pattern)? };
            let number = grants.len() as u32;
            index.insert(pattern, Subscription::new(0, number, Subscription::ALONE, 0, true, false), None)?;
            grants.push(Grant { verbs, deny, pattern: pattern.into() });
        }
        Ok(Self { grants: grants.into(), index: Mutex::new(index) })
    }

    fn index(&self) -> MutexGuard<'_, Index> {
        self.index.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The numbers of all grants that have a topic in common with the request; None: the comparison takes too long.
    fn meeting(&self, requested: &str) -> Option<Vec<usize>> {
        let (mut index, mut keys) = (self.index(), Vec::new());
        let done = index.matches(requested, &mut keys);
        done.then(|| keys.iter().map(|&key| index.get(key).id as usize).collect())
    }
}

/// The answer to a request, with the set and the number of the grant that decides.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decision {
    Allowed(usize, usize),
    /// A regular expression that can't be decided as a whole: each message is decided by its topic.
    Filtered,
    Denied(usize, usize),
    /// No grant covers the request.
    Missing,
    /// The comparison takes too long, so the request is refused.
    TooComplex,
}

/// All grants of one user.
#[derive(Debug)]
pub struct Grants {
    sets: Box<[Arc<GrantSet>]>,
}

impl Grants {
    pub fn new(sets: Vec<Arc<GrantSet>>) -> Self {
        Self { sets: sets.into() }
    }

    /// Decides on a verb and a checked topic or pattern.
    pub fn decide(&self, verb: u8, requested: &str) -> Decision {
        let bit = 1_u16 << verb;
        if requested.starts_with(PREFIX) {
            return self.decide_expression(bit, requested);
        }
        let mut decision = Decision::Missing;
        for (at, set) in self.sets.iter().enumerate() {
            let Some(numbers) = set.meeting(requested) else { return Decision::TooComplex };
            for number in numbers {
                let grant = &set.grants[number];
                if grant.verbs & bit == 0 {
                    continue;
                }
                if grant.deny {
                    return Decision::Denied(at, number);
                }
                if decision == Decision::Missing && grant.covers(requested) {
                    decision = Decision::Allowed(at, number);
                }
            }
        }
        decision
    }

    /// The topics of a regular expression are not known: only the same expression covers it, or `**` without denies.
    fn decide_expression(&self, bit: u16, requested: &str) -> Decision {
        let mut decision = Decision::Missing;
        let mut denies = false;
        for (at, set) in self.sets.iter().enumerate() {
            for (number, grant) in set.grants.iter().enumerate().filter(|(_, grant)| grant.verbs & bit != 0) {
                let same = *grant.pattern == *requested;
                match (grant.deny, same || &*grant.pattern == "**") {
                    (true, true) => return Decision::Denied(at, number),
                    (true, false) => denies = true,
                    (false, true) => decision = Decision::Allowed(at, number),
                    (false, false) if decision == Decision::Missing => decision = Decision::Filtered,
                    (false, false) => {}
                }
            }
        }
        if denies && matches!(decision, Decision::Allowed(..)) {
            return Decision::Filtered;
        }
        decision
    }

    pub fn may(&self, verb: u8, requested: &str) -> bool {
        matches!(self.decide(verb, requested), Decision::Allowed(..))
    }

    /// True if one of these verbs is allowed on some topic of a checked pattern: what the user may know about.
    pub fn touches(&self, verbs: u16, requested: &str) -> bool {
        let mut touched = false;
        for set in &self.sets {
            let Some(numbers) = set.meeting(requested) else { return false };
            for grant in numbers.iter().map(|&number| &set.grants[number]).filter(|grant| grant.verbs & verbs != 0) {
                if grant.deny && grant.verbs & verbs == verbs && grant.covers(requested) {
                    return false;
                }
                touched |= !grant.deny && (!is_reserved(requested) || is_reserved(&grant.pattern));
            }
        }
        touched
    }
}

/// True if the pattern `whole` matches all topics of the pattern `part`.
///
/// It walks `part` and collects the positions in `whole` that the same segments lead to. For a wildcard of `part` it
/// takes a segment that no pattern names: any other one leads to the same positions and maybe to more.
fn contains(whole: &str, part: &str) -> bool {
    let (whole, part): (Vec<_>, Vec<_>) = (segments(whole).collect(), segments(part).collect());
    let mut seen = FxHashSet::default();
    let mut todo = vec![(0, open(&whole, &[0]))];
    while let Some((at, places)) = todo.pop() {
        if seen.len() > STEPS {
            return false;
        }
        if !seen.insert((at, places.clone())) {
            continue;
        }
        match part.get(at) {
            None if places.contains(&whole.len()) => {}
            None => return false,
            Some(Segment::Many) => {
                todo.push((at, step(&whole, &places, None)));
                todo.push((at + 1, places));
            }
            Some(Segment::One) => todo.push((at + 1, step(&whole, &places, None))),
            Some(Segment::Word(word)) => todo.push((at + 1, step(&whole, &places, Some(word)))),
        }
    }
    true
}

/// The places, and those after each `**`, which may match no segment.
fn open(whole: &[Segment], places: &[usize]) -> Vec<usize> {
    let mut found = Vec::new();
    for &place in places {
        let many = whole[place..].iter().take_while(|&segment| *segment == Segment::Many).count();
        found.extend(place..=place + many);
    }
    found.sort_unstable();
    found.dedup();
    found
}

/// The places in `whole` after one segment; None: one that no pattern names.
fn step(whole: &[Segment], places: &[usize], word: Option<&str>) -> Vec<usize> {
    let next = |&place: &usize| match whole.get(place)? {
        Segment::Many => Some(place),
        Segment::One => Some(place + 1),
        Segment::Word(text) => (Some(*text) == word).then_some(place + 1),
    };
    open(whole, &places.iter().filter_map(next).collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use super::*;

    const PUBLISH: u16 = 1 << verb::PUBLISH;

    fn grants(allow: &[&str], deny: &[&str]) -> Grants {
        let of = |patterns: &[&str]| patterns.iter().map(|text| (PUBLISH, text.to_string())).collect::<Vec<_>>();
        Grants::new(vec![Arc::new(GrantSet::new(&of(allow), &of(deny)).unwrap())])
    }

    #[test]
    fn a_deny_wins_and_one_allow_must_cover_everything() {
        for (allow, deny, requested, allowed) in [
            (&["a/**"][..], &[][..], "a/b", true),
            (&["a/**"], &["a/b"], "a/b", false),
            (&["a/**"], &["a/b"], "a/c", true),
            (&["a/**"], &["a/b"], "a/*", false),
            (&["a/b", "a/c"], &[], "a/*", false),
            (&["a/*"], &[], "a/**", false),
            (&["a/**"], &[], "a/*/b/**", true),
            (&["**"], &[], "$bus/info", false),
            (&["$bus/**"], &[], "$bus/info", true),
            (&["**"], &["**"], "$bus/info", false),
            (&["re:a/[0-9]+"], &[], "a/12", true),
            (&["re:a/[0-9]+"], &[], "a/*", false),
            (&["a/*"], &["re:a/[0-9]+"], "a/*", false),
        ] {
            let decision = grants(allow, deny).decide(verb::PUBLISH, requested);
            assert_eq!(matches!(decision, Decision::Allowed(..)), allowed, "{allow:?} {deny:?} {requested}");
        }
    }

    #[test]
    fn expressions_are_decided_as_a_whole_or_filtered() {
        for (allow, deny, decision) in [
            (&["**"][..], &[][..], Decision::Allowed(0, 0)),
            (&["re:a/.*"], &[], Decision::Allowed(0, 0)),
            (&["**"], &["a/b"], Decision::Filtered),
            (&["a/**"], &[], Decision::Filtered),
            (&["a/**"], &["**"], Decision::Denied(0, 1)),
            (&[], &["a/b"], Decision::Missing),
        ] {
            assert_eq!(grants(allow, deny).decide(verb::PUBLISH, "re:a/.*"), decision, "{allow:?} {deny:?}");
        }
    }

    #[test]
    fn other_verbs_are_not_allowed() {
        let grants = grants(&["**"], &[]);
        assert!(grants.may(verb::PUBLISH, "a") && !grants.may(verb::SUBSCRIBE, "a"));
        assert!(grants.touches(PUBLISH, "a/*") && !grants.touches(1 << verb::READ, "a"));
        assert!(!grants.touches(PUBLISH, "$bus/info"));
    }

    #[test]
    fn one_pattern_contains_another() {
        for (whole, part, yes) in [
            ("**", "a/**/b", true),
            ("**/b", "a/**/b", true),
            ("**/b/**", "a/**/b", true),
            ("*/**", "**", false),
            ("*/**", "**/a", true),
            ("**/*", "*/**", true),
            ("a/*/c", "a/**/c", false),
            ("**/a/**/a/**", "a/**/a", true),
            ("", "**", false),
            ("**", "", true),
        ] {
            assert_eq!(contains(whole, part), yes, "{whole} {part}");
        }
    }
}
