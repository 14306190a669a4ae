//! A step as whole files: which tensor lies where in files that stock readers open, and which bytes of parts
//! make up a range of such a file. Pure.
//!
//! An export writes these files and the view of a step (docs/flows/step-view.md) answers reads of them, both
//! from this one layout, so they are the same byte for byte: tensors whole and in order of their names, files
//! of at most so many bytes named as Hugging Face has them, in each file wide types first so that everything
//! is aligned, and an index where there are several.

use std::collections::BTreeMap;
use std::ops::Range;

use forebay_core::{Error, Kind, Result};

use crate::manifest::Manifest;
use crate::safetensors::{self, Entry};
use crate::shape::TensorBox;
use crate::{Dtype, shape};

/// The index of several files.
pub const INDEX: &str = "model.safetensors.index.json";
/// Bytes of one file, if nobody says otherwise and no tensor is larger.
pub const FILE_BYTES_MAX: u64 = 5_000_000_000;

/// Layout of a step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// Only tensors whose names start so, without this; empty for all.
    pub prefix: String,
    /// Bytes of one file, if no tensor is larger.
    pub file_bytes_max: u64,
}

/// A file of whole tensors.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WholeFile {
    /// Its name.
    pub name: String,
    /// The bytes before its data.
    pub header: Vec<u8>,
    /// Content, one after the other.
    pub tensors: Vec<WholeTensor>,
    /// Its size.
    pub bytes: u64,
}

/// A tensor of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WholeTensor {
    /// Its name in the manifest.
    pub name: String,
    /// Its name in the file.
    pub called: String,
    /// Type of its elements.
    pub dtype: Dtype,
    /// All of it.
    pub whole: TensorBox,
    /// Its first byte in the file.
    pub first: u64,
    /// Bytes.
    pub bytes: u64,
}

/// The files of a step. `NotFound` if no tensor has a name that starts so.
pub fn files(manifest: &Manifest, options: &Options) -> Result<Vec<WholeFile>> {
    let mut tensors = Vec::new();
    for (name, tensor) in &manifest.content.tensors {
        let Some(called) = name.strip_prefix(&options.prefix) else {
            continue;
        };
        safetensors::check_name(called)?;
        let whole = TensorBox::whole(&tensor.shape);
        tensors.push(WholeTensor {
            name: name.clone(),
            called: called.to_owned(),
            dtype: tensor.dtype,
            bytes: whole.elements()?.saturating_mul(tensor.dtype.bytes()),
            whole,
            first: 0,
        });
    }
    if tensors.is_empty() {
        let message = "no tensor of the step has a name that starts so; forebay ckpt show lists the names";
        return Err(Error::new(Kind::NotFound, message).with("prefix", &options.prefix));
    }
    let groups = grouped(tensors, options.file_bytes_max);
    let count = groups.len();
    let name = |number: usize| match count {
        1 => "model.safetensors".to_owned(),
        _ => format!("model-{:05}-of-{count:05}.safetensors", number + 1),
    };
    let groups = groups.into_iter().enumerate();
    groups.map(|(number, group)| file(name(number), group)).collect()
}

/// The index of these files; `None` where one file needs none.
#[must_use]
pub fn index(files: &[WholeFile]) -> Option<String> {
    if files.len() < 2 {
        return None;
    }
    let mut weight_map = BTreeMap::new();
    let mut total_size = 0u64;
    for file in files {
        for tensor in &file.tensors {
            weight_map.insert(&tensor.called, &file.name);
            total_size = total_size.saturating_add(tensor.bytes);
        }
    }
    let index = serde_json::json!({ "metadata": { "total_size": total_size }, "weight_map": weight_map });
    Some(format!("{index:#}\n"))
}

/// Tensors in files of at most so many bytes, in order of names.
fn grouped(tensors: Vec<WholeTensor>, file_bytes_max: u64) -> Vec<Vec<WholeTensor>> {
    let mut groups: Vec<Vec<WholeTensor>> = Vec::new();
    let mut bytes = 0u64;
    for tensor in tensors {
        match groups.last_mut() {
            Some(group) if bytes.saturating_add(tensor.bytes) <= file_bytes_max => {
                bytes += tensor.bytes;
                group.push(tensor);
            }
            _ => {
                bytes = tensor.bytes;
                groups.push(vec![tensor]);
            }
        }
    }
    groups
}

