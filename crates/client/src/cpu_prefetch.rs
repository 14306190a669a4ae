//! Asks the processor to fetch bytes that are about to be read.
//!
//! A reader that jumps from sample to sample waits for memory at the beginning of each: the processor guesses
//! what comes next only after some lines. Whoever knows the next place says it while it still works on this
//! one.
#![allow(unsafe_code, reason = "fetching ahead is an instruction of the processor")]

/// A line of the processor's cache.
#[cfg(target_arch = "x86_64")]
const LINE_BYTES: usize = 64;
/// After so many bytes the processor has seen what comes.
#[cfg(target_arch = "x86_64")]
const BYTES_MAX: usize = 4 << 10;

/// Says that these bytes, or the first of them, are about to be read. Nothing but time depends on it.
#[cfg(target_arch = "x86_64")]
pub fn prefetch_cache_lines(bytes: &[u8]) {
    use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
    for line in bytes[..bytes.len().min(BYTES_MAX)].chunks(LINE_BYTES) {
        // SAFETY: fetching changes nothing and cannot fail, wherever the address leads; SSE is part of
        // x86-64.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(line.as_ptr().cast()) };
    }
}

/// Nothing: stable Rust has the instruction for x86-64 alone.
#[cfg(not(target_arch = "x86_64"))]
pub fn prefetch_cache_lines(_bytes: &[u8]) {}
