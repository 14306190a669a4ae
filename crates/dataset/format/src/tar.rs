//! Tar archives: which members there are and where their bytes lie.
//!
//! Understood are the formats that people's shards are in: V7, ustar, PAX (`x` and `g` headers) and GNU (long
//! names, long links, sizes in base 256). The checksum of every header is checked. Compressed archives have
//! no places to point at and are refused by name. `header.rs` reads one block, `pax.rs` the records of PAX
//! headers, `scanner.rs` puts them together while bytes come in, `index.rs` keeps what was found,
//! `samples.rs` groups members into samples.
//!
//! The archive ends at the first block of zeros, and then nothing but zeros may follow. Python's `tarfile`, and
//! thus WebDataset, does not look behind it, so that a shard with a hole gives fewer samples without a word. Here
//! a hole, data behind the end mark, a missing end mark, and an archive that stops inside a member are errors: a
//! training run on half a shard must not look like one on a whole shard.

mod header;
mod index;
mod pax;
mod samples;
mod scanner;

pub use index::{MemberLocation, TarIndex, TarIndexBuilder, TarIndexLimits};
pub use samples::TarSamples;
pub use scanner::{EXTENSION_BYTES_MAX, TarScanner, Want};

/// Headers and contents are laid out in blocks of this size.
pub const BLOCK_BYTES: u64 = 512;

/// Returns how long the file is whose header this block is; `None` if it is none.
pub(crate) fn member_bytes(block: &[u8]) -> Option<u64> {
    match header::parse(block.first_chunk()?, 0).ok()? {
        header::ParsedBlock::Header(header) => Some(header.size),
        _ => None,
    }
}

/// One member, in the order of the archive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// Its path as the archive has it: any bytes, mostly UTF-8.
    pub name: Vec<u8>,
    /// Its kind.
    pub kind: MemberKind,
    /// Offset of its first header block (an extension header, if it has one).
    pub header_offset: u64,
    /// Offset of its first byte in the archive.
    pub offset: u64,
    /// Its bytes there.
    pub bytes: u64,
}

/// Kind of a member.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MemberKind {
    /// A file: its bytes lie at its place.
    File,
    /// Another name of an earlier member; it has no bytes of its own.
    HardLink {
        /// The name of that member.
        target: Vec<u8>,
    },
    /// A file with holes: what lies at its place is not its content but a map and pieces.
    Sparse,
    /// A folder.
    Folder,
    /// A symbolic link, device, pipe, volume label …
    Other,
}
