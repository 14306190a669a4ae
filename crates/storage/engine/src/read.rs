//! Reading an object: which version, which bytes, and from where.

use std::sync::Arc;

use forebay_core::{BucketName, ByteRange, Error, Kind, ObjectKey, Result};

use crate::{Conditions, Engine, ObjectInfo, ObjectPieces, ObjectRead, RangeRequest, ReadAnswer, Verdict};

impl Engine {
    /// Starts a read; the first piece has been fetched and checked when this returns.
    ///
    /// Errors: `NotFound` (context `key` only if the bucket is there), `PreconditionFailed`, `OutOfRange`,
    /// and what the lake says. Cancel-safe: a fill that others wait for goes on.
    pub async fn read(
        &self,
        bucket: &BucketName,
        key: &ObjectKey,
        range: RangeRequest,
        conditions: &Conditions,
    ) -> Result<ReadAnswer> {
        self.with_version(bucket, key, None, |info| async move {
            match conditions.check(&info) {
                Verdict::NotModified => Ok(ReadAnswer::NotModified(info)),
                Verdict::Failed => Err(failed_condition(&info)),
                Verdict::Proceed => {
                    let read = self.start(&info, range).await?;
                    Ok(ReadAnswer::Object(Box::new(read)))
                }
            }
        })
        .await
    }

    async fn start(&self, info: &Arc<ObjectInfo>, range: RangeRequest) -> Result<ObjectRead> {
        let Some(range) = resolve_range(range, info)? else {
            return Ok(ObjectRead {
                info: Arc::clone(info),
                range: None,
                pieces: ObjectPieces::none(),
            });
        };
        let source = self.source_of(info)?;
        let pieces = self.reservoir.read(&info.object_version(), range, &source);
        Ok(ObjectRead {
            info: Arc::clone(info),
            range: Some(range),
            pieces: ObjectPieces::begin(pieces, info, &self.freshness).await?,
        })
    }
}

impl RangeRequest {
    /// The bytes of this object that are meant; `None` means all of an empty object. `OutOfRange` if there
    /// are none.
    pub fn resolve(self, info: &ObjectInfo) -> Result<Option<ByteRange>> {
        resolve_range(self, info)
    }

    /// The same for an object of which only the size is known; a part cannot be found by it.
    pub fn within(self, object_bytes: u64) -> Result<Option<ByteRange>> {
        let past_end = || {
            Error::new(Kind::OutOfRange, "the range starts past the end of the object")
                .with("object_bytes", object_bytes)
        };
        let (first, end) = match self {
            Self::Whole => return Ok(ByteRange::whole(object_bytes)),
            Self::Bounded { first, last } => (first, last.saturating_add(1).min(object_bytes)),
            Self::From(first) => (first, object_bytes),
            Self::Last(0) | Self::Part(_) => return Err(past_end()),
            Self::Last(count) => {
                return Ok(ByteRange::new(object_bytes.saturating_sub(count), object_bytes).ok());
            }
        };
        ByteRange::new(first, end).map(Some).map_err(|_| past_end())
    }
}

fn resolve_range(request: RangeRequest, info: &ObjectInfo) -> Result<Option<ByteRange>> {
    match request {
        RangeRequest::Part(number) => part_range(number, info),
        _ => request
            .within(info.bytes)
            .map_err(|error| error.with("key", &info.key)),
    }
}

fn part_range(number: u16, info: &ObjectInfo) -> Result<Option<ByteRange>> {
    if info.part_bytes.is_empty() && number == 1 {
        return Ok(ByteRange::whole(info.bytes));
    }
    let index = usize::from(number).wrapping_sub(1);
    let Some(part_bytes) = info.part_bytes.get(index) else {
        let error = Error::new(Kind::OutOfRange, "the object has no part of this number");
        return Err(error.with("key", &info.key).with("part", number));
    };
    let start: u64 = info.part_bytes[..index].iter().sum();
    Ok(ByteRange::new(start, start + part_bytes).ok())
}

pub(crate) fn failed_condition(info: &ObjectInfo) -> Error {
    Error::new(
        Kind::PreconditionFailed,
        "a condition of the request does not hold",
    )
    .with("key", &info.key)
    .with("version", &info.version)
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use forebay_core::Version;
    use forebay_lake::{Attributes, UpdateToken};

    use super::*;

    fn object(bytes: u64, part_bytes: Vec<u64>) -> ObjectInfo {
        ObjectInfo {
            bucket: BucketName::new("bucket").unwrap(),
            key: ObjectKey::new("key").unwrap(),
            domain: forebay_reservoir::TrustDomain::DEFAULT,
            bytes,
            version: Version::new("v"),
            modified: SystemTime::UNIX_EPOCH,
            attributes: Attributes::default(),
            token: UpdateToken {
                etag: None,
                version: None,
            },
            checksums: Vec::new(),
            part_bytes,
            tag_count: 0,
            id: std::sync::OnceLock::new(),
            source: crate::object::SourceCell::default(),
        }
    }

    fn bounds(request: RangeRequest, info: &ObjectInfo) -> Option<(u64, u64)> {
        resolve_range(request, info)
            .ok()
            .flatten()
            .map(|range| (range.start(), range.end()))
    }

    #[test]
    fn ranges_are_cut_at_the_end() {
        let info = object(10, vec![]);
        assert_eq!(bounds(RangeRequest::Whole, &info), Some((0, 10)));
        assert_eq!(
            bounds(RangeRequest::Bounded { first: 8, last: 100 }, &info),
            Some((8, 10))
        );
        assert_eq!(bounds(RangeRequest::From(9), &info), Some((9, 10)));
        assert_eq!(bounds(RangeRequest::Last(3), &info), Some((7, 10)));
        assert_eq!(bounds(RangeRequest::Last(30), &info), Some((0, 10)));
    }

    #[test]
    fn a_range_past_the_end_is_out_of_range() {
        let info = object(10, vec![]);
        for request in [
            RangeRequest::From(10),
            RangeRequest::Bounded { first: 10, last: 10 },
            RangeRequest::Bounded { first: 5, last: 4 },
            RangeRequest::Last(0),
            RangeRequest::Part(2),
        ] {
            assert_eq!(
                resolve_range(request, &info).unwrap_err().kind(),
                Kind::OutOfRange,
                "{request:?}"
            );
        }
        let huge = RangeRequest::Bounded {
            first: u64::MAX,
            last: u64::MAX,
        };
        assert_eq!(resolve_range(huge, &info).unwrap_err().kind(), Kind::OutOfRange);
    }

    #[test]
    fn an_empty_object_has_no_range() {
        let info = object(0, vec![]);
        assert_eq!(resolve_range(RangeRequest::Whole, &info).unwrap(), None);
        assert_eq!(resolve_range(RangeRequest::Part(1), &info).unwrap(), None);
        assert_eq!(
            resolve_range(RangeRequest::From(0), &info).unwrap_err().kind(),
            Kind::OutOfRange
        );
    }

    #[test]
    fn parts_lie_one_after_the_other() {
        let info = object(10, vec![4, 4, 2]);
        assert_eq!(bounds(RangeRequest::Part(1), &info), Some((0, 4)));
        assert_eq!(bounds(RangeRequest::Part(3), &info), Some((8, 10)));
        assert!(resolve_range(RangeRequest::Part(0), &info).is_err());
        assert!(resolve_range(RangeRequest::Part(4), &info).is_err());
    }
}
