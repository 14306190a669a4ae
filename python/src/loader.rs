//! `Loader`: batches of a dataset or of a mix. Documented for people in `forebay/_loader.py`.
//!
//! The loader is behind a lock that is only ever taken without the interpreter: its threads need the interpreter now and then to look for
//! signals, so whoever waited for the lock with it in hand could wait for ever.

use std::sync::Arc;

use forebay_core::{Error, Kind, Result};
use forebay_dataset::order::{Shuffle, State, Stop, Tail, Take, Window};
use forebay_loader::{FieldDecoder, LoaderOptions, LoaderStats, OnError, Prefetch, WINDOW_BYTES_DEFAULT};
use forebay_node::value::Size;
use parking_lot::Mutex;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};

use crate::dataset::{Batch, Dataset, decoders};
use crate::error;
use crate::waiting::{is_interrupted, wait};

/// What comes with a batch: epoch, step, samples that are padding.
type About = (u64, u64, u64);

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

#[pymethods]
impl Loader {
    /// Of one dataset, or of several with their weights. `options`: see `parse`.
    #[new]
    fn new(py: Python<'_>, sources: &Bound<'_, PyList>, options: &Bound<'_, PyDict>) -> PyResult<Self> {
        let (options, stop) = parse(py, options)?;
        let mut datasets = Vec::with_capacity(sources.len());
        let mut address = None;
        for source in sources {
            let (dataset, weight): (Bound<'_, Dataset>, f64) = source.extract()?;
            address.get_or_insert_with(|| Arc::clone(&dataset.get().address));
            datasets.push((dataset.get().dataset.clone(), weight));
        }
        let address = address.ok_or_else(|| error::invalid(py, "a loader needs at least one dataset"))?;
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

    /// The next batch and what is known about it; `None` at the end of an epoch.
    fn next(&self, py: Python<'_>) -> PyResult<Option<(Batch, About)>> {
        let batch = self.call(py, forebay_loader::Loader::next_batch)?;
        Ok(batch.map(|batch| {
            let about = (batch.epoch, batch.step, batch.padded);
            let address = Arc::clone(&self.address);
            let batch = Batch::new(address, batch.samples, &self.decode, batch.columns);
            (batch, about)
        }))
    }

    /// Where it stands, as JSON.
    fn state(&self, py: Python<'_>) -> PyResult<String> {
        self.call(py, |loader| Ok(loader.state().to_json()))
    }

    /// Goes to where a state was taken.
    fn resume(&self, py: Python<'_>, state: &str) -> PyResult<()> {
        self.call(py, |loader| loader.resume(&State::from_json(state)?))
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

    /// Samples of this epoch that are left out, and those that come twice, so that all ranks have equal steps.
    fn dropped_and_padded(&self, py: Python<'_>) -> PyResult<(u64, u64)> {
        self.call(py, |loader| Ok(loader.dropped_and_padded()))
    }

    /// How well an epoch is mixed, if there are enough samples to say.
    fn mixing(&self, py: Python<'_>, epoch: u64) -> PyResult<Option<f64>> {
        self.call(py, |loader| Ok(loader.mixing(epoch)))
    }

    /// What was done so far.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let stats = self.call(py, |loader| Ok(loader.stats()))?;
        to_dict(py, &stats)
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

/// What Python's words mean: the options of a loader, and when an epoch of a mix ends.
fn parse(py: Python<'_>, given: &Bound<'_, PyDict>) -> PyResult<(LoaderOptions, Option<Stop>)> {
    let mut options = LoaderOptions {
        interrupt: Some(Arc::new(is_interrupted)),
        ..LoaderOptions::default()
    };
    let (mut stop, mut shuffle, mut window) = (None, None, Window::bytes(WINDOW_BYTES_DEFAULT));
    for (name, value) in given {
        if value.is_none() {
            continue;
        }
        let name: String = name.extract()?;
        match name.as_str() {
            "batch_size" => options.batch_size = value.extract()?,
            "shuffle" => shuffle = Some(value.extract::<String>()?),
            "window" => window = Window::samples(value.extract()?),
            "window_bytes" => window = Window::bytes(size(py, &value.extract::<String>()?)?),
            "seed" => options.seed = value.extract()?,
            "take" => options.take = Take::Fraction(value.extract()?),
            "take_samples" => options.take = Take::Samples(value.extract()?),
            "rank" => options.rank = value.extract()?,
            "world_size" => options.world_size = value.extract()?,
            "tail" => {
                let choices = [("drop", Tail::Drop), ("pad", Tail::Pad)];
                options.tail = one_of(py, &name, &value.extract::<String>()?, &choices)?;
            }
            "epoch" => options.epoch = value.extract()?,
            "on_error" => {
                let choices = [
                    ("raise", OnError::Raise),
                    ("skip", OnError::Skip),
                    ("substitute", OnError::Substitute),
                ];
                options.on_error = one_of(py, &name, &value.extract::<String>()?, &choices)?;
            }
            "prefetch" => {
                options.prefetch = match value.extract::<String>()?.as_str() {
                    "auto" => Prefetch::Auto,
                    "off" => Prefetch::Off,
                    bytes => Prefetch::Bytes(size(py, bytes)?),
                };
            }
            "decode" => {
                let given: Vec<(String, String)> = value.extract()?;
                options.decode = decoders(given).map_err(|why| error::to_err(py, &why))?;
            }
            "decode_threads" => options.decode_threads = value.extract()?,
            "threads" => options.fetch_threads = value.extract()?,
            "batches_ahead" => options.batches_ahead = value.extract()?,
            "stop" => {
                let choices = [
                    ("first", Stop::FirstExhausted),
                    ("all", Stop::AllExhausted),
                    ("never", Stop::Forever),
                ];
                stop = Some(one_of(py, &name, &value.extract::<String>()?, &choices)?);
            }
            other => return Err(error::invalid(py, format!("a loader has no option {other:?}"))),
        }
    }
    if let Some(word) = shuffle {
        let choices = [("window", Shuffle::Window(window)), ("global", Shuffle::Global)];
        options.shuffle = one_of(py, "shuffle", &word, &choices)?;
    }
    Ok((options, stop))
}

fn one_of<T: Copy>(py: Python<'_>, option: &str, word: &str, choices: &[(&str, T)]) -> PyResult<T> {
    let found = choices.iter().find(|(name, _)| *name == word);
    found.map(|(_, choice)| *choice).ok_or_else(|| {
        let names: Vec<&str> = choices.iter().map(|(name, _)| *name).collect();
        error::invalid(
            py,
            format!("{option} is one of {}, not {word:?}", names.join(", ")),
        )
    })
}

fn size(py: Python<'_>, text: &str) -> PyResult<u64> {
    let size = text.parse::<Size>().map(|size| size.0);
    size.map_err(|why| error::invalid(py, format!("{text:?} is no size: {why}")))
}

fn to_dict<'py>(py: Python<'py>, stats: &LoaderStats) -> PyResult<Bound<'py, PyDict>> {
    let found = PyDict::new(py);
    let seconds = |ns: u64| ns as f64 / 1e9;
    for (name, value) in [
        ("batches", stats.batches),
        ("samples", stats.samples),
        ("bytes", stats.bytes),
        ("bytes_ram", stats.sources.ram),
        ("bytes_nvme", stats.sources.nvme),
        ("bytes_lake", stats.sources.lake + stats.prefetched.lake),
        ("bad_samples", stats.bad_samples),
    ] {
        found.set_item(name, value)?;
    }
    for (name, ns) in [
        ("wait_lake_seconds", stats.stall.lake_ns),
        ("wait_cache_seconds", stats.stall.cache_ns),
        ("wait_check_seconds", stats.stall.check_ns),
        ("wait_decode_seconds", stats.stall.decode_ns),
        ("hand_over_seconds", stats.hand_over_ns),
        ("user_seconds", stats.user_ns),
    ] {
        found.set_item(name, seconds(ns))?;
    }
    let bad = PyList::empty(py);
    for one in &stats.bad {
        let key = one.key.as_deref();
        bad.append((
            one.epoch,
            one.source,
            one.number,
            &*one.shard,
            key,
            &*one.reason,
            one.substitute,
        ))?;
    }
    found.set_item("bad", bad)?;
    Ok(found)
}
