#![no_main]
//! See `forebay_s3::fuzzing::chunked_body`.

libfuzzer_sys::fuzz_target!(|data: &[u8]| forebay_s3::fuzzing::chunked_body(data));
