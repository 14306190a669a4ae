//! Bytes of an object that a request names, resolved once the object's size is known: one rule for every door.

use serde::{Deserialize, Serialize};

use crate::{ByteRange, Error, Kind, Result};

/// Bytes of an object that a request names.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ItemRange {
    /// All.
    Whole,
    /// `length` bytes from `offset`; cut at the end of the object, `OutOfRange` if it starts behind it.
    Range {
        /// First byte.
        offset: u64,
        /// Length.
        length: u64,
    },
    /// The last so many.
    Last(u64),
    /// The content of a member of a tar shard.
    Member(String),
}

impl ItemRange {
    /// The bytes of an object of this size; `None` if there are none. A range is cut at the end of the object
    /// and may start at the end, as a read of a file may; starting behind it is `OutOfRange`. A member needs
    /// the archive's index: `Unsupported` here.
    pub fn resolve(&self, object_bytes: u64) -> Result<Option<ByteRange>> {
        match *self {
            Self::Whole => Ok(ByteRange::whole(object_bytes)),
            Self::Range { offset, length } if offset <= object_bytes => {
                let end = offset.saturating_add(length).min(object_bytes);
                Ok(ByteRange::new(offset, end).ok())
            }
            Self::Range { offset, .. } => {
                let error = Error::new(Kind::OutOfRange, "the range starts past the end of the object");
                Err(error.with("offset", offset).with("object_bytes", object_bytes))
            }
            Self::Last(count) => Ok(ByteRange::new(object_bytes.saturating_sub(count), object_bytes).ok()),
            Self::Member(_) => Err(Error::new(
                Kind::Unsupported,
                "members of archives cannot be read here",
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bounds(range: &ItemRange, object_bytes: u64) -> Option<(u64, u64)> {
        let resolved = range.resolve(object_bytes).unwrap();
        resolved.map(|range| (range.start(), range.end()))
    }

    #[test]
    fn ranges_are_cut_at_the_end() {
        let range = |offset, length| ItemRange::Range { offset, length };
        assert_eq!(bounds(&range(8, 100), 10), Some((8, 10)));
        assert_eq!(bounds(&range(8, u64::MAX), 10), Some((8, 10)));
        assert_eq!(bounds(&range(3, 0), 10), None);
        assert_eq!(bounds(&range(10, 5), 10), None);
        assert_eq!(bounds(&range(0, 5), 0), None);
        assert_eq!(bounds(&ItemRange::Last(30), 10), Some((0, 10)));
        assert_eq!(bounds(&ItemRange::Last(0), 10), None);
        assert_eq!(bounds(&ItemRange::Whole, 0), None);
    }

    #[test]
    fn a_range_that_starts_behind_the_end_is_out_of_range() {
        let range = ItemRange::Range {
            offset: 11,
            length: 1,
        };
        assert_eq!(range.resolve(10).unwrap_err().kind(), Kind::OutOfRange);
    }
}
