//! A loader: batches of an epoch, in order, then the next epoch.
//!
//! [`Loader::next_batch`] gives a batch, or `None` at the end of an epoch; the call after that begins the
//! next one, which is being read by then. A loader counts what it has handed over, not what it has read
//! ahead: [`Loader::state`] after any batch resumes with the one after it, on any number of ranks
//! ([`Loader::resume`]). After an error it stands where it stood.
//!
//! Life cycle: `new` starts nothing; the first `next_batch` starts the threads (`pipeline.rs`); dropping the
//! loader, or setting it elsewhere, ends them. In a forked child the first call starts threads of its own.

use std::sync::Arc;
use std::time::Instant;

use forebay_client::LoaderReport;
use forebay_core::{Error, Kind, Result};
use forebay_dataset::order::{Mix, OrderOptions, OrderState, Plan, Split, Stop};

use crate::assemble::Batch;
use crate::dataset::{Dataset, Inner};
use crate::fetch::nanoseconds;
use crate::options::LoaderOptions;
use crate::pipeline::{Entry, Job, Next, Pipeline};
use crate::sampler::Sampler;
use crate::stats::{BatchStats, LoaderStats};
use crate::streams;

/// Places at which the mixing is measured at the end of an epoch; about a millisecond.
const MIXING_PAIRS: u64 = 1000;
/// Of fewer samples a median says nothing.
const MIXING_SAMPLES_MIN: u64 = 100;

/// Reads a dataset, or a mix of several, batch after batch.
pub struct Loader {
    sampler: Arc<Sampler>,
    datasets: Arc<[Arc<Inner>]>,
    options: LoaderOptions,
    /// Position of the consumer.
    epoch: u64,
    position: u64,
    /// The same before the last batch.
    before: (u64, u64),
    pipeline: Option<Pipeline>,
    stats: LoaderStats,
    /// The same when the epoch began.
    epoch_stats: LoaderStats,
    handed_over: Option<Instant>,
}

impl Dataset {
    /// A loader of this dataset.
    pub fn loader(&self, options: LoaderOptions) -> Result<Loader> {
        let order = streams::order(&self.0, options.order())?;
        let plan = match (&options.subset, self.subset()) {
            (Some(_), Some(_)) => {
                let message = "the dataset has a filter already; give the subset or the filter";
                return Err(Error::new(Kind::InvalidInput, message));
            }
            (Some(subset), None) => Plan::filtered(Arc::clone(self.shape()), Arc::clone(subset), order)?,
            (None, _) => self.plan(order)?,
        };
        Loader::new(Sampler::One(plan), vec![Arc::clone(&self.0)], options)
    }

    /// The order of what the filter leaves.
    fn plan(&self, order: OrderOptions) -> Result<Plan> {
        let shape = Arc::clone(self.shape());
        match self.subset() {
            Some(subset) => Plan::filtered(shape, Arc::clone(subset), order),
            None => Plan::new(shape, order),
        }
    }
}

impl Loader {
    /// A loader of several datasets, mixed by weights.
    ///
    /// Errors: `InvalidInput` if a weight is not above 0, a dataset is empty, or a subset is given.
    pub fn mix(datasets: &[(Dataset, f64)], stop: Stop, options: LoaderOptions) -> Result<Self> {
        if options.subset.is_some() {
            let message = "a subset is of one dataset; a mix of several cannot have one";
            return Err(Error::new(Kind::InvalidInput, message));
        }
        let plan = |(dataset, weight): &(Dataset, f64)| {
            let order = streams::order(&dataset.0, options.order())?;
            Ok((dataset.plan(order)?, *weight))
        };
        let plans = datasets.iter().map(plan).collect::<Result<Vec<_>>>()?;
        let mix = Mix::new(plans, options.seed, stop)?;
        let datasets = datasets
            .iter()
            .map(|(dataset, _)| Arc::clone(&dataset.0))
            .collect();
        Self::new(Sampler::Mix(Box::new(mix)), datasets, options)
    }

