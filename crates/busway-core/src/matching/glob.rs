//! Globs with the semantics of Python's `fnmatch.fnmatchcase`: `*`, `?`, `[abc]`, `[a-z]`, `[!abc]`, on the whole text.

use std::str::Chars;

/// Steps per byte of the text, and free steps: a bound for patterns that are slow on purpose.
const STEPS: usize = 16;
const FREE: usize = 65_536;

#[derive(Debug, PartialEq)]
enum Part {
    Star,
    One,
    Text(Box<str>),
    /// Ranges, and whether the class is negated.
    Class(Box<[(char, char)]>, bool),
}

#[derive(Debug)]
pub struct Glob {
    parts: Box<[Part]>,
}

impl Glob {
    pub fn new(pattern: &str) -> Self {
        let chars: Vec<char> = pattern.chars().collect();
        let mut parts = Vec::new();
        let mut text = String::new();
        let mut at = 0;
        while at < chars.len() {
            let (part, size) = match chars[at] {
                '*' => (Some(Part::Star), 1),
                '?' => (Some(Part::One), 1),
                '[' => class(&chars[at + 1..]).map_or((None, 1), |(part, size)| (Some(part), size + 1)),
                _ => (None, 1),
            };
            let Some(part) = part else {
                text.push(chars[at]);
                at += 1;
                continue;
            };
            at += size;
            if !text.is_empty() {
                parts.push(Part::Text(std::mem::take(&mut text).into()));
            }
            if part != Part::Star || parts.last() != Some(&Part::Star) {
                parts.push(part);
            }
        }
        if !text.is_empty() {
            parts.push(Part::Text(text.into()));
        }
        Self { parts: parts.into() }
    }

    /// True if the pattern matches this text; None: the match exceeded the step limit.
    pub fn matches(&self, text: &str) -> Option<bool> {
        let mut budget = FREE + STEPS * text.len();
        let (mut at, mut rest) = (0, text.chars());
        // Where to continue when a star takes one more character. Only the last star must be retried.
        let mut again: Option<(usize, Chars<'_>)> = None;
        loop {
            budget = budget.checked_sub(1)?;
            let part = self.parts.get(at);
            if part == Some(&Part::Star) {
                at += 1;
                if at == self.parts.len() {
                    return Some(true);
                }
                rest = self.seek(at, rest, &mut budget)?;
                again = Some((at, rest.clone()));
                continue;
            }
            let fits = match part {
                None if rest.as_str().is_empty() => return Some(true),
                None | Some(Part::Star) => false,
                Some(Part::One) => rest.next().is_some(),
                Some(Part::Text(text)) => {
                    budget = budget.checked_sub(text.len() / 16)?;
                    let after = rest.as_str().strip_prefix(&**text);
                    after.inspect(|after| rest = after.chars()).is_some()
                }
                Some(Part::Class(ranges, not)) => rest
                    .next()
                    .is_some_and(|found| ranges.iter().any(|(low, high)| (*low..=*high).contains(&found)) != *not),
            };
            if fits {
                at += 1;
                continue;
            }
            let Some((place, from)) = &mut again else { return Some(false) };
            if from.next().is_none() {
                return Some(false);
            }
            *from = self.seek(*place, from.clone(), &mut budget)?;
            (at, rest) = (*place, from.clone());
        }
    }

    /// The first position where the part at `at`, which follows a star, may match; the end if there is none.
    fn seek<'t>(&self, at: usize, rest: Chars<'t>, budget: &mut usize) -> Option<Chars<'t>> {
        let Part::Text(text) = &self.parts[at] else { return Some(rest) };
        *budget = budget.checked_sub(text.len() / 16)?;
        let rest = rest.as_str();
        Some(rest[rest.find(&**text).unwrap_or(rest.len())..].chars())
    }
}

/// Parses the class after a `[`; returns it and its length. None: it is not closed, so the bracket is a character.
///
/// This follows Python's `fnmatch.translate`, including its special cases.
fn class(chars: &[char]) -> Option<(Part, usize)> {
    let mut end = usize::from(chars.first() == Some(&'!'));
    end += usize::from(chars.get(end) == Some(&']'));
    end += chars[end.min(chars.len())..].iter().position(|char| *char == ']')?;
    // Between two chunks is a hyphen, which makes a range of the characters beside it.
    let mut chunks: Vec<Vec<char>> = Vec::new();
    let (mut from, mut search) = (0, if chars[0] == '!' { 2 } else { 1 });
    while let Some(hyphen) = chars.get(search..end).and_then(|some| some.iter().position(|char| *char == '-')) {
        chunks.push(chars[from..search + hyphen].to_vec());
        from = search + hyphen + 1;
        search += hyphen + 3;
    }
    match chunks.last_mut() {
        Some(last) if from == end => last.push('-'),
        _ => chunks.push(chars[from..end].to_vec()),
    }
    for at in (1..chunks.len()).rev() {
        if chunks[at - 1].last() > chunks[at].first() {
            let right = chunks.remove(at);
            chunks[at - 1].pop();
            chunks[at - 1].extend(&right[1..]);
        }
    }
    let not = chunks[0].first() == Some(&'!');
    let mut marks: Vec<(char, bool)> = Vec::new();
    for (i, chunk) in chunks.iter().enumerate() {
        marks.extend((i > 0).then_some(('-', true)));
        marks.extend(chunk.iter().map(|char| (*char, false)));
    }
    let mut marks = &marks[usize::from(not)..];
    let mut ranges = Vec::new();
    while let Some((low, _)) = marks.first() {
        let (high, size) = if let [_, (_, true), (high, _), ..] = marks { (high, 3) } else { (low, 1) };
        ranges.push((*low, *high));
        marks = &marks[size..];
    }
    Some((Part::Class(ranges.into(), not), end + 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_fnmatch() {
        for (pattern, yes, no) in [
            ("h*", &["h", "hdb", "h*\n"][..], &["", "ah"][..]),
            ("*a*b", &["ab", "xaxbxb"], &["ba", "abx"]),
            ("?é", &["éé", "xé"], &["é", "xée"]),
            ("[a-c]x", &["ax", "cx"], &["dx", "x"]),
            ("[!a-c]", &["d", "!"], &["a", ""]),
            ("[]]", &["]"], &["[", ""]),
            ("[!]]", &["a"], &["]"]),
            ("[a", &["[a"], &["a"]),
            ("[b-a]", &[], &["a", "b", "-", ""]),
            ("[!b-a]", &["a", "b"], &[""]),
            ("[a-]", &["a", "-"], &["b"]),
            ("", &[""], &["a"]),
            ("**", &["", "a"], &[]),
        ] {
            let glob = Glob::new(pattern);
            assert!(yes.iter().all(|text| glob.matches(text) == Some(true)), "{pattern}");
            assert!(no.iter().all(|text| glob.matches(text) == Some(false)), "{pattern}");
        }
    }

    #[test]
    fn gives_up_rather_than_taking_for_ever() {
        let glob = Glob::new(&format!("*{}b", "a".repeat(1000)));
        assert_eq!(glob.matches(&"a".repeat(1 << 20)), Some(false));
        let glob = Glob::new(&format!("*?{}b", "a".repeat(1000)));
        assert_eq!(glob.matches(&"a".repeat(1 << 20)), None);
        assert_eq!(glob.matches(&"a".repeat(100)), Some(false));
    }
}
