//! Tar archives: which members there are and where their bytes lie.
//!
//! Understood are the formats that people's shards are in: V7, ustar, PAX (`x` and `g` headers) and GNU (long names, long
//! links, sizes in base 256). The checksum of every header is checked. Compressed archives have no places to point at and are
//! refused by name. `header.rs` reads one block, `pax.rs` the records of PAX headers, `scanner.rs` puts them together while bytes
//! come in, `index.rs` keeps what was found, `samples.rs` groups members into samples.
//!
//! The archive ends at the first block of zeros, as for Python's `tarfile` and thus for WebDataset; what lies behind it (padding, a
//! second archive) is not looked at. An archive that just stops between two members is taken as it is; one that stops inside a
//! member is an error, because a training run on half a shard should not look like one on a whole shard.

mod header;
mod index;
mod pax;
mod samples;
mod scanner;

pub use index::{Place, TarIndex, TarIndexBuilder, TarIndexLimits};
pub use samples::TarSamples;
pub use scanner::{EXTENSION_BYTES_MAX, TarScanner, Want};

/// Headers and contents are laid out in blocks of this size.
pub const BLOCK_BYTES: u64 = 512;

/// How long the file is whose header this block is; `None` if it is none.
pub(crate) fn member_bytes(block: &[u8]) -> Option<u64> {
    match header::parse(block.first_chunk()?, 0).ok()? {
        header::Parsed::Header(header) => Some(header.size),
        _ => None,
    }
}

/// One member, in the order of the archive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// Its path as the archive has it: any bytes, mostly UTF-8.
    pub name: Vec<u8>,
    /// What it is.
    pub kind: MemberKind,
    /// Offset of its first header block (an extension header, if it has one).
    pub header_offset: u64,
    /// Offset of its first byte in the archive.
    pub offset: u64,
    /// How many bytes it has there.
    pub bytes: u64,
}

/// What a member is.
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
