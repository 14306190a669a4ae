//! Entry points for fuzzing: each takes any bytes and panics if a promise about them does not hold.
//!
//! Not part of the API. `fuzz/` drives them with libFuzzer, `fuzzing/tests.rs` with the committed corpus
//! and with mutations of it.

use crate::delta::{self, Decoder, Encoder, FRAME_BYTES, Frames};
use crate::manifest::{DEPTH_MAX, Encoding, EncodingKind, Extent};
use crate::table::Table;
use crate::{Manifest, TensorBox, plan};

const DIGEST_DIGITS: usize = 64;
/// Memory for what a small input may claim.
const TARGET_BYTES_MAX: u64 = 4 * FRAME_BYTES;

/// A manifest, as it is and with its digest made right, so that what lies behind it is reached.
///
/// # Panics
/// If one that is accepted has a chain that is too long or a base of another size, cannot be planned for, or
/// reads back differently.
pub fn checkpoint_manifest(data: &[u8]) {
    for document in [data.to_vec(), sealed_document(data)] {
        let Ok(mut manifest) = Manifest::decode(&document) else {
            continue;
        };
        let tensors = Manifest::decode_tensors(&document).expect("it needs less of the same");
        assert_eq!(tensors.content.tensors, manifest.content.tensors);
        for tensor in manifest.content.tensors.values() {
            for extent in tensor.parts.iter().map(|part| &part.bytes) {
                assert!(extent.depth() <= DEPTH_MAX);
                assert!(extent.chain().all(|base| base.bytes() == extent.bytes()));
            }
            let whole = TensorBox::whole(&tensor.shape);
            if whole.elements().is_ok_and(|elements| elements < TARGET_BYTES_MAX) {
                let jobs = plan::jobs(tensor, &whole).expect("parts cover the tensor");
                let bytes: u64 = jobs.iter().map(|job| job.target.end - job.target.start).sum();
                assert_eq!(
                    Some(bytes),
                    whole.elements().ok().map(|all| all * tensor.dtype.bytes())
                );
            }
        }
        let encoded = manifest.encode().expect("it was accepted");
        assert_eq!(Manifest::decode(&encoded).expect("it was just made"), manifest);
    }
}

/// The document with the digest at its end made right.
fn sealed_document(data: &[u8]) -> Vec<u8> {
    let mut sealed = data.to_vec();
    let tail = b"\"\n}\n".len();
    let Some(place) = sealed.len().checked_sub(DIGEST_DIGITS + tail) else {
        return sealed;
    };
    sealed[place..place + DIGEST_DIGITS].fill(b'0');
    let digest = blake3::hash(&sealed).to_hex();
    sealed[place..place + DIGEST_DIGITS].copy_from_slice(digest.as_bytes());
    sealed
}

/// A frame as it is stored: two bytes of its length and one of its elements' size before it; then all of that
/// as bytes to encode, and as a side table.
///
/// # Panics
/// If a frame that is encoded does not come out again, or frames of a table lie outside of their extent.
pub fn checkpoint_delta(data: &[u8]) {
    let Some((front, stored)) = data.split_at_checked(3) else {
        return;
    };
    let bytes = usize::from(u16::from_le_bytes([front[0], front[1]]));
    let element_bytes = front[2];
    let mut decoder = Decoder::new().expect("there is memory");
    let mut target = vec![0x55; bytes];
    // Any outcome but a panic.
    let _ = decoder.frame(stored, element_bytes, &mut target);
    let (base, new) = stored.split_at(stored.len() / 2);
    let new = &new[..base.len()];
    let mut frame = Vec::new();
    let mut encoder = Encoder::new().expect("there is memory");
    let made = encoder
        .frame(new, base, element_bytes, &mut frame)
        .expect("a frame of equal sizes");
    assert_eq!(made.stored_bytes as usize, frame.len());
    assert!(frame.len() <= new.len());
    let mut target = base.to_vec();
    decoder
        .frame(&frame, element_bytes, &mut target)
        .expect("a frame that was just made");
    assert_eq!(target, new);
    check_frames(bytes as u64 * 64, stored);
}

/// Frames of a part of so many bytes, in a table of these entries.
fn check_frames(bytes: u64, entries: &[u8]) {
    let (entries, _) = entries.as_chunks::<4>();
    let entries: Vec<u32> = entries.iter().map(|entry| u32::from_le_bytes(*entry)).collect();
    let mut table = Table::default();
    table.add(&entries);
    let plain = Extent {
        file: 0,
        range: [0, bytes],
        blake3: String::new(),
        table: 0,
        first_block: 0,
        encoding: None,
    };
    let encoding = Encoding {
        kind: EncodingKind::XorGroupZstd,
        bytes,
        element_bytes: 1,
        base: plain.clone(),
    };
    let claimed = entries.last().map_or(0, |last| u64::from(*last));
    let encoded = Extent {
        range: [0, claimed],
        encoding: Some(Box::new(encoding)),
        ..plain
    };
    let Ok(frames) = Frames::of(&table, &encoded) else {
        return;
    };
    let all = 0..delta::frames(bytes);
    assert_eq!(frames.stored(&all), 0..claimed);
    assert_eq!(frames.iter(&all).count() as u64, all.end);
    assert_eq!(frames.stored(&(all.end..u64::MAX)), claimed..claimed);
}

#[cfg(test)]
mod tests;
