//! `Loader`: batches of a dataset or of a mix. Documented for people in `forebay/_loader.py`.
//!
//! The loader is behind a lock that is only ever taken without the interpreter: its threads need the
//! interpreter now and then to look for signals, so whoever waited for the lock with it in hand could wait
//! for ever.

use std::sync::Arc;

use forebay_core::{Error, Kind, Result};
use forebay_dataset::order::{OrderState, Shuffle, Stop, Tail, Take, Window};
use forebay_loader::{
    BadSample, FieldDecoder, LoaderOptions, LoaderStats, OnError, Prefetch, WINDOW_BYTES_DEFAULT,
};
use parking_lot::Mutex;
use pyo3::prelude::*;

use crate::arguments::{count, size, whole, words};
use crate::dataset::{Batch, Dataset, decoders};
use crate::error;
use crate::waiting::{is_interrupted, wait};

/// Facts about a batch: epoch, step, samples that are padding, samples that were bad.
type About = (u64, u64, u64, Vec<BadRow>);

/// Reads a dataset, or a mix of several, batch after batch.
#[pyclass(frozen, module = "forebay._native")]
pub(crate) struct Loader {
    loader: Mutex<Option<forebay_loader::Loader>>,
    address: Arc<str>,
    decode: Vec<FieldDecoder>,
}

impl Loader {
    /// Runs a call without the interpreter.
    fn call<T: Send>(
        &self,
        py: Python<'_>,
        call: impl FnOnce(&mut forebay_loader::Loader) -> Result<T> + Send,
    ) -> PyResult<T> {
        wait(py, || match &mut *self.loader.lock() {
            Some(loader) => call(loader),
            None => Err(Error::new(
                Kind::Unavailable,
                "this loader was closed; make another one",
            )),
        })
    }
}