    fn new(sampler: Sampler, datasets: Vec<Arc<Inner>>, options: LoaderOptions) -> Result<Self> {
        options.check()?;
        Split::new(sampler.epoch_samples(), 0, options.ranks())?;
        Ok(Self {
            sampler: Arc::new(sampler),
            datasets: datasets.into(),
            epoch: options.epoch,
            position: 0,
            before: (options.epoch, 0),
            options,
            pipeline: None,
            stats: LoaderStats::default(),
            epoch_stats: LoaderStats::default(),
            handed_over: None,
        })
    }

    /// The next batch; `None` at the end of an epoch, after which the next epoch begins.
    ///
    /// Errors leave the loader where it was: asking again tries again. `Cancelled` if interrupted.
    pub fn next_batch(&mut self) -> Result<Option<Batch>> {
        let user_ns = self.handed_over.map_or(0, |then| nanoseconds(then.elapsed()));
        // Threads do not come along with a fork.
        drop(self.pipeline.take_if(|pipeline| !pipeline.is_own()));
        let pipeline = match &mut self.pipeline {
            Some(pipeline) => pipeline,
            none => none.insert(Pipeline::start(Job {
                sampler: Arc::clone(&self.sampler),
                datasets: Arc::clone(&self.datasets),
                options: self.options.clone(),
                epoch: self.epoch,
                position: self.position,
            })?),
        };
        let Next {
            entry,
            wait_ns,
            was_ready,
        } = pipeline.next(self.options.interrupt.as_ref())?;
        let batch = match entry {
            Ok(Entry::Batch(batch)) => Some(batch),
            Ok(Entry::End(_)) => None,
            Err(error) => {
                self.stop();
                return Err(error);
            }
        };
        let Some(mut batch) = batch else {
            self.end_epoch();
            return Ok(None);
        };
        batch.stats.user_ns = user_ns;
        batch.stats.waited(wait_ns, was_ready);
        self.before = (self.epoch, self.position);
        (self.epoch, self.position) = (batch.epoch, batch.position_after);
        self.stats.count(
            &batch.stats,
            batch.samples.len() as u64,
            batch.bytes(),
            &batch.bad,
        );
        pipeline.count(&report_of(&batch));
        self.handed_over = Some(Instant::now());
        Ok(Some(*batch))
    }

    fn end_epoch(&mut self) {
        let stats = self.stats();
        let before = std::mem::replace(&mut self.epoch_stats, stats.clone());
        let ms = |now: u64, then: u64| (now - then) / 1_000_000;
        tracing::info!(
            epoch = self.epoch,
            batches = stats.batches - before.batches,
            samples = stats.samples - before.samples,
            bytes = stats.bytes - before.bytes,
            lake_bytes =
                stats.sources.lake + stats.prefetched.lake - before.sources.lake - before.prefetched.lake,
            stall_lake_ms = ms(stats.stall.lake_ns, before.stall.lake_ns),
            stall_cache_ms = ms(stats.stall.cache_ns, before.stall.cache_ns),
            stall_check_ms = ms(stats.stall.check_ns, before.stall.check_ns),
            stall_decode_ms = ms(stats.stall.decode_ns, before.stall.decode_ns),
            hand_over_ms = ms(stats.hand_over_ns, before.hand_over_ns),
            user_ms = ms(stats.user_ns, before.user_ns),
            bad_samples = stats.bad_samples - before.bad_samples,
            mixing = self.mixing(self.epoch).map(|mixing| format!("{mixing:.2}")),
            "epoch ended"
        );
        self.epoch += 1;
        self.position = 0;
        self.before = (self.epoch, 0);
    }

    /// Ends the threads; the next batch starts them again, where the consumer stands.
    fn stop(&mut self) {
        if let Some(pipeline) = self.pipeline.take() {
            self.stats.prefetched += pipeline.prefetched();
        }
    }

