#![no_main]
//! See `forebay_checkpoint::fuzzing::checkpoint_delta`.

libfuzzer_sys::fuzz_target!(|data: &[u8]| forebay_checkpoint::fuzzing::checkpoint_delta(data));
