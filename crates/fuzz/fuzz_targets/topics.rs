//! Fuzzes two topics, one per line: compares the grammar and the matcher with simple models.
#![no_main]

use busway_core::matching::index::{Index, Subscription};
use busway_core::matching::regex::PREFIX;
use busway_core::matching::topic::{check, has_wildcard, meet, segments, Segment};
use libfuzzer_sys::fuzz_target;

fn naive(a: &[Segment], b: &[Segment]) -> bool {
    match (a.first(), b.first()) {
        (None, _) => b.iter().all(|segment| *segment == Segment::Many),
        (_, None) => a.iter().all(|segment| *segment == Segment::Many),
        (Some(Segment::Many), _) => naive(&a[1..], b) || naive(a, &b[1..]),
        (_, Some(Segment::Many)) => naive(a, &b[1..]) || naive(&a[1..], b),
        (Some(Segment::Word(x)), Some(Segment::Word(y))) if x != y => false,
        _ => naive(&a[1..], &b[1..]),
    }
}

fuzz_target!(|data: &[u8]| {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let (a, b) = text.split_once('\n').unwrap_or((text, ""));
    let (Ok(a), Ok(b)) = (check(a), check(b)) else { return };
    // A checked topic passes the check again, and consists of its segments.
    assert_eq!(check(a), Ok(a));
    let words: Vec<_> = segments(a)
        .map(|segment| match segment {
            Segment::Word(word) => word,
            Segment::One => "*",
            Segment::Many => "**",
        })
        .collect();
    assert_eq!(words.join("/"), a);
    assert_eq!(has_wildcard(a), segments(a).any(|segment| !matches!(segment, Segment::Word(_))));

    let (x, y): (Vec<_>, Vec<_>) = (segments(a).collect(), segments(b).collect());
    if x.len() + y.len() > 16 {
        meet(a, b); // the model would take too long
        return;
    }
    let expected = naive(&x, &y);
    assert_eq!(meet(a, b), expected, "{a:?} {b:?}");
    assert_eq!(meet(b, a), expected, "{b:?} {a:?}");

    // The index gives the same result, and removes the subscription. With this prefix it is a regular expression.
    if a.starts_with(PREFIX) {
        return;
    }
    let mut index = Index::default();
    let key = index.insert(a, Subscription::new(1, 2, Subscription::ALONE, 0, true, false), None).expect("checked");
    let other =
        index.insert("z/**", Subscription::new(1, 3, Subscription::ALONE, 0, true, false), None).expect("checked");
    let mut found = Vec::new();
    assert!(index.matches(b, &mut found));
    assert_eq!(found.contains(&key), expected, "{a:?} {b:?}");
    assert_eq!(found.contains(&other), meet("z/**", b));
    assert!(found.len() <= 2);
    index.remove(key);
    found.clear();
    assert!(index.matches(b, &mut found));
    assert!(!found.contains(&key));
    assert_eq!(index.len(), 1);
});
