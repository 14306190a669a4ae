//! Limits of pages, before a decoder believes their headers.
//!
//! The `parquet` crate takes memory for as many values as a header claims. A page of a few bytes may claim
//! millions: in a dictionary, whose values should each have bytes, and in lists, where runs of equal values
//! and levels cost nothing in the file.

use forebay_core::{Error, Kind, Result};
use parquet::basic::Type;
use parquet::column::page::Page;
use parquet::data_type::ByteArray;
use parquet::errors::ParquetError;

use super::damaged;

/// The most that a page may decode to.
pub const SLAB_BYTES_MAX: usize = 512 << 20;
/// Memory that the values of lists may take while they are put together, beside the slab.
const LISTS_BYTES_MAX: usize = 3 * SLAB_BYTES_MAX;
/// Memory of each of them besides itself: two levels, and where it begins and ends.
const LIST_VALUE_BYTES: usize = 2 * size_of::<i16>() + 2 * size_of::<usize>();
/// Message of an error inside of the `parquet` crate that means [`too_large`].
pub(super) const TOO_LARGE: &str = "the page decodes to more than is taken";

/// The type of the values of a column, as it is stored.
#[derive(Debug, Clone, Copy)]
pub(super) struct StoredType {
    pub(super) physical: Type,
    /// Of values of fixed length.
    pub(super) length: usize,
    pub(super) is_list: bool,
}

impl StoredType {
    /// Returns what the smallest value takes in a page without compression; of bits nothing, because there is
    /// no dictionary of them.
    fn plain_bytes(self) -> usize {
        match self.physical {
            Type::BOOLEAN => 0,
            Type::INT32 | Type::FLOAT | Type::BYTE_ARRAY => 4,
            Type::INT64 | Type::DOUBLE => 8,
            Type::INT96 => 12,
            Type::FIXED_LEN_BYTE_ARRAY => self.length,
        }
    }

    /// Returns what a value takes in memory, besides bytes of its own.
    fn memory_bytes(self) -> usize {
        match self.physical {
            Type::BYTE_ARRAY | Type::FIXED_LEN_BYTE_ARRAY => size_of::<ByteArray>(),
            _ => self.plain_bytes().max(1),
        }
    }
}

/// Refuses pages whose values would take more memory than they may.
pub(super) fn check<'a>(pages: impl Iterator<Item = &'a Page>, stored: StoredType) -> Result<()> {
    let (mut bytes, mut values) = (0, 0);
    for page in pages {
        bytes += page.buffer().len();
        let claimed = page.num_values() as usize;
        if page.is_dictionary_page() {
            if claimed.saturating_mul(stored.plain_bytes()) > page.buffer().len() {
                return Err(damaged("has a dictionary that claims more values than it has"));
            }
            if claimed.saturating_mul(stored.memory_bytes()) > SLAB_BYTES_MAX {
                return Err(too_large());
            }
        } else {
            values += claimed;
        }
    }
    let list_bytes = values.saturating_mul(stored.memory_bytes() + LIST_VALUE_BYTES);
    if bytes > SLAB_BYTES_MAX || values > SLAB_BYTES_MAX / 4 || stored.is_list && list_bytes > LISTS_BYTES_MAX
    {
        return Err(too_large());
    }
    Ok(())
}

pub(super) fn too_large() -> Error {
    let message =
        "a page of the column is too large to be decoded; write smaller row groups, with a page index";
    Error::new(Kind::Unsupported, message).with("bytes_max", SLAB_BYTES_MAX)
}

pub(super) fn unsupported() -> Error {
    let message =
        "the column is compressed or encoded in a way that is not supported; write it with zstd or snappy";
    Error::new(Kind::Unsupported, message)
}

/// Returns what the `parquet` crate could not read or decode.
pub(super) fn refused(why: ParquetError) -> Error {
    match why {
        ParquetError::NYI(_) => unsupported().caused_by(why),
        ParquetError::General(why) if why == TOO_LARGE => too_large(),
        why => damaged("has a page that cannot be read").caused_by(why),
    }
}

#[cfg(test)]
mod tests {
    use parquet::basic::Encoding;

    use super::*;

    fn dictionary(bytes: usize, num_values: u32) -> Page {
        Page::DictionaryPage {
            buf: vec![0; bytes].into(),
            num_values,
            encoding: Encoding::PLAIN,
            is_sorted: false,
        }
    }

    fn data(num_values: u32) -> Page {
        Page::DataPage {
            buf: vec![0; 20].into(),
            num_values,
            encoding: Encoding::RLE_DICTIONARY,
            def_level_encoding: Encoding::RLE,
            rep_level_encoding: Encoding::RLE,
            statistics: None,
        }
    }

    fn stored(physical: Type, is_list: bool) -> StoredType {
        StoredType {
            physical,
            length: 5,
            is_list,
        }
    }

    fn kind_of(page: &Page, stored: StoredType) -> Option<Kind> {
        check([page].into_iter(), stored).err().map(|error| error.kind())
    }

    #[test]
    fn a_dictionary_has_bytes_for_every_value() {
        let types = [
            Type::INT32,
            Type::INT64,
            Type::INT96,
            Type::BYTE_ARRAY,
            Type::FIXED_LEN_BYTE_ARRAY,
        ];
        for (physical, bytes) in types.into_iter().zip([4, 8, 12, 4, 5]) {
            let stored = stored(physical, false);
            assert_eq!(kind_of(&dictionary(100 * bytes, 100), stored), None);
            assert_eq!(
                kind_of(&dictionary(100 * bytes, 101), stored),
                Some(Kind::Corrupt)
            );
            assert_eq!(kind_of(&dictionary(20, 1 << 27), stored), Some(Kind::Corrupt));
        }
    }

    #[test]
    fn values_of_lists_are_counted_with_what_they_take_in_memory() {
        for (physical, most) in [
            (Type::INT32, 67_108_864),
            (Type::INT64, 57_521_883),
            (Type::BYTE_ARRAY, 30_000_000),
        ] {
            assert_eq!(kind_of(&data(most), stored(physical, true)), None);
            assert_eq!(
                kind_of(&data(1 << 27), stored(physical, true)),
                Some(Kind::Unsupported)
            );
            assert_eq!(
                kind_of(&data(1 << 27), stored(physical, false)),
                None,
                "decoded some at a time"
            );
        }
    }
}
