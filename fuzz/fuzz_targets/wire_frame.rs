#![no_main]
//! See `forebay_wire::fuzzing::wire_frame`.

libfuzzer_sys::fuzz_target!(|data: &[u8]| forebay_wire::fuzzing::wire_frame(data));
