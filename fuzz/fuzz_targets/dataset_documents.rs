#![no_main]
//! See `forebay_dataset::fuzzing::dataset_documents`.

libfuzzer_sys::fuzz_target!(|data: &[u8]| forebay_dataset::fuzzing::dataset_documents(data));
