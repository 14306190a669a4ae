//! `Dataset`: samples of shards by number. Documented for people in `forebay/dataset.py`.
//!
//! Opening may read every shard once to index it, on threads of the loader crate. Only the thread that called
//! can learn of Ctrl-C, so it waits beside the work and looks ten times a second; an interrupted opening
//! stops when the requests that threads of the loader have under way are answered, at the latest at the
//! client's timeout.

mod batch;
mod decoded;
mod filter;
mod values;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use forebay_core::{Error, Kind, Result};
use forebay_dataset::index::Value;
use forebay_dataset::manifest::PublicKey;
use forebay_dataset::order::sample_seed;
use forebay_dataset::part::PartList;
use forebay_dataset::raw::{Labels, Manifest};
use forebay_dataset::shard::Format;
use forebay_dataset::tokens::{TokenType, TokenWindows};
use forebay_loader::{DatasetOptions, FieldDecoder, IndexOrigin, Progress, Rebuild, SampleSelection, Verify};
use pyo3::prelude::*;
use pyo3::types::PyList;

pub(crate) use batch::Batch;
pub(crate) use decoded::PackedMemory;

use crate::arguments::words;
use crate::error;
use crate::node::Client;
use crate::waiting::{is_interrupted, stopped_by, wait};

/// Period in which a thread that waits for an opening looks for signals.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// An open dataset.
#[pyclass(frozen, module = "forebay._native")]
pub(crate) struct Dataset {
    pub(crate) dataset: forebay_loader::Dataset,
    pub(crate) address: Arc<str>,
}

