#![no_main]
//! See `forebay_core::fuzzing::wire_frame`.

libfuzzer_sys::fuzz_target!(|data: &[u8]| forebay_core::fuzzing::wire_frame(data));
