//! Parts that are stored as their difference from a part of an earlier step.
//!
//! An encoded extent names its base, which may be encoded too: the whole chain stands in the manifest, so
//! that a reader needs no other manifest and a chain cannot go in a circle. `Extent::range` is then what lies
//! in the file; [`Extent::bytes`], digest and checksums stay those of the bytes that come out.

use serde::{Deserialize, Serialize};

use super::Extent;

/// Encoded extents in a chain; the one below them is plain.
pub const DEPTH_MAX: usize = 4;

/// Recipe that makes the bytes of an extent from what lies in its file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Encoding {
    /// Kind of encoding.
    pub kind: EncodingKind,
    /// Bytes that come out.
    pub bytes: u64,
    /// Bytes of an element, by which bytes are grouped: 1, 2, 4 or 8.
    pub element_bytes: u8,
    /// Base that they differ from: as many bytes.
    pub base: Extent,
}

/// Ways of encoding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum EncodingKind {
    /// Exclusive or with the base, bytes of elements grouped, zstd; in frames of 1 MiB.
    #[serde(rename = "xor-group-zstd")]
    XorGroupZstd,
    /// One that this version does not know.
    #[serde(other, rename = "unknown")]
    Unknown,
}

impl Extent {
    /// Returns how many bytes it stands for.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        let stored_bytes = self.stored_bytes();
        self.encoding
            .as_ref()
            .map_or(stored_bytes, |encoding| encoding.bytes)
    }

    /// Returns how many bytes lie in the file.
    #[must_use]
    pub fn stored_bytes(&self) -> u64 {
        self.range[1].saturating_sub(self.range[0])
    }

    /// This extent, its base, the base of that, to the plain one.
    pub fn chain(&self) -> impl Iterator<Item = &Self> {
        std::iter::successors(Some(self), |extent| {
            extent.encoding.as_ref().map(|encoding| &encoding.base)
        })
    }

    /// Returns how many encoded extents there are from this one down.
    #[must_use]
    pub fn depth(&self) -> usize {
        self.chain().count() - 1
    }

    /// Bytes that have to be read to have all of it.
    #[must_use]
    pub fn chain_bytes(&self) -> u64 {
        self.chain().map(Self::stored_bytes).sum()
    }

    /// The same with other indexes of files and tables, along the whole chain: for a document with other
    /// lists.
    #[must_use]
    pub fn mapped(&self, file: &mut dyn FnMut(u32) -> u32, table: &mut dyn FnMut(u32) -> u32) -> Self {
        let encoding = self.encoding.as_ref().map(|encoding| {
            Box::new(Encoding {
                base: encoding.base.mapped(file, table),
                ..Encoding::clone(encoding)
            })
        });
        Self {
            file: file(self.file),
            table: table(self.table),
            encoding,
            ..self.clone()
        }
    }
}
