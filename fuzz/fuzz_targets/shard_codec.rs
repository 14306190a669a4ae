#![no_main]
//! See `forebay_dataset::fuzzing::shard_codec`.

libfuzzer_sys::fuzz_target!(|data: &[u8]| forebay_dataset::fuzzing::shard_codec(data));
