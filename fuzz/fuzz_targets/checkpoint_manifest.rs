#![no_main]
//! See `forebay_checkpoint::fuzzing::checkpoint_manifest`.

libfuzzer_sys::fuzz_target!(|data: &[u8]| forebay_checkpoint::fuzzing::checkpoint_manifest(data));
