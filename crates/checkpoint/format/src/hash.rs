//! One pass over the bytes of a part: BLAKE3, CRC32C of each block, whether all is zero, and how many numbers
//! are none.
//!
//! All of them look at a piece while it is in the CPU's cache, so that memory is read once.

use forebay_core::crc32c;
use sha2::{Digest, Sha256};

use crate::Dtype;
use crate::table::{BLOCK_BYTES, blocks};

/// Bytes of one pass; fits the second-level cache, and BLAKE3 likes more than 128 KiB at once.
const PIECE_BYTES: usize = 4 * BLOCK_BYTES as usize;

/// Digests of bytes, made in one pass.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Digests {
    /// BLAKE3, in hexadecimal digits.
    pub blake3: String,
    /// CRC32C of each 64 KiB.
    pub crcs: Vec<u32>,
    /// SHA-256, if it was options.
    pub sha256: Option<String>,
    /// True if every byte is zero; false of no bytes.
    pub is_zero: bool,
    /// Elements that are NaN or infinite.
    pub not_finite: u64,
}

/// Digests to make beside BLAKE3 and CRC32C.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DigestOptions {
    /// Type of the elements; `None` counts no numbers.
    pub dtype: Option<Dtype>,
    /// SHA-256 as well.
    pub sha256: bool,
}

/// Looks at all bytes once.
#[must_use]
pub fn digest(bytes: &[u8], options: DigestOptions) -> Digests {
    let mut blake3 = blake3::Hasher::new();
    let mut sha256 = options.sha256.then(Sha256::new);
    let mut crcs = Vec::with_capacity(usize::try_from(blocks(bytes.len() as u64)).unwrap_or(0));
    let mut is_zero = !bytes.is_empty();
    let mut not_finite = 0;
    for piece in bytes.chunks(PIECE_BYTES) {
        blake3.update(piece);
        crcs.extend(piece.chunks(BLOCK_BYTES as usize).map(crc32c::crc32c));
        if let Some(sha256) = &mut sha256 {
            sha256.update(piece);
        }
        is_zero = is_zero && is_all_zero(piece);
        if let Some(dtype) = options.dtype {
            not_finite += count_not_finite(piece, dtype);
        }
    }
    Digests {
        blake3: blake3.finalize().to_hex().to_string(),
        crcs,
        sha256: sha256.map(|sha256| hex(&sha256.finalize())),
        is_zero,
        not_finite,
    }
}

/// Digits of a digest.
fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn is_all_zero(bytes: &[u8]) -> bool {
    let (words, rest) = bytes.as_chunks::<8>();
    // Blocks, so that the usual case, something at the very front, ends at once.
    let is_zero = |some: &[[u8; 8]]| some.iter().fold(0, |all, word| all | u64::from_le_bytes(*word)) == 0;
    words.chunks(512).all(is_zero) && rest.iter().all(|byte| *byte == 0)
}

