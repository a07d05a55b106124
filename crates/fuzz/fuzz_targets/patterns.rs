//! Fuzzes a regular expression and a topic, one per line: linear time, and consistent results with and without
//! wildcards.
#![no_main]

use busway_core::matching::regex::Pattern;
use busway_core::matching::topic::{check, has_wildcard};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let (expression, topic) = text.split_once('\n').unwrap_or((text, "a/b"));
    let Ok(pattern) = Pattern::new(expression) else { return };
    let Ok(topic) = check(topic) else { return };
    let matched = pattern.matches(topic);
    if has_wildcard(topic) || !matched || topic.is_empty() {
        return;
    }
    // If a concrete topic matches, every pattern that it belongs to matches.
    let words: Vec<_> = topic.split('/').collect();
    assert!(pattern.matches("**"), "{expression:?} {topic:?} **");
    for i in 0..words.len().min(4) {
        for wild in ["*", "**"] {
            let mut other = words.clone();
            other[i] = wild;
            let other = other.join("/");
            assert!(pattern.matches(&other), "{expression:?} {topic:?} {other:?}");
        }
        let other = format!("{}/**", words[..=i].join("/"));
        assert!(pattern.matches(&other), "{expression:?} {topic:?} {other:?}");
    }
});