#[pymethods]
impl Dataset {
    /// Opens it.
    #[new]
    #[pyo3(signature = (
        client, names, *, format, fields, rebuild, store, borrow, shards_outside, verify, tokens, labels, filter, part,
        on_error, progress,
    ))]
    #[expect(clippy::too_many_arguments, reason = "keywords of Python")]
    fn new(
        py: Python<'_>,
        client: &Client,
        names: Vec<String>,
        format: Option<&str>,
        fields: Option<Vec<String>>,
        rebuild: RebuildWord,
        store: bool,
        borrow: bool,
        shards_outside: bool,
        verify: Option<Vec<String>>,
        tokens: Option<(u64, u64, Option<String>)>,
        labels: Option<(String, String)>,
        filter: Option<Bound<'_, PyAny>>,
        part: Option<PartText>,
        on_error: ShardErrorWord,
        progress: Option<Bound<'_, PyAny>>,
    ) -> PyResult<Self> {
        let fail = |why: Error| error::to_err(py, &why);
        let options = DatasetOptions {
            format: format.map(Format::parse).transpose().map_err(fail)?,
            fields: fields.unwrap_or_default(),
            rebuild: rebuild.0,
            store,
            borrow,
            shards_outside,
            verify: verified_by(verify).map_err(fail)?,
            tokens: tokens.map(token_windows).transpose().map_err(fail)?,
            labels: labels_of(labels).map_err(fail)?,
            filter: filter.map(|filter| filter::parse(py, &filter)).transpose()?,
            part: part.map(PartText::selection).transpose().map_err(fail)?,
            skip_damaged: on_error.0,
            ..DatasetOptions::default()
        };
        let address = client.shared_address();
        let client = client.client(py)?;
        let progress = progress.map(Bound::unbind);
        let tell = progress.as_ref();
        let dataset = wait(py, move || open(&client, &names, options, tell))?;
        Ok(Self { dataset, address })
    }

    fn __len__(&self) -> PyResult<usize> {
        let samples = self
            .dataset
            .subset()
            .map_or(self.dataset.len(), |subset| subset.samples());
        Ok(usize::try_from(samples)?)
    }

    /// Names of all fields that occur, sorted.
    #[getter]
    fn fields(&self) -> Vec<String> {
        self.dataset.fields().to_vec()
    }

    /// Returns how fields are encoded, where the format says so.
    #[getter]
    fn encodings(&self) -> Vec<(String, String)> {
        let encodings = &self.dataset.index().head().meta().encodings;
        encodings
            .iter()
            .map(|(field, how)| (field.clone(), how.clone()))
            .collect()
    }

    /// `stored`, `built` or `memory`.
    #[getter]
    fn origin(&self) -> &'static str {
        match self.dataset.index_origin() {
            IndexOrigin::Stored => "stored",
            IndexOrigin::Built => "built",
            IndexOrigin::InMemory => "memory",
        }
    }

    /// Shards that were left out because they are damaged, and why.
    #[getter]
    fn damaged_shards(&self) -> Vec<(String, String)> {
        let damaged = self.dataset.damaged_shards().iter();
        damaged
            .map(|one| (one.shard.clone(), one.reason.clone()))
            .collect()
    }

    /// Returns which data it is: names, versions and counts, as one word.
    #[getter]
    fn fingerprint(&self) -> String {
        self.dataset.shape().fingerprint().to_string()
    }

    /// Name, samples and bytes of every shard.
    fn shards(&self, py: Python<'_>) -> PyResult<Vec<(String, u64, u64)>> {
        let shards = self.dataset.index().head().shards().map(|shard| {
            let shard = shard?;
            Ok((shard.name().to_owned(), shard.samples(), shard.record().bytes))
        });
        shards
            .collect::<Result<_>>()
            .map_err(|why| error::to_err(py, &why))
    }

    /// The key of a sample.
    fn key(&self, py: Python<'_>, number: u64) -> PyResult<Option<String>> {
        let key = self.dataset.index().key(number);
        let key = key.map_err(|why| error::to_err(py, &why))?;
        Ok(key.map(|key| String::from_utf8_lossy(key).into_owned()))
    }

    /// The number of the sample with this key.
    fn find(&self, py: Python<'_>, key: &str) -> PyResult<u64> {
        wait(py, || {
            let number = self.dataset.index().find_key(key.as_bytes())?;
            let missing = || {
                Error::new(
                    Kind::NotFound,
                    "the filter or the part leaves out the sample with this key",
                )
            };
            match self.dataset.subset() {
                Some(subset) => subset.ordinal(number).ok_or_else(missing),
                None => Ok(number),
            }
        })
    }

    /// Names of the columns of values that the index has.
    #[getter]
    fn columns(&self) -> Vec<String> {
        self.dataset
            .index()
            .head()
            .meta()
            .columns
            .keys()
            .cloned()
            .collect()
    }

    /// Values of a column of the index, for these samples.
    fn column<'py>(&self, py: Python<'py>, name: &str, numbers: Vec<u64>) -> PyResult<Bound<'py, PyList>> {
        let list = PyList::empty(py);
        for number in numbers {
            let value = self.dataset.index().value(name, number);
            match value.map_err(|why| error::to_err(py, &why))? {
                Some(Value::Text(text)) => list.append(text)?,
                Some(Value::I64(number)) => list.append(number)?,
                Some(Value::F64(number)) => list.append(number)?,
                _ => list.append(py.None())?,
            }
        }
        Ok(list)
    }

    /// Samples by number, in one request, with these fields decoded; the first fault of one is raised. Random
    /// steps are those of a seed and, for each sample, an epoch and the how-manieth time it comes in that.
    #[pyo3(signature = (numbers, decode, *, seed=0, epochs=None))]
    fn samples(
        &self,
        py: Python<'_>,
        mut numbers: Vec<u64>,
        decode: Vec<(String, String)>,
        seed: u64,
        epochs: Option<Vec<(u64, u64)>>,
    ) -> PyResult<Batch> {
        let seeds: Option<Vec<u64>> = epochs.map(|epochs| {
            let places = epochs.into_iter().zip(&numbers);
            places
                .map(
                    |((epoch, time), number)| match sample_seed(seed, epoch, *number) {
                        first if time == 0 => first,
                        first => sample_seed(first, epoch, time),
                    },
                )
                .collect()
        });
        if let Some(subset) = self.dataset.subset() {
            for number in &mut numbers {
                *number = subset.sample(*number).unwrap_or(u64::MAX);
            }
        }
        let fields = decoders(decode).map_err(|why| error::to_err(py, &why))?;
        let asked = &fields;
        let (samples, columns) = wait(py, move || {
            let numbers = numbers;
            self.dataset.decoded(&numbers, asked, seeds.as_deref())
        })?;
        Ok(Batch::new(Arc::clone(&self.address), samples, &fields, columns))
    }
}

