//! Bytes of elements, grouped: all first bytes, then all second bytes, and so on.
//!
//! Words are taken apart by shifts, which compilers turn into vector instructions; picking every n-th byte
//! they do not.

macro_rules! of_width {
    ($apart:ident, $together:ident, $word:ty, $bytes:literal) => {
        fn $apart(bytes: &[u8], base: &[u8], grouped: &mut [u8]) {
            let (words, _) = bytes.as_chunks::<$bytes>();
            let (bases, _) = base.as_chunks::<$bytes>();
            for (number, group) in grouped.chunks_exact_mut(words.len().max(1)).enumerate() {
                let shift = 8 * number as u32;
                for ((byte, word), base) in group.iter_mut().zip(words).zip(bases) {
                    *byte = ((<$word>::from_le_bytes(*word) ^ <$word>::from_le_bytes(*base)) >> shift) as u8;
                }
            }
        }

        fn $together(grouped: &[u8], target: &mut [u8]) {
            let (words, _) = target.as_chunks_mut::<$bytes>();
            let count = words.len();
            let mut groups = grouped.chunks_exact(count.max(1));
            let groups: [&[u8]; $bytes] = std::array::from_fn(|_| groups.next().unwrap_or_default());
            for (index, word) in words.iter_mut().enumerate() {
                let mut change: $word = 0;
                for (number, group) in groups.iter().enumerate() {
                    change |= <$word>::from(group[index]) << (8 * number as u32);
                }
                *word = (<$word>::from_le_bytes(*word) ^ change).to_le_bytes();
            }
        }
    };
}

of_width!(apart2, together2, u16, 2);
of_width!(apart4, together4, u32, 4);
of_width!(apart8, together8, u64, 8);

/// `bytes` without what `base` has, grouped. All three are equally long; bytes behind the last whole element
/// come last.
pub(super) fn apart(bytes: &[u8], base: &[u8], element_bytes: u8, grouped: &mut [u8]) {
    let whole = whole(bytes.len(), element_bytes);
    let (front, back) = grouped.split_at_mut(whole);
    match element_bytes {
        2 => apart2(&bytes[..whole], &base[..whole], front),
        4 => apart4(&bytes[..whole], &base[..whole], front),
        8 => apart8(&bytes[..whole], &base[..whole], front),
        _ => {}
    }
    for ((byte, new), old) in back.iter_mut().zip(&bytes[whole..]).zip(&base[whole..]) {
        *byte = new ^ old;
    }
}

/// The other way: `target` has the base and gets the bytes.
pub(super) fn together(grouped: &[u8], element_bytes: u8, target: &mut [u8]) {
    let whole = whole(target.len(), element_bytes);
    let (front, back) = target.split_at_mut(whole);
    match element_bytes {
        2 => together2(&grouped[..whole], front),
        4 => together4(&grouped[..whole], front),
        8 => together8(&grouped[..whole], front),
        _ => {}
    }
    for (byte, change) in back.iter_mut().zip(&grouped[whole..]) {
        *byte ^= change;
    }
}

/// Bytes of whole elements; single bytes are not grouped.
fn whole(bytes: usize, element_bytes: u8) -> usize {
    match element_bytes {
        2 | 4 | 8 => bytes - bytes % usize::from(element_bytes),
        _ => 0,
    }
}
