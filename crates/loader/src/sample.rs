//! A sample as it is handed over: its fields as parts of views.
//!
//! The bytes lie where the node keeps them; a view holds its lease until the last field that looks at it is gone. Samples that lie side by side
//! may share one view. Everything here is cheap to clone and may go to other threads.

use std::fmt;
use std::ops::{Deref, Range};
use std::sync::Arc;

use forebay_client::View;

/// One sample.
#[derive(Debug, Clone)]
pub struct SampleBytes {
    /// Which dataset of a mix it is from; 0 if there is one.
    pub source: usize,
    /// Its number in the dataset.
    pub number: u64,
    /// The shard that it lies in, as `bucket/key`; of raw files the object itself.
    pub shard: Arc<str>,
    /// Its key, if its format has one.
    pub key: Option<Box<[u8]>>,
    /// Its fields, in the order of the shard.
    pub fields: Vec<FieldBytes>,
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

/// One field of a sample. Reads as a slice.
#[derive(Clone)]
pub struct FieldBytes {
    name: Arc<str>,
    /// `None`: it is empty.
    view: Option<View>,
    /// Inside of the view.
    range: Range<usize>,
}

impl FieldBytes {
    /// `range` must lie inside of the view.
    pub(crate) fn new(name: Arc<str>, view: Option<View>, range: Range<usize>) -> Self {
        Self { name, view, range }
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &Arc<str> {
        &self.name
    }

    /// The view that it lies in, which holds the memory; `None` if it is empty.
    #[must_use]
    pub fn view(&self) -> Option<&View> {
        self.view.as_ref()
    }

    /// Which bytes of the view it is.
    #[must_use]
    pub fn range(&self) -> Range<usize> {
        self.range.clone()
    }
}

impl Deref for FieldBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        let bytes = self.view.as_deref().unwrap_or_default();
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
