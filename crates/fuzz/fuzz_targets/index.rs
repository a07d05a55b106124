//! Fuzzes the bytes of an index: valid ones are read, and encode to the same bytes.
#![no_main]

use busway_core::log::bucket::dedup::Once;
use busway_core::log::bucket::{Index, Topics, HEAD};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let _ = Index::read(data.to_vec());
    // A wrong checksum ends the read, so the checksums are corrected.
    let mut bytes = data.to_vec();
    if bytes.len() < HEAD {
        return;
    }
    bytes[..8].copy_from_slice(b"BWAYIDX2");
    let body = (bytes.len() - HEAD) as u64;
    bytes[64..72].copy_from_slice(&body.to_le_bytes());
    let crc = crc32c::crc32c(&bytes[HEAD..]);
    bytes[72..76].copy_from_slice(&crc.to_le_bytes());
    let crc = crc32c::crc32c(&bytes[..76]);
    bytes[76..80].copy_from_slice(&crc.to_le_bytes());
    let Some(index) = Index::read(bytes) else { return };
    let (mut topics, mut once) = (Topics::default(), Once::default());
    index.carry(index.summary.base, &mut topics, &mut once);
    let again = Index::read(index.building().index(&topics, &once)).expect("an index");
    assert_eq!((again.summary, &again.marks, &again.moves), (index.summary, &index.marks, &index.moves));
    for (text, row) in again.topics() {
        assert_eq!(again.topic(text), Some(row));
    }
});
