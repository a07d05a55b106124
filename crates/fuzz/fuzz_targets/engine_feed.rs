//! Fuzzes the broker with all input that clients may send, in any order and any pieces; see `src/lib.rs`.
#![no_main]

use busway_fuzz::Driver;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| Driver::new().run(data));
