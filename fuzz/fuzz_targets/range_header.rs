#![no_main]
//! See `forebay_s3::fuzzing::range_header`.

libfuzzer_sys::fuzz_target!(|data: &[u8]| forebay_s3::fuzzing::range_header(data));