    /// Steps of a whole epoch, the same on every rank; `None` if it never ends.
    #[must_use]
    pub fn len(&self) -> Option<u64> {
        self.split(0).ok()?.steps()
    }

    /// Returns whether an epoch has no steps: fewer samples than the ranks take together in one.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == Some(0)
    }

    /// Steps that are left of this epoch; `None` if it never ends.
    #[must_use]
    pub fn steps_left(&self) -> Option<u64> {
        self.split(self.position).ok()?.steps()
    }

    /// Samples at the end of this epoch that no rank will see, and those that come a second time to fill up
    /// the last step.
    #[must_use]
    pub fn dropped_and_padded(&self) -> (u64, u64) {
        self.split(self.position)
            .map_or((0, 0), |split| (split.dropped(), split.padded()))
    }

    /// Returns how well an epoch is mixed: the median distance of samples that follow each other, as a part
    /// of what perfect shuffling gives; of several datasets that of the worst. `None` if one has fewer than
    /// 100 samples, of which it says nothing.
    #[must_use]
    pub fn mixing(&self, epoch: u64) -> Option<f64> {
        let plans = self.sampler.plans();
        if plans.iter().any(|plan| plan.epoch_samples() < MIXING_SAMPLES_MIN) {
            return None;
        }
        let ratios = plans
            .iter()
            .map(|plan| plan.epoch(epoch).quality(MIXING_PAIRS).ratio());
        ratios.min_by(f64::total_cmp)
    }

    fn split(&self, position: u64) -> Result<Split> {
        Split::new(self.sampler.epoch_samples(), position, self.options.ranks())
    }

    /// The epoch that the next batch is of.
    #[must_use]
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Goes to the beginning of an epoch; nothing happens if the loader stands there.
    pub fn set_epoch(&mut self, epoch: u64) {
        if (self.epoch, self.position) != (epoch, 0) {
            self.stop();
            (self.epoch, self.position) = (epoch, 0);
            self.before = (epoch, 0);
        }
    }

    /// Goes back to before the last batch, as if it had never been asked for.
    pub fn give_back(&mut self) {
        self.stop();
        (self.epoch, self.position) = self.before;
    }

    /// Returns where the consumer stands: what was handed over, by all ranks together.
    #[must_use]
    pub fn state(&self) -> OrderState {
        self.sampler.state(self.epoch, self.position)
    }

    /// Goes to where a state was taken, in the order that it was taken in, whatever the options say about
    /// seed and shuffling. Ranks and batch size may be others.
    ///
    /// Errors: `Changed` if the dataset is another one; `InvalidInput`, `Unsupported` if the state does not
    /// fit.
    pub fn resume(&mut self, state: &OrderState) -> Result<()> {
        let sampler = self.sampler.resume(state)?;
        self.stop();
        self.sampler = Arc::new(sampler);
        (self.epoch, self.position) = (state.epoch, state.position);
        self.before = (state.epoch, state.position);
        Ok(())
    }

    /// Returns what was done so far.
    #[must_use]
    pub fn stats(&self) -> LoaderStats {
        let mut stats = self.stats.clone();
        if let Some(pipeline) = &self.pipeline {
            stats.prefetched += pipeline.prefetched();
        }
        stats
    }
}

/// Returns what a batch adds to the node's metrics.
fn report_of(batch: &Batch) -> LoaderReport {
    let BatchStats {
        stall,
        hand_over_ns,
        user_ns,
        ..
    } = batch.stats;
    LoaderReport {
        batches: 1,
        samples: batch.samples.len() as u64,
        bytes: batch.bytes(),
        bad_samples: batch.bad.len() as u64,
        wait_lake_ns: stall.lake_ns,
        wait_cache_ns: stall.cache_ns,
        wait_check_ns: stall.check_ns,
        wait_decode_ns: stall.decode_ns,
        hand_over_ns,
        user_ns,
    }
}

impl std::fmt::Debug for Loader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Loader")
            .field("epoch", &self.epoch)
            .field("position", &self.position)
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}
