//! Context of long work: the interrupt that ends it, and the callback that hears of its progress.

use std::sync::atomic::{AtomicU64, Ordering};

use forebay_client::Interrupt;
use forebay_core::Result;
use forebay_loader::{Dataset, DatasetOptions};

use crate::folder::Folder;

/// Stage of long work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// Reads shards to index them.
    Indexing,
    /// Writes shards.
    Packing,
    /// Reads objects to hash them.
    Hashing,
}

impl Stage {
    /// The word for people.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Indexing => "indexing",
            Self::Packing => "packing",
            Self::Hashing => "hashing",
        }
    }
}

/// Progress of a stage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// The stage that is under way.
    pub stage: Stage,
    /// Bytes that are done.
    pub bytes_done: u64,
    /// Bytes of the whole stage.
    pub bytes_total: u64,
}

/// Callback that hears of progress, from any thread of the work.
pub type OnProgress<'a> = &'a (dyn Fn(Progress) + Sync);

/// Context of long work. The default is not interrupted by itself and tells nobody.
#[derive(Clone, Default)]
pub struct Work<'a> {
    /// Asked now and then; `true` ends the work with `Cancelled`. The client's own interrupt does so too.
    pub interrupt: Option<Interrupt>,
    /// Hears of progress.
    pub on_progress: Option<OnProgress<'a>>,
}

impl Work<'_> {
    pub(crate) fn is_interrupted(&self) -> bool {
        self.interrupt.as_ref().is_some_and(|interrupt| interrupt())
    }

    /// Begins a stage with so many bytes, some of which are done.
    pub(crate) fn stage(&self, stage: Stage, bytes_done: u64, bytes_total: u64) -> StageProgress<'_> {
        let progress = StageProgress {
            stage,
            bytes_done: AtomicU64::new(bytes_done),
            bytes_total,
            on_progress: self.on_progress,
        };
        progress.advance(0);
        progress
    }

    /// Opens the dataset in a folder, indexed now if it has to be.
    pub(crate) fn dataset(&self, folder: &Folder, options: DatasetOptions) -> Result<Dataset> {
        let tell = |progress: forebay_loader::Progress| {
            if let Some(on_progress) = self.on_progress {
                on_progress(Progress {
                    stage: Stage::Indexing,
                    bytes_done: progress.bytes_done,
                    bytes_total: progress.bytes_total,
                });
            }
        };
        let options = DatasetOptions {
            interrupt: self.interrupt.clone(),
            ..options
        };
        Dataset::open(&folder.client, &[folder.url()], options, Some(&tell))
    }
}

/// Progress of one stage, which several threads add to.
pub(crate) struct StageProgress<'a> {
    stage: Stage,
    bytes_done: AtomicU64,
    bytes_total: u64,
    on_progress: Option<OnProgress<'a>>,
}

impl StageProgress<'_> {
    pub(crate) fn advance(&self, bytes: u64) {
        let bytes_done = self.bytes_done.fetch_add(bytes, Ordering::Relaxed) + bytes;
        if let Some(on_progress) = self.on_progress {
            on_progress(Progress {
                stage: self.stage,
                bytes_done,
                bytes_total: self.bytes_total,
            });
        }
    }
}