/// Decoders of fields by their names.
pub(crate) fn decoders(given: Vec<(String, String)>) -> Result<Vec<FieldDecoder>> {
    given
        .into_iter()
        .map(|(field, decoder)| FieldDecoder::parse(&field, &decoder))
        .collect()
}

words! {
    RebuildWord(Rebuild) = "index" {
        "never" => Rebuild::Never,
        "changed" => Rebuild::Changed,
        "always" => Rebuild::Always,
    }
    ShardErrorWord(bool) = "on_error" { "raise" => false, "skip" => true }
}

/// The argument `part`: the text of a list, or numbers of samples.
#[derive(FromPyObject)]
enum PartText {
    List(String),
    Numbers(Vec<u64>),
}

impl PartText {
    fn selection(self) -> Result<SampleSelection> {
        match self {
            Self::List(text) => PartList::parse(&text).map(SampleSelection::List),
            Self::Numbers(numbers) => Ok(SampleSelection::Numbers(numbers)),
        }
    }
}

/// Length, stride and type of windows of tokens.
fn token_windows((length, stride, token): (u64, u64, Option<String>)) -> Result<TokenWindows> {
    let token = token.map(|name| TokenType::parse(&name)).transpose()?;
    Ok(TokenWindows {
        length,
        stride,
        token,
    })
}

/// `folder`, or the text of a manifest in `csv` or `jsonl`.
fn labels_of(given: Option<(String, String)>) -> Result<Labels> {
    let Some((kind, text)) = given else {
        return Ok(Labels::None);
    };
    match kind.as_str() {
        "folder" => Ok(Labels::Folder),
        "csv" => Manifest::csv(&text).map(Labels::Manifest),
        "jsonl" => Manifest::jsonl(&text).map(Labels::Manifest),
        _ => {
            Err(Error::new(Kind::InvalidInput, "labels come from folder, csv or jsonl").with("labels", kind))
        }
    }
}

/// The proof that data has to pass: none, agreement with its manifest, and with keys (PEM) a signature by one
/// of them.
fn verified_by(keys: Option<Vec<String>>) -> Result<Verify> {
    let Some(keys) = keys else {
        return Ok(Verify::Nothing);
    };
    let keys = keys.into_iter().map(|text| PublicKey::from_pem(&text));
    let keys = keys.collect::<Result<Vec<_>>>()?;
    Ok(if keys.is_empty() {
        Verify::Manifest
    } else {
        Verify::Signed(keys)
    })
}

/// Opens a dataset on another thread, while this one looks for signals.
fn open(
    client: &forebay_client::Client,
    names: &[String],
    mut options: DatasetOptions,
    progress: Option<&Py<PyAny>>,
) -> Result<forebay_loader::Dataset> {
    let stop = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&stop);
    options.interrupt = Some(Arc::new(move || flag.load(Ordering::Relaxed)));
    let tell = |done: Progress| {
        if let Some(progress) = progress {
            report(progress, done);
        }
    };
    std::thread::scope(|scope| {
        let (ended, end) = channel();
        let flag = Arc::clone(&stop);
        let work = scope.spawn(move || {
            let opened = stopped_by(flag, || {
                forebay_loader::Dataset::open(client, names, options, Some(&tell))
            });
            // Nobody listens only if the waiting thread is gone, which waits for this one.
            let _ = ended.send(());
            opened
        });
        while end.recv_timeout(LOOK_EVERY) == Err(RecvTimeoutError::Timeout) {
            if is_interrupted() {
                stop.store(true, Ordering::Relaxed);
                break;
            }
        }
        work.join().unwrap_or_else(|_| {
            Err(Error::new(
                Kind::Internal,
                "the thread that opened the dataset panicked",
            ))
        })
    })
}

/// Tells Python how far it is; what the callback raises is printed, as nobody could catch it.
fn report(progress: &Py<PyAny>, done: Progress) {
    let told = (
        done.bytes_done,
        done.bytes_total,
        done.shards_done,
        done.shards_total,
    );
    let _ = Python::try_attach(|py| {
        if let Err(why) = progress.call1(py, told) {
            why.write_unraisable(py, None);
        }
    });
}
