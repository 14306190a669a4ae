//! What must hold in a document before anything in it is used.

use std::collections::BTreeSet;

use forebay_core::{Error, Kind, Result};

use super::{
    Content, DEPTH_MAX, DataFile, Encoding, EncodingKind, Extent, Manifest, Part, TENSORS_MAX, Tensor,
};
use crate::shape::{DIMENSIONS_MAX, NUMBER_MAX, TensorBox, elements};
use crate::{delta, names};

const DIGEST_DIGITS: usize = 64;

impl Manifest {
    /// Checks everything that can be checked without reading data.
    pub(super) fn check(&self) -> Result<()> {
        if !names::is_attempt(&self.attempt) || self.generation == 0 || self.world_size == 0 {
            return Err(Error::new(
                Kind::Corrupt,
                "a manifest has no attempt, generation or size of its world",
            ));
        }
        self.content.check()?;
        for (name, tensor) in &self.content.tensors {
            check_cover(tensor).map_err(|error| error.with("tensor", name))?;
        }
        Ok(())
    }
}

impl Content {
    /// Checks every path, range, shape and digest.
    pub(super) fn check(&self) -> Result<()> {
        if self.tensors.len() > TENSORS_MAX {
            return Err(Error::new(
                Kind::Corrupt,
                "a checkpoint has more tensors than this version takes",
            ));
        }
        let mut paths = BTreeSet::new();
        for file in &self.files {
            check_file(file)?;
            if !paths.insert(&file.path) {
                return Err(Error::new(Kind::Corrupt, "a file is named twice").with("path", &file.path));
            }
        }
        for table in &self.tables {
            names::checked_path(&table.path)?;
            check_digest(&table.blake3)?;
        }
        for (name, tensor) in &self.tensors {
            self.check_tensor(tensor)
                .map_err(|error| error.with("tensor", name))?;
        }
        for (name, objects) in &self.objects {
            for object in objects {
                self.check_object(&object.bytes)
                    .map_err(|error| error.with("object", name))?;
            }
        }
        Ok(())
    }

    fn check_tensor(&self, tensor: &Tensor) -> Result<()> {
        if tensor.shape.len() > DIMENSIONS_MAX {
            return Err(Error::new(
                Kind::Corrupt,
                "a tensor has more dimensions than this version takes",
            ));
        }
        elements(&tensor.shape)?;
        for part in &tensor.parts {
            self.check_part(tensor, part)?;
        }
        Ok(())
    }

    fn check_part(&self, tensor: &Tensor, part: &Part) -> Result<()> {
        part.at.check_within(&tensor.shape)?;
        self.check_chain(&part.bytes)?;
        let bytes = part.at.elements()?.checked_mul(tensor.dtype.bytes());
        if bytes != Some(part.bytes.bytes()) {
            return Err(Error::new(
                Kind::Corrupt,
                "a part has another size than its shape says",
            ));
        }
        if let Some(sha256) = &part.sha256 {
            check_digest(sha256)?;
        }
        Ok(())
    }

    fn check_object(&self, extent: &Extent) -> Result<()> {
        if extent.encoding.is_some() {
            return Err(Error::new(
                Kind::Corrupt,
                "an object is encoded; only parts of tensors can be",
            ));
        }
        self.check_extent(extent)
    }

    /// Every extent from this one down to the plain one.
    fn check_chain(&self, extent: &Extent) -> Result<()> {
        for (depth, extent) in extent.chain().enumerate() {
            self.check_extent(extent)?;
            let Some(encoding) = &extent.encoding else {
                continue;
            };
            if depth >= DEPTH_MAX {
                let error = Error::new(
                    Kind::Corrupt,
                    "a part is encoded more times over than this version takes",
                );
                return Err(error.with("depth_max", DEPTH_MAX));
            }
            check_encoding(extent, encoding)?;
            if self
                .files
                .get(extent.file as usize)
                .is_some_and(|file| file.data_start > 0)
            {
                let error = Error::new(Kind::Corrupt, "an encoded part lies in a safetensors file");
                return Err(error.with("file", extent.file));
            }
        }
        Ok(())
    }

