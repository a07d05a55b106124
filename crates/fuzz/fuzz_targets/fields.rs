//! Fuzzes the bytes of fields: decoded fields can be encoded and decoded again, and normal forms are normal.
#![no_main]

use std::borrow::Cow;

use busway_core::wire::fields::{merge, Fields};
use busway_core::wire::msgpack::{normal, skip};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Ok(fields) = Fields::read(data) else { return };
    for (name, value) in fields.iter() {
        assert_eq!(fields.get(name), Some(value));
        assert_eq!(skip(value, 0), Ok(&[][..]), "{name:?} has something after its value");
        let form = normal(value);
        assert_eq!(skip(&form, 0), Ok(&[][..]));
        assert!(matches!(normal(&form), Cow::Borrowed(_)), "{value:?} has two normal forms");
    }
    let copy = merge(&fields, &[]).expect("no more names than there were");
    let again = Fields::read(&copy).expect("the same fields");
    assert!(fields.iter().eq(again.iter()));
    let own = [("a".into(), [1].into()), ("zz".into(), [2].into())];
    if let Ok(merged) = merge(&fields, &own) {
        let merged = Fields::read(&merged).expect("fields");
        assert_eq!((merged.get("a"), merged.get("zz")), (Some(&[1][..]), Some(&[2][..])));
    }
});
