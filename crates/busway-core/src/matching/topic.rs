//! The grammar of topics, and the test whether two patterns intersect.
//!
//! A topic is a path of segments; `*` stands for one segment and `**` for any number of them, on both sides. Two
//! patterns match when some concrete topic belongs to both.

use crate::wire::frame::{code, Checked, Fault};

/// First segment of the broker's own topics.
pub const RESERVED: &str = "$bus";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Segment<'a> {
    Word(&'a str),
    One,
    Many,
}

/// The segments of a checked topic; none for `""`.
pub fn segments(topic: &str) -> impl Iterator<Item = Segment<'_>> {
    topic.split('/').filter(|text| !text.is_empty()).map(|text| match text {
        "*" => Segment::One,
        "**" => Segment::Many,
        word => Segment::Word(word),
    })
}

/// Returns the topic without its leading slash, if it is valid.
pub fn check(topic: &str) -> Checked<&str> {
    let topic = topic.strip_prefix('/').unwrap_or(topic);
    if topic.is_empty() {
        return Ok(topic);
    }
    for segment in topic.split('/') {
        let fault = if segment.is_empty() {
            "an empty segment"
        } else if segment == "*" || segment == "**" {
            continue;
        } else if segment.contains('*') {
            "a wildcard that does not stand alone in its segment"
        } else if segment.chars().any(char::is_control) {
            "a control character"
        } else {
            continue;
        };
        return Err(Fault::new(code::INVALID_TOPIC, format!("topic {topic:?} has {fault}")));
    }
    Ok(topic)
}

pub fn has_wildcard(topic: &str) -> bool {
    topic.contains('*')
}

pub fn is_reserved(topic: &str) -> bool {
    topic.split('/').next() == Some(RESERVED)
}

/// True if some concrete topic belongs to both; a walk through the product of the two as automata.
pub fn meet(a: &str, b: &str) -> bool {
    let a: Vec<_> = segments(a).collect();
    let b: Vec<_> = segments(b).collect();
    let width = b.len() + 1;
    let mut seen = vec![false; (a.len() + 1) * width];
    let mut todo = vec![(0, 0)];
    while let Some((i, j)) = todo.pop() {
        if std::mem::replace(&mut seen[i * width + j], true) {
            continue;
        }
        let (x, y) = (a.get(i), b.get(j));
        if x == Some(&Segment::Many) {
            todo.push((i + 1, j));
        }
        if y == Some(&Segment::Many) {
            todo.push((i, j + 1));
        }
        match (x, y) {
            (None, None) => return true,
            (Some(Segment::Word(x)), Some(Segment::Word(y))) if x != y => {}
            (Some(x), Some(y)) => {
                let stays = |segment: &Segment| usize::from(*segment != Segment::Many);
                todo.push((i + stays(x), j + stays(y)));
            }
            _ => {}
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grammar() {
        for good in ["", "a", "/a/b", "*", "**", "a/**/b", "preço/€", "$bus/info"] {
            assert!(check(good).is_ok(), "{good}");
        }
        for bad in ["a/", "a//b", "//a", "*a", "a*", "***", "a/\0", "a\u{85}"] {
            assert_eq!(check(bad).unwrap_err().code, code::INVALID_TOPIC, "{bad}");
        }
    }

    #[test]
    fn meeting() {
        for (a, b, yes) in [
            ("a/**/d", "a/**/c/d", true),
            ("a/**", "a", true),
            ("**/*", "", false),
            ("**", "", true),
            ("a/**/b/**/c", "a/c", false),
            ("*/alice", "lobby/*", true),
        ] {
            assert_eq!(meet(a, b), yes, "{a} {b}");
            assert_eq!(meet(b, a), yes, "{b} {a}");
        }
    }
}
