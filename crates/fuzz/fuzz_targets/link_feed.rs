//! Fuzzes a broker with a link with all input that the other node and clients may send; see `src/lib.rs`.
#![no_main]

use busway_fuzz::Driver;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| Driver::linked().run(data));
