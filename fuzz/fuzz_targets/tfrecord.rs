#![no_main]
//! See `forebay_dataset::fuzzing::tfrecord`.

libfuzzer_sys::fuzz_target!(|data: &[u8]| forebay_dataset::fuzzing::tfrecord(data));
