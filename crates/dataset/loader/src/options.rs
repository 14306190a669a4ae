//! Options of a loader.

use std::sync::Arc;

use forebay_client::Interrupt;
use forebay_core::{Error, Kind, Result};
use forebay_dataset::order::{OrderOptions, Ranks, Shuffle, Subset, Tail, Take};

use crate::decoding::FieldDecoder;

/// The window of a shuffle unless said otherwise: what the prefetcher reads two of ahead.
pub const WINDOW_BYTES_DEFAULT: u64 = 128 << 20;

/// Policy for a sample that cannot be used: damaged, cut off, or gone from the lake. What is not the
/// sample's fault (a lake that does not answer, a shard that was replaced) is always raised.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OnError {
    /// The batch fails. Asking again tries the same batch again.
    #[default]
    Raise,
    /// It is left out: that batch is shorter, the number of steps stays. No batch is empty: one of which
    /// every sample is bad has a substitute for the first.
    Skip,
    /// The next good sample of its window takes its place, the same one on every rank and in every run; it
    /// comes twice in that epoch.
    Substitute,
}

/// Limit of the read-ahead, besides the batches that are ready.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Prefetch {
    /// Two windows, at most a quarter of the node's RAM; off for a remote node, where it would cost the
    /// network twice.
    #[default]
    Auto,
    /// Nothing.
    Off,
    /// Whole windows, as many as fit into so many bytes. Should fit into a part of the node's RAM.
    Bytes(u64),
}

/// Options of a loader.
#[derive(Clone)]
pub struct LoaderOptions {
    /// Samples of a batch of this rank.
    pub batch_size: u64,
    /// Shuffle of an epoch, and its window.
    pub shuffle: Shuffle,
    /// Another seed, another order.
    pub seed: u64,
    /// Share of the dataset that an epoch takes.
    pub take: Take,
    /// Only these samples, if given; for one dataset.
    pub subset: Option<Arc<Subset>>,
    /// This rank, from 0.
    pub rank: u64,
    /// Number of ranks.
    pub world_size: u64,
    /// Policy for the samples at the end that do not fill a step of all ranks.
    pub tail: Tail,
    /// The first epoch.
    pub epoch: u64,
    /// Policy for bad samples.
    pub on_error: OnError,
    /// Limit of the read-ahead.
    pub prefetch: Prefetch,
    /// Fields that are decoded before a batch is handed over, and how.
    pub decode: Vec<FieldDecoder>,
    /// Threads that decode, where a field takes long (images, JSON).
    pub decode_threads: usize,
    /// Threads that read batches.
    pub fetch_threads: usize,
    /// Batches that are ready or under way, at most.
    pub batches_ahead: usize,
    /// Bytes of batches that are ready; no further batch is begun above.
    pub ready_bytes_max: u64,
    /// Asked about every 100 ms while a batch is waited for; `true` ends the call with `Cancelled`.
    pub interrupt: Option<Interrupt>,
}

impl Default for LoaderOptions {
    fn default() -> Self {
        Self {
            batch_size: 1,
            shuffle: Shuffle::None,
            seed: 0,
            take: Take::All,
            subset: None,
            rank: 0,
            world_size: 1,
            tail: Tail::Drop,
            epoch: 0,
            on_error: OnError::Raise,
            prefetch: Prefetch::Auto,
            decode: Vec::new(),
            decode_threads: std::thread::available_parallelism().map_or(2, |cores| cores.get().min(8)),
            fetch_threads: 2,
            batches_ahead: 4,
            ready_bytes_max: 256 << 20,
            interrupt: None,
        }
    }
}

impl LoaderOptions {
    pub(crate) fn check(&self) -> Result<()> {
        let wrong = |message: &str| Err(Error::new(Kind::InvalidInput, message));
        if !(1..=64).contains(&self.fetch_threads) {
            return wrong("a loader has between 1 and 64 threads that read batches");
        }
        if !(1..=256).contains(&self.decode_threads) {
            return wrong("a loader has between 1 and 256 threads that decode");
        }
        if !(1..=4096).contains(&self.batches_ahead) {
            return wrong("a loader has between 1 and 4096 batches ahead");
        }
        Ok(())
    }

    pub(crate) fn order(&self) -> OrderOptions {
        OrderOptions {
            seed: self.seed,
            shuffle: self.shuffle,
            take: self.take,
        }
    }

    pub(crate) fn ranks(&self) -> Ranks {
        Ranks {
            rank: self.rank,
            world: self.world_size,
            batch: self.batch_size,
            tail: self.tail,
        }
    }
}

impl std::fmt::Debug for LoaderOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LoaderOptions")
            .field("batch_size", &self.batch_size)
            .field("shuffle", &self.shuffle)
            .field("seed", &self.seed)
            .field("rank", &self.rank)
            .field("world_size", &self.world_size)
            .finish_non_exhaustive()
    }
}