    fn check_extent(&self, extent: &Extent) -> Result<()> {
        let wrong = |message: &'static str| Err(Error::new(Kind::Corrupt, message).with("file", extent.file));
        let Some(file) = self.files.get(extent.file as usize) else {
            return wrong("a part lies in a file that is not listed");
        };
        let [first, end] = extent.range;
        if first > end || end > file.bytes || first < file.data_start {
            return wrong("a part lies outside of its file");
        }
        if extent.table as usize >= self.tables.len() || extent.first_block > NUMBER_MAX {
            return wrong("a part points to a side table that is not listed");
        }
        check_digest(&extent.blake3)
    }
}

/// What is claimed to come out, against what lies there and against the base.
fn check_encoding(extent: &Extent, encoding: &Encoding) -> Result<()> {
    if encoding.kind == EncodingKind::Unknown {
        let message = "a part is encoded in a way that this version does not know; update forebay to read it";
        return Err(Error::new(Kind::Unsupported, message));
    }
    let wrong = |message: &'static str| Err(Error::new(Kind::Corrupt, message).with("file", extent.file));
    let element_bytes = u64::from(encoding.element_bytes);
    if !matches!(element_bytes, 1 | 2 | 4 | 8) || !encoding.bytes.is_multiple_of(element_bytes) {
        return wrong("an encoded part has elements of an impossible size");
    }
    let stored_bytes = extent.stored_bytes();
    let frames = delta::frames(encoding.bytes);
    if encoding.bytes > NUMBER_MAX || stored_bytes < frames || stored_bytes > encoding.bytes || frames == 0 {
        return wrong("an encoded part claims another size than its frames can have");
    }
    if encoding.base.bytes() != encoding.bytes {
        return wrong("an encoded part has another size than its base");
    }
    Ok(())
}

fn check_file(file: &DataFile) -> Result<()> {
    names::checked_path(&file.path)?;
    if file.bytes > NUMBER_MAX || file.data_start > file.bytes {
        return Err(Error::new(Kind::Corrupt, "a file has an impossible size").with("path", &file.path));
    }
    if file.data_start > 0 {
        check_digest(&file.header_blake3)?;
    }
    Ok(())
}

fn check_digest(digest: &str) -> Result<()> {
    let is_hex = |c: u8| c.is_ascii_digit() || (b'a'..=b'f').contains(&c);
    if digest.len() == DIGEST_DIGITS && digest.bytes().all(is_hex) {
        return Ok(());
    }
    Err(Error::new(Kind::Corrupt, "a digest is not 64 hexadecimal digits"))
}

/// The parts cover the tensor: as many elements as it has, and no two share one.
///
/// Sorted along the dimension that has been cut most, only parts that meet there have to be compared, so that thousands of parts stay cheap.
pub(super) fn check_cover(tensor: &Tensor) -> Result<()> {
    let whole = elements(&tensor.shape)?;
    let mut covered = 0u64;
    let mut parts: Vec<_> = tensor
        .parts
        .iter()
        .map(|part| &part.at)
        .filter(|at| !at.shape.contains(&0))
        .collect();
    let along = most_cut(&parts, tensor.shape.len());
    parts.sort_by_key(|at| at.offset.get(along));
    for (number, part) in parts.iter().enumerate() {
        covered = covered.saturating_add(part.elements()?);
        let meets = |later: &&&TensorBox| along >= part.offset.len() || meet(part, later, along);
        for later in parts[number + 1..].iter().take_while(meets) {
            if (0..part.offset.len()).all(|dimension| meet(part, later, dimension)) {
                let error = Error::new(Kind::Corrupt, "two parts of a tensor overlap");
                return Err(error.with("offset", format!("{:?}", later.offset)));
            }
        }
    }
    if covered == whole {
        return Ok(());
    }
    let message = "parts of a tensor are missing: a rank did not save its share, or declared another shape";
    Err(Error::new(Kind::Corrupt, message)
        .with("elements", whole)
        .with("found", covered))
}

/// The dimension in which parts begin at the most places.
fn most_cut(parts: &[&TensorBox], dimensions: usize) -> usize {
    let places = |dimension: &usize| {
        let mut offsets: Vec<u64> = parts.iter().map(|at| at.offset[*dimension]).collect();
        offsets.sort_unstable();
        offsets.dedup();
        offsets.len()
    };
    (0..dimensions).max_by_key(places).unwrap_or(0)
}

/// Whether two boxes share a place in this dimension.
fn meet(a: &TensorBox, b: &TensorBox, dimension: usize) -> bool {
    let end = |at: &TensorBox| at.offset[dimension] + at.shape[dimension];
    a.offset[dimension] < end(b) && b.offset[dimension] < end(a)
}
