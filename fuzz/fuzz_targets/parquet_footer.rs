#![no_main]
//! See `forebay_dataset::fuzzing::parquet_footer`.

libfuzzer_sys::fuzz_target!(|data: &[u8]| forebay_dataset::fuzzing::parquet_footer(data));
