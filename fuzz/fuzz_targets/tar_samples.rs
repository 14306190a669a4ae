#![no_main]
//! See `forebay_dataset::fuzzing::tar_samples`.

libfuzzer_sys::fuzz_target!(|data: &[u8]| forebay_dataset::fuzzing::tar_samples(data));
