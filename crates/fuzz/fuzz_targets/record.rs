//! Fuzzes the bytes of a block: iteration never fails, decoded records can be encoded again, and only records are
//! decoded.
#![no_main]

use busway_core::log::append::Log;
use busway_core::log::columns::{Columns, Wanted};
use busway_core::log::record::{behind, records, Record};
use busway_core::log::Settings;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let mut all = records(data);
    let mut blocks = Vec::new();
    for record in all.by_ref() {
        let message = record.message();
        assert_eq!(message.size(), Some(record.bytes.len()));
        message.encode(record.offset(), record.sequence(), record.stored(), &mut blocks);
    }
    let mut again = records(&blocks);
    for (old, new) in records(data).zip(again.by_ref()) {
        assert!(Record::sound(new.bytes).is_some());
        assert_eq!((old.topic, old.sender, old.fields, old.payload), (new.topic, new.sender, new.fields, new.payload));
        assert_eq!((old.offset(), old.due(), old.expires()), (new.offset(), new.due(), new.expires()));
    }
    assert!(again.rest.is_empty());
    // A copied block reads back the same, or nothing of it was copied.
    let mut copy = Log::memory(Settings::default(), 0);
    let taken = [data, &blocks].into_iter().find(|block| copy.copy(block) == Ok(true));
    let (mut copied, mut from) = (Vec::new(), 0);
    while from < copy.safe() {
        let block = copy.reader().read(from, 1 << 20).expect("memory can be read");
        copied.extend_from_slice(&block.bytes);
        from = block.next;
    }
    assert_eq!(copied, taken.unwrap_or_default());
    if let Some((at, offset)) = behind(data, 0, 0, u64::MAX) {
        assert_eq!(Record::sound(&data[at..]).map(|record| record.offset()), Some(offset));
    }
    let wanted = Wanted { selection: None, range: 0..u64::MAX, now: 0 };
    let names = ["offset", "topic", "id", "sender", "fields", "payload"];
    for plain in [false, true] {
        let mut columns = Columns::new(names, plain).expect("known names");
        assert_eq!(columns.add_blocks(&[data], &wanted).is_ok(), all.rest.is_empty());
        assert_eq!(columns.made().0, records(data).filter(|record| wanted.has(record)).count());
    }
});
