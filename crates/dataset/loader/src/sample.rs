//! A sample as it is handed over: its fields as parts of memory.
//!
//! The bytes of plain shards lie where the node keeps them; a view holds its lease until the last field that
//! looks at it is gone. What had to be decoded or decompressed first (rows of Parquet, shards that are
//! compressed as a whole) lies on the heap of this process and is shared the same way. Samples that lie side
//! by side may share memory. Everything here is cheap to clone and may go to other threads.

use std::fmt;
use std::ops::{Deref, Range};
use std::sync::Arc;

use forebay_client::View;

/// One sample.
#[derive(Debug, Clone)]
pub struct SampleBytes {
    /// The dataset of a mix that it is from; 0 if there is one.
    pub source: usize,
    /// Its number in the dataset.
    pub number: u64,
    /// The shard that it lies in, as `bucket/key`; of raw files the object itself.
    pub shard: Arc<str>,
    /// Its key, if its format has one.
    pub key: Option<Box<[u8]>>,
    /// Its fields, in the order of the shard.
    pub fields: Vec<FieldBytes>,
    /// Seed of random transforms: of a loader a number for its position in the epoch; `None` if it was
    /// asked for by number.
    pub sample_seed: Option<u64>,
}

impl SampleBytes {
    /// The field of this name.
    #[must_use]
    pub fn field(&self, name: &str) -> Option<&FieldBytes> {
        self.fields.iter().find(|field| *field.name == *name)
    }

    /// All bytes of all fields together.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.fields.iter().map(|field| field.len() as u64).sum()
    }
}

/// Owner of the bytes of a field.
#[derive(Clone)]
pub enum Memory {
    /// A lease of the node.
    View(View),
    /// Memory of this process.
    Heap(Arc<dyn AsRef<[u8]> + Send + Sync>),
}

impl Deref for Memory {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::View(view) => view,
            Self::Heap(bytes) => (**bytes).as_ref(),
        }
    }
}

/// One field of a sample. Reads as a slice.
#[derive(Clone)]
pub struct FieldBytes {
    name: Arc<str>,
    /// `None`: it is empty.
    memory: Option<Memory>,
    /// Inside of the memory.
    range: Range<usize>,
    is_null: bool,
}

impl FieldBytes {
    /// `range` must lie inside of the memory.
    pub(crate) fn new(name: Arc<str>, memory: Option<Memory>, range: Range<usize>) -> Self {
        Self {
            name,
            memory,
            range,
            is_null: false,
        }
    }

    /// A field that its format says is null.
    pub(crate) fn null(name: Arc<str>) -> Self {
        Self {
            name,
            memory: None,
            range: 0..0,
            is_null: true,
        }
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &Arc<str> {
        &self.name
    }

    /// Returns whether it is there as a null of its format, which is not the same as empty.
    #[must_use]
    pub fn is_null(&self) -> bool {
        self.is_null
    }

    /// Returns what holds its bytes; `None` if it is empty.
    #[must_use]
    pub fn memory(&self) -> Option<&Memory> {
        self.memory.as_ref()
    }

    /// Returns which bytes of the memory it is.
    #[must_use]
    pub fn range(&self) -> Range<usize> {
        self.range.clone()
    }
}

impl Deref for FieldBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        let bytes = self.memory.as_deref().unwrap_or_default();
        bytes.get(self.range.clone()).unwrap_or_default()
    }
}

impl fmt::Debug for FieldBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FieldBytes")
            .field("name", &self.name)
            .field("bytes", &self.len())
            .finish_non_exhaustive()
    }
}