/// Elements whose exponent is all ones: NaN and infinity. Pieces end at whole elements, because parts do.
fn count_not_finite(bytes: &[u8], dtype: Dtype) -> u64 {
    let count16 = |mask: u16| -> u64 {
        let (words, _) = bytes.as_chunks::<2>();
        let is_odd = |word: &[u8; 2]| u16::from(u16::from_le_bytes(*word) & mask == mask);
        // Counts as wide as the words keep all lanes of the processor busy.
        let count = |some: &[[u8; 2]]| u64::from(some.iter().map(is_odd).sum::<u16>());
        words.chunks(usize::from(u16::MAX)).map(count).sum()
    };
    let count8 = |is_odd: fn(u8) -> bool| -> u64 { bytes.iter().map(|byte| u64::from(is_odd(*byte))).sum() };
    match dtype {
        Dtype::F16 => count16(0x7c00),
        Dtype::BF16 => count16(0x7f80),
        Dtype::F32 | Dtype::C64 => {
            let (words, _) = bytes.as_chunks::<4>();
            let mask = 0x7f80_0000;
            let is_odd = |word: &[u8; 4]| u32::from(u32::from_le_bytes(*word) & mask == mask);
            u64::from(words.iter().map(is_odd).sum::<u32>())
        }
        Dtype::F64 => {
            let (words, _) = bytes.as_chunks::<8>();
            let mask = 0x7ff0_0000_0000_0000;
            let is_odd = |word: &[u8; 8]| u64::from(u64::from_le_bytes(*word) & mask == mask);
            words.iter().map(is_odd).sum()
        }
        // No infinity; one NaN with either sign.
        Dtype::F8_E4M3 => count8(|byte| byte & 0x7f == 0x7f),
        Dtype::F8_E5M2 => count8(|byte| byte & 0x7c == 0x7c),
        Dtype::F8_E8M0 => count8(|byte| byte == 0xff),
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn look(bytes: &[u8], dtype: Dtype) -> Digests {
        let options = DigestOptions {
            dtype: Some(dtype),
            sha256: true,
        };
        digest(bytes, options)
    }

    #[test]
    fn digests_are_those_of_the_whole() {
        let bytes: Vec<u8> = (0..300_001u32).map(|number| (number % 251) as u8).collect();
        let found = look(&bytes, Dtype::U8);
        assert_eq!(found.blake3, blake3::hash(&bytes).to_hex().as_str());
        let crcs: Vec<_> = bytes.chunks(BLOCK_BYTES as usize).map(crc32c::crc32c).collect();
        assert_eq!(found.crcs, crcs);
        assert_eq!(found.sha256.unwrap(), hex(&Sha256::digest(&bytes)));
        assert!(!found.is_zero);
        assert!(digest(b"", DigestOptions::default()).crcs.is_empty());
        assert!(!digest(b"", DigestOptions::default()).is_zero, "nothing was lost");
    }

    #[test]
    fn one_bit_anywhere_is_not_zero() {
        let mut bytes = vec![0u8; PIECE_BYTES + 4099];
        assert!(look(&bytes, Dtype::U8).is_zero);
        for place in [0, 4095, 4096, PIECE_BYTES - 1, PIECE_BYTES, PIECE_BYTES + 4098] {
            bytes[place] = 1;
            assert!(!look(&bytes, Dtype::U8).is_zero, "{place}");
            bytes[place] = 0;
        }
    }

    #[test]
    fn nan_and_infinity_are_counted_in_every_float_type() {
        let f32s = [1.0f32, f32::NAN, f32::INFINITY, f32::NEG_INFINITY, f32::MAX, -0.0];
        let bytes: Vec<u8> = f32s.iter().flat_map(|number| number.to_le_bytes()).collect();
        assert_eq!(look(&bytes, Dtype::F32).not_finite, 3);
        let bytes: Vec<u8> = [f64::NAN, f64::MAX]
            .iter()
            .flat_map(|number| number.to_le_bytes())
            .collect();
        assert_eq!(look(&bytes, Dtype::F64).not_finite, 1);
        let of16 = |numbers: [u16; 4]| -> Vec<u8> { numbers.iter().flat_map(|n| n.to_le_bytes()).collect() };
        assert_eq!(look(&of16([0x7c00, 0xfe00, 0x7bff, 0]), Dtype::F16).not_finite, 2);
        assert_eq!(
            look(&of16([0x7f80, 0xffc0, 0x7f7f, 0]), Dtype::BF16).not_finite,
            2
        );
        assert_eq!(look(&[0x7f, 0xff, 0x7e, 0], Dtype::F8_E4M3).not_finite, 2);
        assert_eq!(look(&[0x7c, 0xff, 0x7b, 0], Dtype::F8_E5M2).not_finite, 2);
        assert_eq!(look(&[0xff, 0x7f], Dtype::F8_E8M0).not_finite, 1);
        assert_eq!(look(&[0xff; 8], Dtype::I64).not_finite, 0);
    }
}
