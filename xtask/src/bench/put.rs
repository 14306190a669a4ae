//! The yardstick for writes: a process that hashes, writes and syncs, as anyone must who stores an object
//! with an S3 ETag safely.

use std::fs::File;
use std::io::Write;
use std::path::Path;

use anyhow::{Context, Result};
use md5::{Digest, Md5};

/// The same bytes that the load generator sends.
pub(super) fn body(bytes: usize) -> Vec<u8> {
    // xorshift: cheap, and nothing on the way can compress it.
    let mut state = 0x9E37_79B9_7F4A_7C15_u64;
    let mut body = Vec::with_capacity(bytes + 8);
    while body.len() < bytes {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        body.extend_from_slice(&state.to_le_bytes());
    }
    body.truncate(bytes);
    body
}

/// md5 + write + fsync of the file and of its folder, 1 MiB at a time.
pub(super) fn write_and_sync(path: &Path, bytes: u64) -> Result<()> {
    let chunk = body(1 << 20);
    let mut file = File::create(path).with_context(|| format!("cannot create {}", path.display()))?;
    let mut hash = Md5::new();
    let mut left = bytes;
    while left > 0 {
        let piece = &chunk[..chunk.len().min(usize::try_from(left).unwrap_or(usize::MAX))];
        hash.update(piece);
        file.write_all(piece)?;
        left -= piece.len() as u64;
    }
    file.sync_all()?;
    if let Some(folder) = path.parent() {
        File::open(folder)?.sync_all()?;
    }
    let digest: String = hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
    println!("{digest}");
    Ok(())
}
