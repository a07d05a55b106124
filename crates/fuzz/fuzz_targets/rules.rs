//! Fuzzes rules and a message: `kind u8`, then either the rules themselves or the text of one. No panic, bounded work,
//! and the equalities with the other rules decide as all rules together.
#![no_main]

use busway_core::matching::rules::{Outcome, Rules, Seen};
use busway_core::wire::fields::Fields;
use busway_core::wire::frame::code;
use busway_core::wire::msgpack::{normal, write_head, Head};
use libfuzzer_sys::fuzz_target;

const FIELDS: &[u8] =
    b"\x86\xa1a\x01\xa1b\xcb\x40\x04\0\0\0\0\0\0\xa1s\xa3abc\xa1l\x93\x01\xa1x\xc0\xa1m\x81\xa1k\x90\xa1r\xc4\x01\xff";

fn one(name: &str, op: &str, text: &[u8]) -> Vec<u8> {
    let mut out = b"\x81\xa5where\x91\x93".to_vec();
    for part in [name.as_bytes(), op.as_bytes(), text] {
        write_head(Head::Str(part.len()), &mut out);
        out.extend_from_slice(part);
    }
    out
}

fuzz_target!(|data: &[u8]| {
    let Some((kind, rest)) = data.split_first() else { return };
    let (rules, fields, payload) = match kind % 5 {
        0 => {
            let (size, rest) = rest.split_at(rest.len().min(2));
            let size = size.iter().rev().fold(0, |size, byte| size * 256 + usize::from(*byte));
            let (rules, fields) = rest.split_at(size.min(rest.len()));
            (rules.to_vec(), fields, &b"abc"[..])
        }
        1 => (one("", "cel", rest), FIELDS, &b"abc"[..]),
        2 => (one("s", "cel", rest), FIELDS, rest),
        3 => (one("msg", "glob", rest), FIELDS, &b"abcabcaaaaaaaaaaaaaaaaaaaaaaaaaaaab"[..]),
        _ => (one("s", "re", rest), FIELDS, &b""[..]),
    };
    let rules = match Rules::compile(&rules) {
        Ok(rules) => rules,
        Err(fault) => {
            assert!(fault.code == code::INVALID_RULE && !fault.text.is_empty());
            return;
        }
    };
    let Ok(fields) = Fields::read(fields) else { return };
    let seen =
        Seen { fields: &fields, topic: "a/b", sender: "me", session: 7, time: 1_700_000_000_000_000_000, payload };
    let whole = rules.hold(&seen);
    assert_eq!(whole, rules.hold(&seen), "the answer changes");
    let equal = |(name, value): &(Box<str>, Box<[u8]>)| fields.get(name).is_some_and(|found| *normal(found) == **value);
    let parts = if rules.equalities().iter().all(equal) { rules.hold_rest(&seen) } else { Outcome::Fails };
    assert_eq!(whole, parts);
});
