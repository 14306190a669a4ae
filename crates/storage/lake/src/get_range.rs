//! From "which bytes are wanted" to exact offsets, once the size of the object is known.
//!
//! One rule for all lakes, so that a range means the same on each: the end is cut at the end of the object, a
//! range that then holds nothing is `OutOfRange` (also every range of an empty object), no range is
//! everything.

use std::ops::Range;

use forebay_core::{Error, Kind, Result};

use crate::GetRange;

/// The offsets to read of an object of `object_bytes`; only a whole empty object gives an empty range.
pub fn resolve_range(range: Option<GetRange>, object_bytes: u64) -> Result<Range<u64>> {
    let (start, end) = match range {
        None => return Ok(0..object_bytes),
        Some(GetRange::Bounded(range)) => (range.start(), range.end().min(object_bytes)),
        Some(GetRange::From(start)) => (start, object_bytes),
        Some(GetRange::Last(bytes)) => (object_bytes.saturating_sub(bytes), object_bytes),
    };
    if start < end {
        return Ok(start..end);
    }
    Err(Error::new(
        Kind::OutOfRange,
        "the asked-for range lies past the end of the object",
    )
    .with("start", start)
    .with("object_bytes", object_bytes))
}

#[cfg(test)]
mod tests {
    use forebay_core::ByteRange;

    use super::*;

    #[test]
    fn no_range_is_everything_even_of_an_empty_object() {
        assert_eq!(resolve_range(None, 0).unwrap(), 0..0);
        assert_eq!(resolve_range(None, 7).unwrap(), 0..7);
    }

    #[test]
    fn end_is_cut_at_the_object_end() {
        let range = GetRange::Bounded(ByteRange::new(3, 100).unwrap());
        assert_eq!(resolve_range(Some(range), 7).unwrap(), 3..7);
        assert_eq!(resolve_range(Some(GetRange::Last(100)), 7).unwrap(), 0..7);
        assert_eq!(resolve_range(Some(GetRange::Last(2)), 7).unwrap(), 5..7);
        assert_eq!(resolve_range(Some(GetRange::From(6)), 7).unwrap(), 6..7);
    }

    #[test]
    fn a_range_that_holds_nothing_is_out_of_range() {
        let bounded = GetRange::Bounded(ByteRange::new(7, 8).unwrap());
        for (range, bytes) in [
            (bounded, 7),
            (GetRange::From(7), 7),
            (GetRange::Last(0), 7),
            (GetRange::Last(1), 0),
        ] {
            assert_eq!(
                resolve_range(Some(range), bytes).unwrap_err().kind(),
                Kind::OutOfRange,
                "{range:?}"
            );
        }
    }
}
