//! The broker against anything that clients may send, in any order and in any pieces; see `src/lib.rs`.
#![no_main]

use busway_fuzz::Driver;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| Driver::new().run(data));
