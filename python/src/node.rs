//! `Client`: the calls of `forebay-client` for Python. Each takes its arguments, lets the interpreter go and
//! waits (`waiting.rs`). Documented for people in `forebay/node.py`.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use forebay_client::{
    ClientOptions, ClientTls, Headers, ItemRange, ListOptions, Name, PutOptions, PutSource, ViewHandle,
    WriteCondition,
};
use forebay_core::{Error, Kind, Result, Version};
use parking_lot::RwLock;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList};

use crate::buffer::{Memory, PutMemory, WritableBuffer};
use crate::listing::Listing;
use crate::view::{self, View};
use crate::waiting::{is_interrupted, wait};
use crate::writer::ObjectWriter;
use crate::{error, item};

/// Bytes that one lease of a long `read` covers, so that it does not hold more of the node's memory than it
/// is copying.
const READ_WINDOW_BYTES: u64 = 64 << 20;

/// A row of `stat` and `list`: name, bytes, version, modified, content type, metadata.
pub(crate) type Info = (String, u64, String, u64, Option<String>, Vec<(String, String)>);

/// A client of one node.
#[pyclass(frozen, module = "forebay._native")]
pub(crate) struct Client {
    /// There until `close`.
    client: RwLock<Option<forebay_client::Client>>,
    address: Arc<str>,
    /// As given, for the processes that a node object is sent to.
    tls: TlsPaths,
}

/// Paths of trusted authorities, of a client certificate and of its key.
type TlsPaths = (Option<PathBuf>, Option<PathBuf>, Option<PathBuf>);

impl Client {
    /// Returns where the node is, to be kept by what came from it.
    pub(crate) fn shared_address(&self) -> Arc<str> {
        Arc::clone(&self.address)
    }

    pub(crate) fn client(&self, py: Python<'_>) -> PyResult<forebay_client::Client> {
        self.client.read().clone().ok_or_else(|| {
            let error = Error::new(
                Kind::Unavailable,
                "this node object was closed; connect or open again",
            );
            error::to_err(py, &error)
        })
    }

    fn call<T: Send>(
        &self,
        py: Python<'_>,
        name: &str,
        call: impl FnOnce(&forebay_client::Client, &Name) -> Result<T> + Send,
    ) -> PyResult<T> {
        let client = self.client(py)?;
        let name = Name::parse(name).map_err(|why| error::to_err(py, &why))?;
        wait(py, || call(&client, &name))
    }
}

#[pymethods]
impl Client {
    #[new]
    #[pyo3(signature = (address, timeout, ca, cert, key))]
    fn new(
        py: Python<'_>,
        address: Option<String>,
        timeout: f64,
        ca: Option<PathBuf>,
        cert: Option<PathBuf>,
        key: Option<PathBuf>,
    ) -> PyResult<Self> {
        let timeout = Duration::try_from_secs_f64(timeout)
            .map_err(|why| error::invalid(py, format!("the timeout is no length of time: {why}")))?;
        let options = ClientOptions {
            address,
            timeout,
            interrupt: Some(Arc::new(is_interrupted)),
            tls: ClientTls {
                ca: ca.clone(),
                cert: cert.clone(),
                key: key.clone(),
            },
            ..ClientOptions::default()
        };
        let client = wait(py, || forebay_client::Client::connect(options))?;
        Ok(Self {
            address: client.address().into(),
            client: RwLock::new(Some(client)),
            tls: (ca, cert, key),
        })
    }

    #[getter]
    fn address(&self) -> &str {
        &self.address
    }

    /// The files given by `ca`, `cert` and `key`.
    #[getter]
    fn tls(&self) -> (Option<String>, Option<String>, Option<String>) {
        let text = |path: &Option<PathBuf>| path.as_ref().map(|path| path.to_string_lossy().into_owned());
        let (ca, cert, key) = &self.tls;
        (text(ca), text(cert), text(key))
    }

    #[pyo3(signature = (name, offset, length, member, version))]
    fn get(
        &self,
        py: Python<'_>,
        name: &str,
        offset: i64,
        length: Option<u64>,
        member: Option<String>,
        version: Option<&str>,
    ) -> PyResult<View> {
        let range = match member {
            Some(member) if offset == 0 && length.is_none() => ItemRange::Member(member),
            Some(_) => {
                return Err(error::invalid(
                    py,
                    "a member is read whole: leave offset and length out",
                ));
            }
            None => item::range(offset, length).map_err(|why| error::to_err(py, &why))?,
        };
        let view = self.call(py, name, |client, name| client.get(name, range, version))?;
        Ok(View::new(Arc::clone(&self.address), view))
    }