impl Loader {
    fn open(
        py: Python<'_>,
        sources: Vec<(Bound<'_, Dataset>, f64)>,
        options: LoaderOptions,
        stop: Option<Stop>,
    ) -> PyResult<Self> {
        let Some((first, _)) = sources.first() else {
            return Err(error::invalid(py, "a loader needs at least one dataset"));
        };
        let address = Arc::clone(&first.get().address);
        let datasets: Vec<_> = sources
            .into_iter()
            .map(|(dataset, weight)| (dataset.get().dataset.clone(), weight))
            .collect();
        let decode = options.decode.clone();
        let loader = wait(py, || match (&*datasets, stop) {
            ([(dataset, _)], None) => dataset.loader(options),
            (several, stop) => forebay_loader::Loader::mix(several, stop.unwrap_or_default(), options),
        })?;
        Ok(Self {
            loader: Mutex::new(Some(loader)),
            address,
            decode,
        })
    }
}

#[pymethods]
impl Loader {
    /// Of one dataset, or of several with their weights.
    #[new]
    #[pyo3(signature = (
        sources, *, batch_size, stop, shuffle, window, seed, take, rank, world_size, tail, on_error, prefetch,
        epoch, decode, threads, batches_ahead, decode_threads,
    ))]
    #[expect(clippy::too_many_arguments, reason = "keywords of Python")]
    fn new<'py>(
        py: Python<'py>,
        sources: Vec<(Bound<'py, Dataset>, f64)>,
        batch_size: &Bound<'py, PyAny>,
        stop: Option<StopWord>,
        shuffle: Option<ShuffleWord>,
        window: Option<&Bound<'py, PyAny>>,
        seed: &Bound<'py, PyAny>,
        take: Option<TakeAmount>,
        rank: &Bound<'py, PyAny>,
        world_size: &Bound<'py, PyAny>,
        tail: TailWord,
        on_error: OnErrorWord,
        prefetch: &Bound<'py, PyAny>,
        epoch: &Bound<'py, PyAny>,
        decode: Vec<(String, String)>,
        threads: Option<&Bound<'py, PyAny>>,
        batches_ahead: Option<&Bound<'py, PyAny>>,
        decode_threads: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Self> {
        let mut options = LoaderOptions {
            batch_size: whole("batch_size", batch_size)?,
            shuffle: shuffle_of(shuffle, window)?,
            seed: whole("seed", seed)?,
            take: take.map_or(Take::All, TakeAmount::into_take),
            rank: whole("rank", rank)?,
            world_size: whole("world_size", world_size)?,
            tail: tail.0,
            on_error: on_error.0,
            prefetch: prefetch_of(py, prefetch.str()?.to_str()?)?,
            epoch: whole("epoch", epoch)?,
            decode: decoders(decode).map_err(|why| error::to_err(py, &why))?,
            interrupt: Some(Arc::new(is_interrupted)),
            ..LoaderOptions::default()
        };
        for (name, given, option) in [
            ("threads", threads, &mut options.fetch_threads),
            ("batches_ahead", batches_ahead, &mut options.batches_ahead),
            ("decode_threads", decode_threads, &mut options.decode_threads),
        ] {
            if let Some(given) = given {
                *option = count(name, given)?;
            }
        }
        Self::open(py, sources, options, stop.map(|stop| stop.0))
    }

    /// The next batch and what is known about it; `None` at the end of an epoch.
    fn next(&self, py: Python<'_>) -> PyResult<Option<(Batch, About)>> {
        let batch = self.call(py, forebay_loader::Loader::next_batch)?;
        Ok(batch.map(|batch| {
            let bad = batch.bad.into_iter().map(bad_row).collect();
            let about = (batch.epoch, batch.step, batch.padded, bad);
            let address = Arc::clone(&self.address);
            let batch = Batch::new(address, batch.samples, &self.decode, batch.columns);
            (batch, about)
        }))
    }

    /// Returns where it stands, as JSON.
    fn state(&self, py: Python<'_>) -> PyResult<String> {
        self.call(py, |loader| Ok(loader.state().to_json()))
    }

    /// Goes to where a state was taken.
    fn resume(&self, py: Python<'_>, state: &str) -> PyResult<()> {
        self.call(py, |loader| loader.resume(&OrderState::from_json(state)?))
    }

    /// Goes back to before the last batch.
    fn give_back(&self, py: Python<'_>) -> PyResult<()> {
        self.call(py, |loader| {
            loader.give_back();
            Ok(())
        })
    }

    /// Goes to the beginning of an epoch.
    fn set_epoch(&self, py: Python<'_>, epoch: u64) -> PyResult<()> {
        self.call(py, |loader| {
            loader.set_epoch(epoch);
            Ok(())
        })
    }

    /// The epoch that the next batch is of.
    fn epoch(&self, py: Python<'_>) -> PyResult<u64> {
        self.call(py, |loader| Ok(loader.epoch()))
    }

    /// Steps of a whole epoch, and those that are left of this one; `None` if it never ends.
    fn steps(&self, py: Python<'_>) -> PyResult<(Option<u64>, Option<u64>)> {
        self.call(py, |loader| Ok((loader.len(), loader.steps_left())))
    }

    /// Samples of this epoch that are left out, and those that come twice, so that all ranks have equal
    /// steps.
    fn dropped_and_padded(&self, py: Python<'_>) -> PyResult<(u64, u64)> {
        self.call(py, |loader| Ok(loader.dropped_and_padded()))
    }

    /// Returns how well an epoch is mixed, if there are enough samples to say.
    fn mixing(&self, py: Python<'_>, epoch: u64) -> PyResult<Option<f64>> {
        self.call(py, |loader| Ok(loader.mixing(epoch)))
    }

    /// Returns what was done so far.
    fn stats(&self, py: Python<'_>) -> PyResult<LoaderCounts> {
        self.call(py, |loader| Ok(LoaderCounts::of(loader.stats())))
    }

    /// Ends its threads. Batches stay valid.
    fn close(&self, py: Python<'_>) {
        py.detach(|| drop(self.loader.lock().take()));
    }
}

impl Drop for Loader {
    fn drop(&mut self) {
        // Its threads end here, and may need the interpreter for that.
        let loader = self.loader.get_mut().take();
        let _ = Python::try_attach(|py| py.detach(|| drop(loader)));
    }
}

