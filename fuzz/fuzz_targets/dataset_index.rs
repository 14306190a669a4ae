#![no_main]
//! See `forebay_dataset::fuzzing::dataset_index`.

libfuzzer_sys::fuzz_target!(|data: &[u8]| forebay_dataset::fuzzing::dataset_index(data));
