#![no_main]
//! See `forebay_dataset::fuzzing::tokens`.

libfuzzer_sys::fuzz_target!(|data: &[u8]| forebay_dataset::fuzzing::tokens(data));
