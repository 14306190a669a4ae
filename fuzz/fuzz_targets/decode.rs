#![no_main]
//! See `forebay_decode::fuzzing::decode`.

libfuzzer_sys::fuzz_target!(|data: &[u8]| forebay_decode::fuzzing::decode(data));
