//! `CopyObject` and `UploadPartCopy`.

use forebay_core::{ByteRange, Error};
use forebay_engine::{CopyRequest, PartCopy};
use s3s::dto::*;
use s3s::{S3Response, S3Result, s3_error};

use super::{Request, Response};
use crate::attributes::{self, GivenHeaders};
use crate::map;
use crate::operations::Operations;
use crate::ops::multipart;

/// `CopyObject`.
pub(crate) async fn object(
    operations: &Operations,
    request: Request<CopyObjectInput>,
) -> Response<CopyObjectOutput> {
    let target_condition = target_condition(&request)?;
    let input = request.input;
    let source = map::copy_source(&input.copy_source)?;
    let target = (map::bucket(&input.bucket)?, map::writable_key(&input.key)?);
    let replaces_metadata = directive(input.metadata_directive.as_ref().map(MetadataDirective::as_str))?;
    let replaces_tags = directive(input.tagging_directive.as_ref().map(TaggingDirective::as_str))?;
    if source == target && !replaces_metadata {
        let message = "this copy request is illegal because it is trying to copy an object to itself without \
                       changing the object's metadata, storage class, website redirect location or encryption attributes";
        return Err(s3_error!(InvalidRequest, "{message}"));
    }
    let conditions = map::conditions(
        input.copy_source_if_match.as_ref(),
        input.copy_source_if_none_match.as_ref(),
        input.copy_source_if_modified_since.as_ref(),
        input.copy_source_if_unmodified_since.as_ref(),
    );
    let headers = GivenHeaders {
        content_type: input.content_type,
        content_encoding: input.content_encoding,
        content_language: input.content_language,
        content_disposition: input.content_disposition,
        cache_control: input.cache_control,
        expires: input.expires,
        metadata: input.metadata,
    };
    let copy = CopyRequest {
        source,
        target,
        attributes: if replaces_metadata {
            Some(headers.into_attributes()?)
        } else {
            None
        },
        tags: if replaces_tags {
            Some(attributes::parse_tagging_header(input.tagging.as_deref())?)
        } else {
            None
        },
        conditions,
        target_condition,
    };
    let extensions = &request.extensions;
    let receipt = operations
        .engine
        .copy(copy)
        .await
        .map_err(|error: Error| map::failure(&error, extensions))?;
    let result = CopyObjectResult {
        e_tag: Some(map::etag(receipt.version.as_str())),
        last_modified: Some(map::timestamp(receipt.modified)),
        ..Default::default()
    };
    Ok(S3Response::new(CopyObjectOutput {
        copy_object_result: Some(result),
        ..Default::default()
    }))
}

/// `UploadPartCopy`.
pub(crate) async fn part(
    operations: &Operations,
    request: Request<UploadPartCopyInput>,
) -> Response<UploadPartCopyOutput> {
    let input = &request.input;
    let bucket = map::bucket(&input.bucket)?;
    let copy = PartCopy {
        key: map::writable_key(&input.key)?,
        upload: input.upload_id.clone(),
        number: multipart::part_number(input.part_number)?,
        source: map::copy_source(&input.copy_source)?,
        range: input
            .copy_source_range
            .as_deref()
            .map(parse_source_range)
            .transpose()?,
        conditions: map::conditions(
            input.copy_source_if_match.as_ref(),
            input.copy_source_if_none_match.as_ref(),
            input.copy_source_if_modified_since.as_ref(),
            input.copy_source_if_unmodified_since.as_ref(),
        ),
    };
    let copied = operations.engine.copy_part(&bucket, copy).await;
    let part = copied.map_err(|error| map::failure(&error, &request.extensions))?;
    let result = CopyPartResult {
        e_tag: Some(map::etag(&part.etag)),
        last_modified: Some(map::timestamp(part.modified)),
        ..Default::default()
    };
    Ok(S3Response::new(UploadPartCopyOutput {
        copy_part_result: Some(result),
        ..Default::default()
    }))
}

/// `s3s` 0.14 has no fields for these headers.
fn target_condition(request: &Request<CopyObjectInput>) -> S3Result<forebay_engine::WriteCondition> {
    let read = |name: &str| -> S3Result<Option<ETagCondition>> {
        let Some(value) = request.headers.get(name) else {
            return Ok(None);
        };
        let parsed = ETagCondition::parse_http_header(value.as_bytes());
        Ok(Some(parsed.map_err(|error| {
            s3_error!(error, InvalidArgument, "the header {name} is not an ETag")
        })?))
    };
    map::write_condition(read("if-match")?.as_ref(), read("if-none-match")?.as_ref())
}

/// Returns whether `REPLACE` is asked for.
fn directive(text: Option<&str>) -> S3Result<bool> {
    match text {
        None | Some("COPY") => Ok(false),
        Some("REPLACE") => Ok(true),
        Some(_) => Err(s3_error!(InvalidArgument, "a directive must be COPY or REPLACE")),
    }
}

/// `bytes=first-last`, both needed.
fn parse_source_range(text: &str) -> S3Result<ByteRange> {
    let wrong = || {
        s3_error!(
            InvalidArgument,
            "x-amz-copy-source-range must be bytes=first-last"
        )
    };
    match Range::parse(text) {
        Ok(Range::Int {
            first,
            last: Some(last),
        }) => ByteRange::new(first, last + 1).map_err(|_| wrong()),
        _ => Err(wrong()),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn source_ranges_are_closed() {
        assert_eq!(
            parse_source_range("bytes=0-9").unwrap(),
            ByteRange::new(0, 10).unwrap()
        );
        for wrong in ["bytes=0-", "bytes=-5", "0-9", "bytes=9-0", "bytes=0-1,2-3", ""] {
            assert!(parse_source_range(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn directives_are_two_words() {
        assert!(!directive(None).unwrap());
        assert!(directive(Some("REPLACE")).unwrap());
        assert!(directive(Some("MOVE")).is_err());
    }

    proptest! {
        #[test]
        fn any_source_range_is_answered(text in "(bytes=)?[0-9]{0,25}-?[0-9]{0,25}") {
            if let Ok(range) = parse_source_range(&text) {
                prop_assert!(range.start() < range.end());
            }
        }
    }
}
