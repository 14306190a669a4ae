//! Difference between two steps: tensors added, removed, changed, and by how much.
//!
//! Parts with the same box and the same digest are equal and not read. What is left is loaded from both
//! steps, a stretch at a time, so that memory stays small, and compared element by element in its own type.

use std::collections::BTreeSet;

use forebay_checkpoint::diff::Difference;
use forebay_checkpoint::manifest::Tensor;
use forebay_checkpoint::{Dtype, TensorBox, plan};
use forebay_core::Result;
use parking_lot::Mutex;

use crate::parallel;
use crate::read::Want;
use crate::step::Step;
use crate::view::memory;

/// Bytes of each step that are compared at a time.
const STRETCH_BYTES: u64 = 8 << 20;

/// Difference between two steps.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Compared {
    /// Tensors that only the second has.
    pub added: Vec<String>,
    /// Tensors that only the first has.
    pub removed: Vec<String>,
    /// Tensors that both have, and that differ.
    pub changed: Vec<Changed>,
    /// Tensors that are the same.
    pub same: u64,
    /// Objects that differ, or that only one has.
    pub objects: Vec<String>,
}

/// A tensor that differs.
#[derive(Debug, Clone, PartialEq)]
pub struct Changed {
    /// Its name.
    pub name: String,
    /// The change.
    pub change: Change,
}

/// Change of a tensor.
#[derive(Debug, Clone, PartialEq)]
pub enum Change {
    /// It has another type or shape.
    Form {
        /// Type and shape in the first.
        before: (Dtype, Vec<u64>),
        /// And in the second.
        after: (Dtype, Vec<u64>),
    },
    /// It has other values.
    Values(Difference),
}

/// A tensor whose values may differ, and the boxes that have to be looked at.
struct Doubt<'a> {
    name: &'a str,
    dtype: Dtype,
    elements: u64,
    boxes: Vec<TensorBox>,
}

impl Compared {
    /// Compares two steps; `progress` gets bytes of one of them as they are compared.
    pub fn of(before: &Step, after: &Step, threads: usize, progress: &(dyn Fn(u64) + Sync)) -> Result<Self> {
        let mut compared = Self::default();
        let tensors = (
            &before.manifest().content.tensors,
            &after.manifest().content.tensors,
        );
        compared.added = tensors
            .1
            .keys()
            .filter(|name| !tensors.0.contains_key(*name))
            .cloned()
            .collect();
        let mut doubts = Vec::new();
        for (name, first) in tensors.0 {
            let Some(second) = tensors.1.get(name) else {
                compared.removed.push(name.clone());
                continue;
            };
            if (first.dtype, &first.shape) != (second.dtype, &second.shape) {
                compared.changed.push(Changed {
                    name: name.clone(),
                    change: Change::Form {
                        before: (first.dtype, first.shape.clone()),
                        after: (second.dtype, second.shape.clone()),
                    },
                });
                continue;
            }
            match doubt(name, first, second)? {
                Some(doubt) => doubts.push(doubt),
                None => compared.same += 1,
            }
        }
        compared.objects = objects(before, after);
        let compared = Mutex::new(compared);
        parallel::each(Some(after.root.client()), doubts, threads, |doubt| {
            let difference = values(before, after, &doubt, progress)?;
            let mut compared = compared.lock();
            if difference.changed == 0 {
                compared.same += 1;
            } else {
                compared.changed.push(Changed {
                    name: doubt.name.to_owned(),
                    change: Change::Values(difference),
                });
            }
            Ok(())
        })?;
        let mut compared = compared.into_inner();
        compared.changed.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(compared)
    }

    /// Returns whether nothing differs.
    #[must_use]
    pub fn is_same(&self) -> bool {
        self.added.is_empty() && self.removed.is_empty() && self.changed.is_empty() && self.objects.is_empty()
    }
}

/// Returns what has to be read to know; `None` if digests say that all is the same.
fn doubt<'a>(name: &'a str, first: &Tensor, second: &Tensor) -> Result<Option<Doubt<'a>>> {
    let same: BTreeSet<_> = first
        .parts
        .iter()
        .map(|part| (&part.at, &part.bytes.blake3))
        .collect();
    let differ: Vec<&TensorBox> = second
        .parts
        .iter()
        .filter(|part| !same.contains(&(&part.at, &part.bytes.blake3)))
        .map(|part| &part.at)
        .collect();
    if differ.is_empty() {
        return Ok(None);
    }
    let element_bytes = first.dtype.bytes();
    Ok(Some(Doubt {
        name,
        dtype: first.dtype,
        elements: TensorBox::whole(&first.shape).elements()?,
        boxes: differ
            .into_iter()
            .flat_map(|at| plan::stretches(at, element_bytes, STRETCH_BYTES))
            .collect(),
    }))
}

fn values(
    before: &Step,
    after: &Step,
    doubt: &Doubt<'_>,
    progress: &(dyn Fn(u64) + Sync),
) -> Result<Difference> {
    let mut difference = Difference::default();
    for at in &doubt.boxes {
        let bytes = at.elements()?.saturating_mul(doubt.dtype.bytes());
        let (mut first, mut second) = (memory(bytes)?, memory(bytes)?);
        for (step, target) in [(before, &mut first), (after, &mut second)] {
            let want = Want {
                name: doubt.name,
                at: at.clone(),
                target,
            };
            step.load(&mut [want], 1)?;
        }
        difference.add(doubt.dtype, &first, &second);
        progress(bytes);
    }
    difference.elements = doubt.elements;
    Ok(difference)
}

/// Objects that are not the same on the same ranks.
fn objects(before: &Step, after: &Step) -> Vec<String> {
    let all = |step: &Step| -> BTreeSet<(String, u32, String)> {
        let objects = step.manifest().content.objects.iter();
        objects
            .flat_map(|(name, objects)| {
                objects.iter().flat_map(move |object| {
                    object
                        .ranks
                        .iter()
                        .map(move |rank| (name.clone(), *rank, object.bytes.blake3.clone()))
                })
            })
            .collect()
    };
    let (first, second) = (all(before), all(after));
    let names: BTreeSet<&String> = first
        .symmetric_difference(&second)
        .map(|(name, _, _)| name)
        .collect();
    names.into_iter().cloned().collect()
}
