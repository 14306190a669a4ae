#![no_main]
//! See `forebay_decode::fuzzing::decode`.

libfuzzer_sys::fuzz_target!(
    // Libraries may panic, and that is caught; libFuzzer's hook would end the process before. What is not
    // caught still ends it.
    init: {
        drop(std::panic::take_hook());
    },
    |data: &[u8]| forebay_decode::fuzzing::decode(data)
);
