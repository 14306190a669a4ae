#![no_main]
//! See `forebay_dataset::fuzzing::mds`.

libfuzzer_sys::fuzz_target!(|data: &[u8]| forebay_dataset::fuzzing::mds(data));