words! {
    StopWord(Stop) = "stop" {
        "first" => Stop::FirstExhausted,
        "all" => Stop::AllExhausted,
        "never" => Stop::Forever,
    }
    ShuffleWord(ShuffleKind) = "shuffle" { "window" => ShuffleKind::Window, "global" => ShuffleKind::Global }
    TailWord(Tail) = "tail" { "drop" => Tail::Drop, "pad" => Tail::Pad }
    OnErrorWord(OnError) = "on_error" {
        "raise" => OnError::Raise,
        "skip" => OnError::Skip,
        "substitute" => OnError::Substitute,
    }
}

/// A shuffle without its window.
#[derive(Clone, Copy)]
pub(crate) enum ShuffleKind {
    Window,
    Global,
}

/// The argument `take`: a number of samples, or a fraction.
#[derive(FromPyObject)]
enum TakeAmount {
    Samples(u64),
    Fraction(f64),
}

impl TakeAmount {
    fn into_take(self) -> Take {
        match self {
            Self::Samples(samples) => Take::Samples(samples),
            Self::Fraction(fraction) => Take::Fraction(fraction),
        }
    }
}

/// The shuffle of an epoch; `window` is samples, or bytes as text.
fn shuffle_of(kind: Option<ShuffleWord>, window: Option<&Bound<'_, PyAny>>) -> PyResult<Shuffle> {
    let window = match window {
        None => Window::bytes(WINDOW_BYTES_DEFAULT),
        Some(given) => match (given.extract::<String>(), given.extract::<u64>()) {
            (Ok(text), _) => Window::bytes(size(given.py(), &text)?),
            (_, Ok(samples)) if samples > 0 => Window::samples(samples),
            _ => {
                let message = format!(
                    "window is a number of samples above 0, or bytes as \"512MiB\", not {}",
                    given.repr()?
                );
                return Err(error::invalid(given.py(), message));
            }
        },
    };
    Ok(match kind {
        None => Shuffle::None,
        Some(ShuffleWord(ShuffleKind::Window)) => Shuffle::Window(window),
        Some(ShuffleWord(ShuffleKind::Global)) => Shuffle::Global,
    })
}

fn prefetch_of(py: Python<'_>, text: &str) -> PyResult<Prefetch> {
    Ok(match text {
        "auto" => Prefetch::Auto,
        "off" => Prefetch::Off,
        bytes => Prefetch::Bytes(size(py, bytes)?),
    })
}

/// A bad sample: epoch, dataset, number, shard, key, reason, substitute.
type BadRow = (u64, usize, u64, String, Option<String>, String, Option<u64>);

fn bad_row(one: BadSample) -> BadRow {
    (
        one.epoch,
        one.source,
        one.number,
        one.shard,
        one.key,
        one.reason,
        one.substitute,
    )
}

/// Counters of a loader. Documented for people in `forebay/_loader.py`.
#[pyclass(frozen, get_all, module = "forebay._native")]
pub(crate) struct LoaderCounts {
    batches: u64,
    samples: u64,
    bytes: u64,
    bytes_ram: u64,
    bytes_nvme: u64,
    bytes_lake: u64,
    wait_lake_seconds: f64,
    wait_cache_seconds: f64,
    wait_check_seconds: f64,
    wait_decode_seconds: f64,
    hand_over_seconds: f64,
    user_seconds: f64,
    bad_samples: u64,
    bad: Vec<BadRow>,
}

impl LoaderCounts {
    fn of(stats: LoaderStats) -> Self {
        let seconds = |ns: u64| ns as f64 / 1e9;
        Self {
            batches: stats.batches,
            samples: stats.samples,
            bytes: stats.bytes,
            bytes_ram: stats.sources.ram,
            bytes_nvme: stats.sources.nvme,
            bytes_lake: stats.sources.lake + stats.prefetched.lake,
            wait_lake_seconds: seconds(stats.stall.lake_ns),
            wait_cache_seconds: seconds(stats.stall.cache_ns),
            wait_check_seconds: seconds(stats.stall.check_ns),
            wait_decode_seconds: seconds(stats.stall.decode_ns),
            hand_over_seconds: seconds(stats.hand_over_ns),
            user_seconds: seconds(stats.user_ns),
            bad_samples: stats.bad_samples,
            bad: stats.bad.into_iter().map(bad_row).collect(),
        }
    }
}