fn file(name: String, mut tensors: Vec<WholeTensor>) -> Result<WholeFile> {
    // Wide types first: so everything is aligned, as stock writers have it.
    tensors.sort_by(|a, b| {
        let width = |tensor: &WholeTensor| std::cmp::Reverse(tensor.dtype.bytes());
        (width(a), &a.called).cmp(&(width(b), &b.called))
    });
    let entries: Vec<Entry<'_>> = tensors
        .iter()
        .map(|tensor| Entry {
            name: &tensor.called,
            dtype: tensor.dtype,
            at: &tensor.whole,
            bytes: tensor.bytes,
        })
        .collect();
    let header = safetensors::header(&entries)?;
    let mut bytes = header.len() as u64;
    for tensor in &mut tensors {
        tensor.first = bytes;
        bytes = bytes
            .checked_add(tensor.bytes)
            .filter(|bytes| *bytes <= shape::NUMBER_MAX)
            .ok_or_else(|| Error::new(Kind::InvalidInput, "the tensors are too large together"))?;
    }
    Ok(WholeFile {
        name,
        header,
        tensors,
        bytes,
    })
}

impl WholeFile {
    /// Tensors that have some of these bytes of the file.
    #[must_use]
    pub fn tensors_in(&self, range: &Range<u64>) -> &[WholeTensor] {
        let first = self
            .tensors
            .partition_point(|tensor| tensor.first + tensor.bytes <= range.start);
        let end = self.tensors.partition_point(|tensor| tensor.first < range.end);
        self.tensors.get(first..end.max(first)).unwrap_or_default()
    }
}

/// A part as it lies in its whole tensor, for who goes through the bytes of the tensor.
///
/// The elements of a part come in the same order in the tensor, so any stretch of the tensor needs one
/// stretch of the part, however it was cut.
#[derive(Debug, Clone, Copy)]
pub struct StridedPart<'a> {
    /// The tensor's shape.
    pub shape: &'a [u64],
    /// The part.
    pub part: &'a TensorBox,
    /// Bytes of one element.
    pub element_bytes: u64,
}

impl StridedPart<'_> {
    /// Bytes of the part that lie in these bytes of the tensor, whole elements.
    #[must_use]
    pub fn part_bytes(&self, tensor_bytes: &Range<u64>) -> Range<u64> {
        let first = self.before(tensor_bytes.start / self.element_bytes);
        let end = self.before(tensor_bytes.end.div_ceil(self.element_bytes));
        first * self.element_bytes..end.max(first) * self.element_bytes
    }

    /// Copies what `source` (bytes of the part from `part_first` on, whole elements) has of `tensor_bytes` to
    /// its place in `target`.
    pub fn scatter(&self, source: &[u8], part_first: u64, tensor_bytes: &Range<u64>, target: &mut [u8]) {
        let run = self.run_elements();
        let mut element = part_first / self.element_bytes;
        let end = element + source.len() as u64 / self.element_bytes;
        let mut from = 0u64;
        while element < end {
            let count = (run - element % run).min(end - element);
            let place = self.place(element) * self.element_bytes;
            let bytes = count * self.element_bytes;
            let wanted = place.max(tensor_bytes.start)..(place + bytes).min(tensor_bytes.end);
            if wanted.start < wanted.end {
                let length = (wanted.end - wanted.start) as usize;
                let to = (wanted.start - tensor_bytes.start) as usize;
                let at = (from + wanted.start - place) as usize;
                target[to..to + length].copy_from_slice(&source[at..at + length]);
            }
            from += bytes;
            element += count;
        }
    }

    /// Elements of the part that come before this element of the tensor.
    fn before(&self, index: u64) -> u64 {
        let mut inner_tensor: u64 = self.shape.iter().product();
        let mut inner_part: u64 = self.part.shape.iter().product();
        if index >= inner_tensor {
            return inner_part;
        }
        let (mut rest, mut before) = (index, 0);
        for dimension in 0..self.shape.len() {
            // Nothing is divided by zero: the index lies within, so no dimension is empty; an empty part has
            // nothing anyway.
            if inner_part == 0 {
                return 0;
            }
            inner_tensor /= self.shape[dimension];
            inner_part /= self.part.shape[dimension];
            let row = rest / inner_tensor;
            rest %= inner_tensor;
            let first = self.part.offset[dimension];
            if row < first {
                return before;
            }
            if row >= first + self.part.shape[dimension] {
                return before + self.part.shape[dimension] * inner_part;
            }
            before += (row - first) * inner_part;
        }
        before
    }

    /// Elements that lie together both in the part and in the tensor.
    fn run_elements(&self) -> u64 {
        let mut run = 1;
        for dimension in (0..self.shape.len()).rev() {
            run *= self.part.shape[dimension];
            if self.part.shape[dimension] != self.shape[dimension] {
                break;
            }
        }
        run.max(1)
    }

    /// Returns which element of the tensor an element of the part is.
    fn place(&self, element: u64) -> u64 {
        let (mut rest, mut place, mut stride) = (element, 0, 1);
        for dimension in (0..self.shape.len()).rev() {
            let size = self.part.shape[dimension].max(1);
            place += (self.part.offset[dimension] + rest % size) * stride;
            rest /= size;
            stride *= self.shape[dimension];
        }
        place
    }
}

#[cfg(test)]
mod tests;
