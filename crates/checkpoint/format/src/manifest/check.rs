//! Checks of a document before anything in it is used.

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
        let weights = Weights::new(&self.digest);
        for (name, tensor) in &self.content.tensors {
            check_cover(tensor, &weights).map_err(|error| error.with("tensor", name))?;
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

/// Returns what is claimed to come out, against what lies there and against the base.
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
/// Thousands of parts, cut in any way, must not be compared one with the other. So every place of every
/// dimension gets a weight that nobody can choose ([`Weights`]), and a box weighs the product of its sides.
/// Parts that lie side by side weigh together what the whole does; where they do not, that comes about by
/// chance once in 2^57.
pub(super) fn check_cover(tensor: &Tensor, weights: &Weights) -> Result<()> {
    let whole = elements(&tensor.shape)?;
    let mut covered = 0u64;
    for part in &tensor.parts {
        covered = covered.saturating_add(part.at.elements()?);
    }
    if covered != whole {
        let message = "parts of a tensor are missing or overlap: a rank did not save its share, or declared another shape";
        return Err(Error::new(Kind::Corrupt, message)
            .with("elements", whole)
            .with("found", covered));
    }
    // A dimension that no part cuts has the same share in every weight.
    let is_cut = |dimension: &usize| {
        let mut parts = tensor.parts.iter().map(|part| &part.at);
        parts.any(|at| at.shape[*dimension] != tensor.shape[*dimension])
    };
    let cut: Vec<usize> = (0..tensor.shape.len()).filter(is_cut).collect();
    let parts = tensor.parts.iter().map(|part| weights.of(&cut, &part.at));
    let together = parts.fold(0, |sum, weight| (sum + weight) % PRIME);
    if whole == 0 || together == weights.of(&cut, &TensorBox::whole(&tensor.shape)) {
        return Ok(());
    }
    let message = "two parts of a tensor overlap, and some of it is missing";
    Err(Error::new(Kind::Corrupt, message).with("parts", tensor.parts.len()))
}

/// Numbers below this are a field: a product is zero only if a factor is.
const PRIME: u64 = (1 << 61) - 1;

/// The weight of every place in every dimension, fixed by the document itself: another choice of places has
/// other weights, so none can be made to fit.
pub(super) struct Weights {
    key: [u8; 32],
}

impl Weights {
    pub(super) fn new(digest: &str) -> Self {
        Self {
            key: *blake3::hash(digest.as_bytes()).as_bytes(),
        }
    }

    /// Returns what a box weighs in these dimensions.
    fn of(&self, dimensions: &[usize], at: &TensorBox) -> u64 {
        dimensions.iter().fold(1, |product, dimension| {
            let first = at.offset[*dimension];
            let end = self.place(*dimension, first + at.shape[*dimension]);
            let side = end + PRIME - self.place(*dimension, first);
            (u128::from(product) * u128::from(side) % u128::from(PRIME)) as u64
        })
    }

    fn place(&self, dimension: usize, place: u64) -> u64 {
        let mut named = [dimension as u8; 9];
        named[1..].copy_from_slice(&place.to_le_bytes());
        let hash = blake3::keyed_hash(&self.key, &named);
        let (front, _) = hash.as_bytes().split_at(8);
        front
            .iter()
            .fold(0, |number, byte| number << 8 | u64::from(*byte))
            % PRIME
    }
}
