//! Entry points for fuzzing: each takes any bytes and panics if a promise about them does not hold.
//!
//! Not part of the API. `fuzz/` drives them with libFuzzer, `fuzzing/tests.rs` with the committed corpus
//! and with mutations of it.

mod formats;

use forebay_core::Result;

pub use formats::{
    dataset_documents, dataset_index, mds, parquet_footer, shard_codec, tar_samples, tfrecord, tokens,
};

use crate::tar::{BLOCK_BYTES, Member, MemberKind, TarIndex, TarIndexLimits, TarScanner, Want};

/// A tar archive, as it is and with the checksums of all its blocks made right, so that what lies behind them
/// is reached.
///
/// # Panics
/// If it matters how the archive is cut into pieces, or if a member lies outside of it or over another one.
pub fn tar(data: &[u8]) {
    check(data);
    check(&sealed_tar(data));
}

/// The archive with the checksums of all its blocks made right.
fn sealed_tar(data: &[u8]) -> Vec<u8> {
    let mut sealed = data.to_vec();
    for block in sealed.chunks_exact_mut(BLOCK_BYTES as usize) {
        if block.iter().any(|byte| *byte != 0) {
            block[148..156].fill(b' ');
            let sum: u64 = block.iter().map(|byte| u64::from(*byte)).sum();
            block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        }
    }
    sealed
}

fn check(archive: &[u8]) {
    let whole = scan(archive, archive.len().max(1));
    let pieces = scan(archive, 100);
    match (&whole, &pieces) {
        (Ok(whole), Ok(pieces)) => assert_eq!(whole, pieces),
        (Err(whole), Err(pieces)) => assert_eq!(whole.to_string(), pieces.to_string()),
        _ => assert_eq!(whole.is_ok(), pieces.is_ok(), "{whole:?} {pieces:?}"),
    }
    let Ok(members) = whole else {
        return;
    };
    let mut index = TarIndex::builder(TarIndexLimits::default());
    let mut end = 0;
    for member in &members {
        assert!(end <= member.header_offset && member.header_offset < member.offset);
        end = member.offset + member.bytes;
        assert!(end <= archive.len() as u64);
        index.add(member).expect("a small archive fits into an index");
    }
    let index = index.finish();
    for member in members.iter().filter(|member| member.kind == MemberKind::File) {
        if let Ok(name) = std::str::from_utf8(&member.name) {
            // The same name may come again, as something that cannot be read.
            let Ok(place) = index.find(name) else { continue };
            assert!(place.offset + place.bytes <= archive.len() as u64);
        }
    }
}

/// The members, if the archive comes in pieces of this size.
fn scan(archive: &[u8], piece_bytes: usize) -> Result<Vec<Member>> {
    let mut scanner = TarScanner::new(archive.len() as u64);
    let mut members = Vec::new();
    for (number, piece) in archive.chunks(piece_bytes).enumerate() {
        let start = (number * piece_bytes) as u64;
        scanner.push(start, piece, |member| {
            members.push(member);
            Ok(())
        })?;
    }
    assert_eq!(scanner.want(), Want::End);
    Ok(members)
}

#[cfg(test)]
mod tests;
