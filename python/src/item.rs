//! Items of a read in Python's words: names, ranges, tar members.

use forebay_client::{Item, ItemRange, Name, ObjectName};
use forebay_core::{Error, Kind, Result};
use pyo3::prelude::*;
use pyo3::types::{PyList, PyString, PyTuple};

use crate::error;

/// `offset` and `length` as `Node.get` takes them.
pub(crate) fn range(offset: i64, length: Option<u64>) -> Result<ItemRange> {
    match (u64::try_from(offset), length) {
        (Ok(0), None) => Ok(ItemRange::Whole),
        (Ok(offset), length) => Ok(ItemRange::Range {
            offset,
            // Cut at the end of the object by the node.
            length: length.unwrap_or(u64::MAX - offset),
        }),
        (Err(_), None) => Ok(ItemRange::Last(offset.unsigned_abs())),
        (Err(_), Some(_)) => Err(Error::new(
            Kind::InvalidInput,
            "a negative offset means the last bytes and takes no length",
        )),
    }
}

/// Items of a batch.
pub(crate) fn items(list: &Bound<'_, PyList>) -> PyResult<Vec<Item>> {
    let mut names = LastName::default();
    list.iter().map(|one| item(&one, &mut names)).collect()
}

/// The last name of a batch: the next one is mostly the same, and needs no second check.
#[derive(Default)]
struct LastName {
    text: String,
    object: Option<ObjectName>,
}

impl LastName {
    fn object(&mut self, text: &str) -> Result<ObjectName> {
        if let Some(object) = self.object.as_ref().filter(|_| self.text == text) {
            return Ok(object.clone());
        }
        let object = Name::parse(text)?.to_wire();
        text.clone_into(&mut self.text);
        Ok(self.object.insert(object).clone())
    }
}

/// One item of a batch: a name, `(name, offset, length)` or `(shard, member)`.
fn item(object: &Bound<'_, PyAny>, names: &mut LastName) -> PyResult<Item> {
    let py = object.py();
    let fail = |why: &Error| error::to_err(py, why);
    if let Ok(name) = object.cast::<PyString>() {
        return to_item(names, name.to_str()?, ItemRange::Whole).map_err(|why| fail(&why));
    }
    let wrong = || error::invalid(py, "an item is a name, (name, offset, length) or (shard, member)");
    let Ok(tuple) = object.cast::<PyTuple>() else {
        return Err(wrong());
    };
    match tuple.len() {
        2 => {
            let parts: PyResult<(Bound<'_, PyString>, String)> = tuple.extract();
            let (name, member) = parts.map_err(|_| wrong())?;
            to_item(names, name.to_str()?, ItemRange::Member(member)).map_err(|why| fail(&why))
        }
        3 => {
            let parts: PyResult<(Bound<'_, PyString>, i64, Option<u64>)> = tuple.extract();
            let (name, offset, length) = parts.map_err(|_| wrong())?;
            let range = range(offset, length).map_err(|why| fail(&why))?;
            to_item(names, name.to_str()?, range).map_err(|why| fail(&why))
        }
        _ => Err(wrong()),
    }
}

fn to_item(names: &mut LastName, name: &str, range: ItemRange) -> Result<Item> {
    Ok(Item {
        object: names.object(name)?,
        range,
        version: None,
    })
}
