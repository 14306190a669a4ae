//! Smallest and largest values of pages, from the page index, where the writer left one: what a filter passes
//! over unread.

use std::ops::Range;

use forebay_core::Result;
use parquet::file::page_index::column_index::ColumnIndexMetaData;
use parquet::file::page_index::index_reader::decode_column_index;

use super::file::ParquetFile;
use super::schema::ValueKind;
use super::{damaged, guarded, thrift};
use crate::filter::Scalar;

/// The bounds of a page; `None`: they are not known.
pub type PageBounds = Option<(Scalar, Scalar)>;

impl ParquetFile {
    /// Returns where the bounds of the pages of a column chunk lie, if they are there and compare as values
    /// do.
    pub fn page_bounds_range(&self, group: usize, leaf: usize) -> Result<Option<Range<u64>>> {
        let compares = self.leaves().get(leaf).is_some_and(|leaf| {
            !leaf.is_list()
                && matches!(
                    leaf.kind,
                    ValueKind::Int(_)
                        | ValueKind::Float(4 | 8)
                        | ValueKind::Date
                        | ValueKind::TimestampMs
                        | ValueKind::TimestampUs
                        | ValueKind::TimestampNs
                        | ValueKind::Text
                )
        });
        let chunk = self.chunk(group, leaf)?;
        let place = chunk.column_index_offset().zip(chunk.column_index_length());
        let place = place.filter(|_| compares).and_then(|(offset, length)| {
            let (offset, length) = (u64::try_from(offset).ok()?, u64::try_from(length).ok()?);
            Some(offset..offset.checked_add(length)?)
        });
        Ok(place.filter(|range| !range.is_empty() && range.end <= self.data_end))
    }

    /// The bounds of all pages of a column chunk, in order.
    pub fn page_bounds(&self, group: usize, leaf: usize, index: &[u8]) -> Result<Vec<PageBounds>> {
        let physical = self.chunk(group, leaf)?.column_type();
        let wrong = || damaged("has a page index that cannot be read");
        if !thrift::fits(index) {
            return Err(wrong());
        }
        let found = guarded(|| decode_column_index(index, physical)).map_err(|why| wrong().caused_by(why))?;
        let pages = usize::try_from(found.num_pages()).unwrap_or_default();
        Ok((0..pages).map(|page| bounds(&found, page)).collect())
    }
}

fn bounds(index: &ColumnIndexMetaData, page: usize) -> PageBounds {
    if index.is_null_page(page) {
        return None;
    }
    let int = |number: i64| Scalar::Int(number.into());
    let float = |number: f64| (!number.is_nan()).then_some(Scalar::Float(number));
    let text = |bytes: &[u8]| Some(Scalar::Text(std::str::from_utf8(bytes).ok()?.to_owned()));
    match index {
        ColumnIndexMetaData::INT32(all) => all
            .min_value(page)
            .zip(all.max_value(page))
            .map(|(low, high)| (int((*low).into()), int((*high).into()))),
        ColumnIndexMetaData::INT64(all) => all
            .min_value(page)
            .zip(all.max_value(page))
            .map(|(low, high)| (int(*low), int(*high))),
        ColumnIndexMetaData::FLOAT(all) => {
            let (low, high) = all.min_value(page).zip(all.max_value(page))?;
            float((*low).into()).zip(float((*high).into()))
        }
        ColumnIndexMetaData::DOUBLE(all) => {
            let (low, high) = all.min_value(page).zip(all.max_value(page))?;
            float(*low).zip(float(*high))
        }
        ColumnIndexMetaData::BYTE_ARRAY(all) => {
            let (low, high) = all.min_value(page).zip(all.max_value(page))?;
            text(low).zip(text(high))
        }
        _ => None,
    }
}
