//! `Listing`: a listing on its way, some hundred entries at a time.

use forebay_client::Entry;
use parking_lot::Mutex;
use pyo3::prelude::*;

use crate::node::Info;
use crate::waiting::wait;

/// Entries that go to Python at once.
const ENTRIES_MAX: usize = 1000;

/// A listing; `next` gives objects and prefixes until there are none.
#[pyclass(frozen, module = "forebay._native")]
pub(crate) struct Listing {
    bucket: String,
    listing: Mutex<forebay_client::Listing>,
}

impl Listing {
    pub(crate) fn new(bucket: &str, listing: forebay_client::Listing) -> Self {
        Self {
            bucket: bucket.to_owned(),
            listing: Mutex::new(listing),
        }
    }
}

#[pymethods]
impl Listing {
    /// The next objects and prefixes; both empty at the end.
    fn next(&self, py: Python<'_>) -> PyResult<(Vec<Info>, Vec<String>)> {
        wait(py, || {
            let (mut objects, mut prefixes) = (Vec::new(), Vec::new());
            for entry in self.listing.lock().by_ref().take(ENTRIES_MAX) {
                match entry? {
                    Entry::Object(object) => objects.push((
                        format!("{}/{}", self.bucket, object.key),
                        object.bytes,
                        object.version,
                        object.modified,
                        None,
                        Vec::new(),
                    )),
                    Entry::Prefix(prefix) => prefixes.push(format!("{}/{prefix}", self.bucket)),
                }
            }
            Ok((objects, prefixes))
        })
    }
}
