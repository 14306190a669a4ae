//! Tensors where the node keeps them: mapped, proved once, not copied.
//!
//! For whoever reads and never writes, inference above all: any number of processes look at one copy. A
//! tensor that lies in one part is a view of it; one of several parts, one that is stored as a difference, or
//! of a remote node, is put together in memory of this process, and [`TensorView::is_mapped`] says so.

use std::fmt;
use std::ops::Deref;

use forebay_checkpoint::manifest::{Part, Tensor};
use forebay_checkpoint::plan;
use forebay_checkpoint::{Dtype, TensorBox};
use forebay_client::View;
use forebay_core::{Error, Kind, Result};

use crate::parallel;
use crate::read::{Proof, Want};
use crate::step::{Fetch, Step};
use crate::tables::{Proofs, crcs};

/// Bytes that one thread proves at a time.
const PROVE_BLOCKS: u64 = 64;
/// Tensors in one call.
const BATCH_TENSORS_MAX: usize = 256;

/// A tensor's bytes in C order, read-only. Clones share them.
#[derive(Clone)]
pub struct TensorView {
    /// Type of its elements.
    pub dtype: Dtype,
    /// Its shape.
    pub shape: Vec<u64>,
    bytes: ViewBytes,
}

#[derive(Clone)]
enum ViewBytes {
    Mapped(View),
    Own(std::sync::Arc<[u8]>),
}

impl TensorView {
    /// Returns whether the bytes are read where the node keeps them.
    #[must_use]
    pub fn is_mapped(&self) -> bool {
        matches!(&self.bytes, ViewBytes::Mapped(view) if view.is_mapped())
    }

    /// The view of the node's memory, if it is one.
    #[must_use]
    pub fn view(&self) -> Option<&View> {
        match &self.bytes {
            ViewBytes::Mapped(view) => Some(view),
            ViewBytes::Own(_) => None,
        }
    }
}

impl Deref for TensorView {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.bytes {
            ViewBytes::Mapped(view) => view,
            ViewBytes::Own(bytes) => bytes,
        }
    }
}

impl fmt::Debug for TensorView {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TensorView")
            .field("dtype", &self.dtype)
            .field("shape", &self.shape)
            .field("is_mapped", &self.is_mapped())
            .finish_non_exhaustive()
    }
}

impl Step {
    /// One tensor; see [`Step::views`].
    pub fn view(&self, name: &str) -> Result<TensorView> {
        let mut views = self.views(&[name], 1)?;
        views
            .pop()
            .ok_or_else(|| Error::new(Kind::Internal, "an answer without tensors"))
    }

    /// Tensors in this order, each proved now with `threads` threads, and mapped where they lie in one part.
    pub fn views(&self, names: &[&str], threads: usize) -> Result<Vec<TensorView>> {
        let mut views = Vec::with_capacity(names.len());
        for names in names.chunks(BATCH_TENSORS_MAX) {
            self.some_views(names, threads, &mut views)?;
        }
        Ok(views)
    }

    fn some_views(&self, names: &[&str], threads: usize, views: &mut Vec<TensorView>) -> Result<()> {
        let mut fetches = Vec::new();
        let mut extents = Vec::new();
        for name in names {
            if let Some(part) = mappable(self.tensor(name)?) {
                extents.push(&part.bytes);
                fetches.push(Fetch {
                    file: part.bytes.file,
                    range: part.bytes.range[0]..part.bytes.range[1],
                    for_name: name,
                });
            }
        }
        let proofs = self.proofs(extents.into_iter())?;
        let mut mapped = self.fetch(&fetches)?.into_iter();
        for name in names {
            let tensor = self.tensor(name)?;
            let bytes = match mappable(tensor) {
                Some(_) => ViewBytes::Mapped(
                    mapped
                        .next()
                        .ok_or_else(|| Error::new(Kind::Internal, "an answer without items"))?,
                ),
                None => ViewBytes::Own(self.whole_tensor(name, threads)?.into()),
            };
            views.push(TensorView {
                dtype: tensor.dtype,
                shape: tensor.shape.clone(),
                bytes,
            });
        }
        let first = views.len() - names.len();
        self.prove(names, &views[first..], &proofs, threads)
    }

    fn prove(&self, names: &[&str], views: &[TensorView], proofs: &Proofs, threads: usize) -> Result<()> {
        let mut stretches = Vec::new();
        for (name, view) in names.iter().zip(views) {
            let (ViewBytes::Mapped(view), [part]) = (&view.bytes, &self.tensor(name)?.parts[..]) else {
                continue;
            };
            let blocks = plan::blocks_of(&(0..part.bytes.bytes()));
            let starts = blocks.clone().step_by(PROVE_BLOCKS as usize);
            stretches.extend(
                starts.map(|first| (*name, part, view, first..(first + PROVE_BLOCKS).min(blocks.end))),
            );
        }
        parallel::each(
            Some(self.root.client()),
            stretches,
            threads,
            |(name, part, view, blocks)| {
                let proof = Proof {
                    step: self,
                    name,
                    extent: &part.bytes,
                    crcs: crcs(proofs, &part.bytes)?,
                };
                for block in blocks {
                    let range = plan::bytes_of(&(block..block + 1), part.bytes.bytes());
                    proof.compare(block, &view[range.start as usize..range.end as usize])?;
                }
                Ok(())
            },
        )
    }

    /// A tensor in memory of this process.
    pub fn whole_tensor(&self, name: &str, threads: usize) -> Result<Vec<u8>> {
        let tensor = self.tensor(name)?;
        let at = TensorBox::whole(&tensor.shape);
        let bytes = at.elements()?.saturating_mul(tensor.dtype.bytes());
        let mut target = memory(bytes)?;
        let want = Want {
            name,
            at,
            target: &mut target,
        };
        self.load(&mut [want], threads)?;
        Ok(target)
    }
}

/// The part that all of a tensor is, where it lies as it is.
fn mappable(tensor: &Tensor) -> Option<&Part> {
    match &tensor.parts[..] {
        [part] if part.bytes.bytes() > 0 && part.bytes.encoding.is_none() => Some(part),
        _ => None,
    }
}

/// So much memory, or an error: the size comes from a document.
pub(crate) fn memory(bytes: u64) -> Result<Vec<u8>> {
    let no_memory = || Error::new(Kind::NoSpace, "no memory for the tensor").with("bytes", bytes);
    let bytes = usize::try_from(bytes).map_err(|_| no_memory())?;
    let mut memory = Vec::new();
    memory
        .try_reserve_exact(bytes)
        .map_err(|why| no_memory().caused_by(why))?;
    memory.resize(bytes, 0);
    Ok(memory)
}
