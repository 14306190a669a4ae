//! A copy that goes past the processor's cache.
//!
//! Large copies end in memory anyway. An ordinary store first fetches the line that it is about to overwrite
//! and pushes others out of the cache; a streaming store does neither. With several threads the way to memory
//! is what limits a copy, and a third less traffic is time that a trainer gets back.
#![allow(unsafe_code, reason = "streaming stores are instructions of the processor")]

/// Below this an ordinary copy is as good: the bytes stay in the cache, where they are soon used.
const BYTES_MIN: usize = 16 << 10;

/// Copies all of `source` into `target`, which has the same length, for somebody who does not look at it
/// soon.
///
/// # Panics
/// If the lengths differ, as [`slice::copy_from_slice`] does.
pub fn copy_past_cache(target: &mut [u8], source: &[u8]) {
    assert_eq!(target.len(), source.len(), "both have the same length");
    if source.len() < BYTES_MIN {
        return target.copy_from_slice(source);
    }
    copy(target, source);
}

#[cfg(target_arch = "x86_64")]
fn copy(target: &mut [u8], source: &[u8]) {
    use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_sfence, _mm_stream_si128};

    /// Bytes of one store, and its alignment.
    const STORE_BYTES: usize = size_of::<__m128i>();
    /// Bytes of a line of the cache: stores that fill it leave together.
    const LINE_BYTES: usize = 4 * STORE_BYTES;

    let head = target.as_ptr().align_offset(LINE_BYTES).min(target.len());
    let (target_head, target) = target.split_at_mut(head);
    let (source_head, source) = source.split_at(head);
    target_head.copy_from_slice(source_head);
    let mut targets = target.chunks_exact_mut(LINE_BYTES);
    let mut sources = source.chunks_exact(LINE_BYTES);
    for (to, from) in (&mut targets).zip(&mut sources) {
        let (to, from) = (to.as_mut_ptr().cast::<__m128i>(), from.as_ptr().cast::<__m128i>());
        // SAFETY: both have four stores' bytes, `to` is aligned to them, and SSE2 is part of x86-64. Nobody
        // reads what was written before the fence below.
        unsafe {
            let line = [0, 1, 2, 3].map(|place| _mm_loadu_si128(from.add(place)));
            for (place, some) in line.into_iter().enumerate() {
                _mm_stream_si128(to.add(place), some);
            }
        }
    }
    targets.into_remainder().copy_from_slice(sources.remainder());
    // Streaming stores are not ordered with what this thread does next, such as telling the node that it may
    // read. SAFETY: a fence has no precondition; SSE is part of x86-64.
    unsafe { _mm_sfence() };
}

#[cfg(not(target_arch = "x86_64"))]
fn copy(target: &mut [u8], source: &[u8]) {
    target.copy_from_slice(source);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_length_and_place_is_copied_and_nothing_beside_it() {
        let source: Vec<u8> = (0..BYTES_MIN + 300)
            .map(|index| (index * 31 % 251) as u8)
            .collect();
        for bytes in [0, 1, 63, BYTES_MIN - 1, BYTES_MIN, BYTES_MIN + 1, BYTES_MIN + 130] {
            for (to, from) in [(0, 0), (1, 0), (0, 1), (15, 16), (63, 17), (64, 64)] {
                let mut target = vec![7; source.len()];
                copy_past_cache(&mut target[to..to + bytes], &source[from..from + bytes]);
                assert!(
                    target[to..to + bytes] == source[from..from + bytes],
                    "{bytes} at {to}"
                );
                let beside = target[..to].iter().chain(&target[to + bytes..]);
                assert!(beside.copied().all(|byte| byte == 7), "{bytes} at {to}");
            }
        }
    }

    #[test]
    #[should_panic(expected = "same length")]
    fn other_lengths_are_a_mistake() {
        copy_past_cache(&mut [0; 2], &[0; 3]);
    }
}