    /// Views and exceptions, in the order of the items.
    fn get_batch<'py>(&self, py: Python<'py>, items: &Bound<'py, PyList>) -> PyResult<Bound<'py, PyList>> {
        let client = self.client(py)?;
        let items = item::items(items)?;
        let views = wait(py, || client.get_batch(items))?;
        let found = PyList::empty(py);
        for view in views {
            match view {
                Ok(view) => found.append(Bound::new(py, View::new(Arc::clone(&self.address), view))?)?,
                Err(why) => found.append(error::to_object(py, &why)?)?,
            }
        }
        Ok(found)
    }

    fn read_into(
        &self,
        py: Python<'_>,
        name: &str,
        target: &Bound<'_, PyAny>,
        offset: u64,
    ) -> PyResult<usize> {
        let mut memory = Memory::of(target)?;
        let bytes = memory.as_mut_slice(py)?;
        self.call(py, name, |client, name| client.read_into(name, offset, bytes))
    }

    /// Bytes from `offset` on as `bytes`; cut at the end of the object, of one version.
    #[pyo3(signature = (name, offset, length, version))]
    fn read<'py>(
        &self,
        py: Python<'py>,
        name: &str,
        offset: u64,
        length: Option<u64>,
        version: Option<&str>,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let length = length.unwrap_or(u64::MAX - offset);
        let window = |offset: u64, left: u64| {
            let length = left.min(READ_WINDOW_BYTES);
            ItemRange::Range { offset, length }
        };
        let first = self.call(py, name, |client, name| {
            client.get(name, window(offset, length), version)
        });
        let first = match first {
            Ok(first) => first,
            Err(why) if is_past_end(py, &why) => return Ok(PyBytes::new(py, b"")),
            Err(why) => return Err(why),
        };
        let total = length.min(first.object_bytes().saturating_sub(offset));
        let (object, start) = view::uninitialised(py, usize::try_from(total)?)?;
        let start = start as usize;
        let version = first.version().to_owned();
        self.call(py, name, move |client, name| {
            let (mut done, mut view) = (0, first);
            loop {
                let bytes = (view.len() as u64).min(total - done);
                // SAFETY: `object` has `total` bytes, `done + bytes` of which are written now; nobody has
                // seen it yet.
                unsafe {
                    let target = (start + usize::try_from(done).expect("fits, as the total does")) as *mut u8;
                    std::ptr::copy_nonoverlapping(
                        view.as_ptr(),
                        target,
                        usize::try_from(bytes).expect("as above"),
                    );
                }
                done += bytes;
                if done == total {
                    return Ok(());
                }
                if bytes == 0 {
                    return Err(Error::new(
                        Kind::Internal,
                        "the node gave fewer bytes than the object has",
                    ));
                }
                view = client.get(name, window(offset + done, total - done), Some(&version))?;
            }
        })?;
        Ok(object)
    }

    #[pyo3(signature = (name, data, content_type, metadata, if_absent, if_version))]
    #[expect(clippy::too_many_arguments, reason = "keyword arguments of one Python call")]
    fn put(
        &self,
        py: Python<'_>,
        name: &str,
        data: &Bound<'_, PyAny>,
        content_type: Option<String>,
        metadata: Vec<(String, String)>,
        if_absent: bool,
        if_version: Option<String>,
    ) -> PyResult<(String, u64)> {
        let options = PutOptions {
            condition: condition(py, if_absent, if_version)?,
            headers: with_type(content_type),
            metadata,
            ..PutOptions::default()
        };
        let receipt = if let Ok(buffer) = data.cast::<WritableBuffer>() {
            // The name is checked first: a wrong one must not use the buffer up.
            Name::parse(name).map_err(|why| error::to_err(py, &why))?;
            let taken = buffer.get().take()?;
            self.call(py, name, |client, name| match taken {
                PutMemory::Alone(buffer) => client.put(name, PutSource::Buffer(buffer), options),
                PutMemory::Shared(buffer) => client.put(name, PutSource::Slice(&buffer), options),
            })
        } else {
            let memory = Memory::of(data)?;
            let bytes = memory.as_slice();
            self.call(py, name, |client, name| {
                client.put(name, PutSource::Slice(bytes), options)
            })
        }?;
        Ok((receipt.version, receipt.bytes))
    }

    /// An object that is written piece by piece; `size` is its size, if that is known.
    #[pyo3(signature = (name, size, content_type, metadata, if_absent, if_version))]
    #[expect(clippy::too_many_arguments, reason = "keyword arguments of one Python call")]
    fn writer(
        &self,
        py: Python<'_>,
        name: &str,
        size: Option<u64>,
        content_type: Option<String>,
        metadata: Vec<(String, String)>,
        if_absent: bool,
        if_version: Option<String>,
    ) -> PyResult<ObjectWriter> {
        let options = PutOptions {
            condition: condition(py, if_absent, if_version)?,
            headers: with_type(content_type),
            metadata,
            ..PutOptions::default()
        };
        let client = self.client(py)?;
        let name = Name::parse(name).map_err(|why| error::to_err(py, &why))?;
        Ok(ObjectWriter::new(client.writer(&name, options, size)))
    }

    fn alloc(&self, py: Python<'_>, bytes: u64) -> PyResult<WritableBuffer> {
        let client = self.client(py)?;
        Ok(WritableBuffer::new(wait(py, || client.alloc(bytes))?))
    }

    fn delete(&self, py: Python<'_>, name: &str) -> PyResult<()> {
        self.call(py, name, forebay_client::Client::delete)
    }

    fn stat(&self, py: Python<'_>, name: &str) -> PyResult<Info> {
        let (stat, name) = self.call(py, name, |client, name| {
            Ok((client.stat(name)?, name.to_string()))
        })?;
        Ok((
            name,
            stat.bytes,
            stat.version,
            stat.modified,
            stat.headers.content_type,
            stat.metadata,
        ))
    }

    #[pyo3(signature = (bucket, prefix, delimiter))]
    fn list(
        &self,
        py: Python<'_>,
        bucket: &str,
        prefix: String,
        delimiter: Option<String>,
    ) -> PyResult<Listing> {
        let options = ListOptions {
            prefix,
            delimiter,
            ..ListOptions::default()
        };
        let listing = self
            .client(py)?
            .list(bucket, options)
            .map_err(|why| error::to_err(py, &why))?;
        Ok(Listing::new(bucket, listing))
    }

    fn buckets(&self, py: Python<'_>) -> PyResult<Vec<String>> {
        let client = self.client(py)?;
        wait(py, || client.buckets())
    }

    fn create_bucket(&self, py: Python<'_>, name: &str) -> PyResult<()> {
        let client = self.client(py)?;
        wait(py, || client.create_bucket(name))
    }

    fn ping(&self, py: Python<'_>) -> PyResult<()> {
        let client = self.client(py)?;
        wait(py, || client.ping())
    }

    /// The view behind a pickled one.
    fn open_handle(&self, py: Python<'_>, handle: &[u8]) -> PyResult<View> {
        let handle = ViewHandle::decode(handle).map_err(|why| error::to_err(py, &why))?;
        let client = self.client(py)?;
        let view = wait(py, || client.open_handle(&handle))?;
        Ok(View::new(Arc::clone(&self.address), view))
    }

    /// The fields of `forebay.Stats`.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let stats = self.client(py)?.stats();
        let fields = PyDict::new(py);
        fields.set_item("requests", stats.requests)?;
        fields.set_item("wait_seconds", stats.wait.as_secs_f64())?;
        fields.set_item("reconnects", stats.reconnects)?;
        fields.set_item("bytes_mapped", stats.mapped_bytes)?;
        fields.set_item("bytes_copied", stats.copied_bytes)?;
        fields.set_item("bytes_ram", stats.ram_bytes)?;
        fields.set_item("bytes_nvme", stats.nvme_bytes)?;
        fields.set_item("bytes_lake", stats.lake_bytes)?;
        fields.set_item("bytes_written", stats.written_bytes)?;
        Ok(fields)
    }

    /// Gives the connections back when the last view and buffer are gone. Idempotent.
    fn close(&self, py: Python<'_>) {
        let client = self.client.write().take();
        py.detach(|| drop(client));
    }
}

fn condition(py: Python<'_>, if_absent: bool, if_version: Option<String>) -> PyResult<WriteCondition> {
    match (if_absent, if_version) {
        (false, None) => Ok(WriteCondition::None),
        (true, None) => Ok(WriteCondition::Absent),
        (false, Some(version)) => Ok(WriteCondition::Version(Version::new(&version))),
        (true, Some(_)) => Err(error::invalid(py, "if_absent and if_version exclude each other")),
    }
}

fn with_type(content_type: Option<String>) -> Headers {
    Headers {
        content_type,
        ..Headers::default()
    }
}

/// Returns whether a read failed only because it starts at or behind the end, where a file just ends.
fn is_past_end(py: Python<'_>, why: &PyErr) -> bool {
    let kind = why
        .value(py)
        .getattr("kind")
        .and_then(|kind| kind.extract::<String>());
    kind.is_ok_and(|kind| kind == Kind::OutOfRange.as_str())
}
