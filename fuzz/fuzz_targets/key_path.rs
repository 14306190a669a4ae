#![no_main]
//! See `forebay_lake::fuzzing::key_path`.

libfuzzer_sys::fuzz_target!(|data: &[u8]| forebay_lake::fuzzing::key_path(data));
