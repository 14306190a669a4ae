//! `GetObject`, `HeadObject`, `GetObjectAttributes`.
//!
//! A GET hands the engine's pieces to the socket as they are. The first piece has been fetched and checked
//! when the answer begins, so most errors still become a proper answer; a later one cuts the connection.

use forebay_core::{ByteRange, Kind};
use forebay_engine::{ObjectChecksum, ObjectInfo, RangeRequest, ReadAnswer, Verdict};
use http::header::{CACHE_CONTROL, CONTENT_RANGE, CONTENT_TYPE, ETAG, EXPIRES, HeaderName, LAST_MODIFIED};
use http::{HeaderMap, HeaderValue, StatusCode};
use s3s::dto::*;
use s3s::{S3Error, S3ErrorCode, S3Response, S3Result, s3_error};

use super::{Request, Response};
use crate::attributes;
use crate::body::PieceBody;
use crate::checksum::{self, Values};
use crate::context::RequestContext;
use crate::map;
use crate::operations::Operations;

const DEFAULT_CONTENT_TYPE: &str = "binary/octet-stream";
const PART_NUMBER_MAX: i32 = 10_000;
const TAGGING_COUNT: HeaderName = HeaderName::from_static("x-amz-tagging-count");

/// `GetObject`.
pub(crate) async fn get(
    operations: &Operations,
    request: Request<GetObjectInput>,
) -> Response<GetObjectOutput> {
    let input = &request.input;
    let (bucket, key) = (map::bucket(&input.bucket)?, map::readable_key(&input.key)?);
    map::refuse_version(input.version_id.as_deref())?;
    let range = wanted_range(input.range, input.part_number)?;
    let conditions = map::conditions(
        input.if_match.as_ref(),
        input.if_none_match.as_ref(),
        input.if_modified_since.as_ref(),
        input.if_unmodified_since.as_ref(),
    );
    let answer = operations.engine.read(&bucket, &key, range, &conditions).await;
    let read = match answer.map_err(|error| range_failure(&error, range, &request.extensions))? {
        ReadAnswer::Object(read) => *read,
        ReadAnswer::NotModified(info) => return Err(not_modified(&info)),
    };
    let context = RequestContext::of(&request.extensions).cloned();
    let bytes = read.range.map_or(0, ByteRange::len);
    let body = (bytes > 0).then(|| StreamingBlob::new(PieceBody::new(read.pieces, bytes, context)));
    let shown = Shown::new(&read.info, range, read.range, input.checksum_mode.as_ref());
    Ok(S3Response::new(shown.into_get(&read.info, body)))
}

/// `HeadObject`.
pub(crate) async fn head(
    operations: &Operations,
    request: Request<HeadObjectInput>,
) -> Response<HeadObjectOutput> {
    let input = &request.input;
    let (bucket, key) = (map::bucket(&input.bucket)?, map::readable_key(&input.key)?);
    map::refuse_version(input.version_id.as_deref())?;
    let wanted = wanted_range(input.range, input.part_number)?;
    let conditions = map::conditions(
        input.if_match.as_ref(),
        input.if_none_match.as_ref(),
        input.if_modified_since.as_ref(),
        input.if_unmodified_since.as_ref(),
    );
    let answer = operations.engine.head(&bucket, &key).await;
    let info = answer.map_err(|error| map::read_failure(&error, &request.extensions))?;
    match conditions.check(&info) {
        Verdict::Proceed => {}
        Verdict::NotModified => return Err(not_modified(&info)),
        Verdict::Failed => {
            return Err(s3_error!(
                PreconditionFailed,
                "a condition of the request does not hold"
            ));
        }
    }
    let resolved = wanted.resolve(&info);
    let range = resolved.map_err(|error| range_failure(&error, wanted, &request.extensions))?;
    let shown = Shown::new(&info, wanted, range, input.checksum_mode.as_ref());
    if shown.content_range.is_some()
        && let Some(context) = RequestContext::of(&request.extensions)
    {
        context.update(|notes| notes.status = Some(StatusCode::PARTIAL_CONTENT));
    }
    let mut overrides = head_overrides(input)?;
    if let Some(count) = shown.tag_count {
        // `s3s` has no field for it here.
        overrides.insert(TAGGING_COUNT, HeaderValue::from(count));
    }
    Ok(S3Response::with_headers(shown.into_head(&info), overrides))
}

/// `GetObjectAttributes`.
pub(crate) async fn attributes(
    operations: &Operations,
    request: Request<GetObjectAttributesInput>,
) -> Response<GetObjectAttributesOutput> {
    let input = &request.input;
    let (bucket, key) = (map::bucket(&input.bucket)?, map::readable_key(&input.key)?);
    map::refuse_version(input.version_id.as_deref())?;
    let answer = operations.engine.head(&bucket, &key).await;
    let info = answer.map_err(|error| map::read_failure(&error, &request.extensions))?;
    // `s3s` gives the header as it stands: one value per line, or several with commas.
    let asked: Vec<&str> = input
        .object_attributes
        .iter()
        .flat_map(|one| one.as_str().split(','))
        .map(str::trim)
        .collect();
    let wants = |name: &str| asked.contains(&name);

    let values = Values::of(&info.checksums);
    let checksum = Checksum {
        checksum_crc32: values.crc32,
        checksum_crc32c: values.crc32c,
        checksum_crc64nvme: values.crc64nvme,
        checksum_sha1: values.sha1,
        checksum_sha256: values.sha256,
        checksum_type: checksum_type(&info.checksums),
    };
    let parts_count = i32::try_from(info.part_bytes.len()).unwrap_or(i32::MAX);
    let parts = GetObjectAttributesParts {
        total_parts_count: Some(parts_count),
        ..Default::default()
    };
    Ok(S3Response::new(GetObjectAttributesOutput {
        checksum: (wants("Checksum") && !info.checksums.is_empty()).then_some(checksum),
        e_tag: wants("ETag").then(|| map::etag(info.version.as_str())),
        last_modified: Some(map::timestamp(info.modified)),
        object_parts: (wants("ObjectParts") && parts_count > 0).then_some(parts),
        object_size: wants("ObjectSize").then(|| map::size(info.bytes)),
        storage_class: wants("StorageClass").then(|| StorageClass::from_static(StorageClass::STANDARD)),
        ..Default::default()
    }))
}

pub(crate) fn wanted_range(range: Option<Range>, part_number: Option<i32>) -> S3Result<RangeRequest> {
    match (range, part_number) {
        (None, None) => Ok(RangeRequest::Whole),
        (
            Some(Range::Int {
                first,
                last: Some(last),
            }),
            None,
        ) => Ok(RangeRequest::Bounded { first, last }),
        (Some(Range::Int { first, last: None }), None) => Ok(RangeRequest::From(first)),
        (Some(Range::Suffix { length }), None) => Ok(RangeRequest::Last(length)),
        (None, Some(number)) if (1..=PART_NUMBER_MAX).contains(&number) => Ok(RangeRequest::Part(
            u16::try_from(number).expect("checked to be at most 10,000"),
        )),
        (None, Some(_)) => Err(s3_error!(
            InvalidArgument,
            "partNumber must be 1 to {PART_NUMBER_MAX}"
        )),
        (Some(_), Some(_)) => Err(s3_error!(
            InvalidRequest,
            "give either a range or a partNumber, not both"
        )),
    }
}

fn no_such_part() -> S3Error {
    let mut error = S3Error::with_message(
        S3ErrorCode::Custom("InvalidPartNumber".into()),
        "the object has no part of this number",
    );
    error.set_status_code(StatusCode::RANGE_NOT_SATISFIABLE);
    error
}

fn range_failure(error: &forebay_core::Error, range: RangeRequest, extensions: &http::Extensions) -> S3Error {
    if error.kind() == Kind::OutOfRange && matches!(range, RangeRequest::Part(_)) {
        return no_such_part();
    }
    let mut answer = map::read_failure(error, extensions);
    let bytes = error.context().find(|(name, _)| *name == "object_bytes");
    if error.kind() == Kind::OutOfRange
        && let Some((_, bytes)) = bytes
        && let Ok(size) = HeaderValue::from_str(&format!("bytes */{bytes}"))
    {
        let mut headers = HeaderMap::new();
        // Given headers replace all others, so the content type has to come along.
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/xml"));
        headers.insert(CONTENT_RANGE, size);
        answer.set_headers(headers);
    }
    answer
}

/// 304, with what a cache needs to go on.
fn not_modified(info: &ObjectInfo) -> S3Error {
    let mut headers = HeaderMap::new();
    if let Ok(etag) = map::etag(info.version.as_str()).to_http_header() {
        headers.insert(ETAG, etag);
    }
    let mut date = Vec::new();
    if map::timestamp(info.modified)
        .format(TimestampFormat::HttpDate, &mut date)
        .is_ok()
        && let Ok(date) = HeaderValue::from_bytes(&date)
    {
        headers.insert(LAST_MODIFIED, date);
    }
    if let Some(Ok(value)) = info
        .attributes
        .cache_control
        .as_deref()
        .map(HeaderValue::from_str)
    {
        headers.insert(CACHE_CONTROL, value);
    }
    let mut error = S3Error::new(S3ErrorCode::NotModified);
    error.set_headers(headers);
    error
}

/// `s3s` applies `response-*` to GET only.
fn head_overrides(input: &HeadObjectInput) -> S3Result<HeaderMap> {
    let mut headers = HeaderMap::new();
    let wishes = [
        ("cache-control", input.response_cache_control.as_deref()),
        (
            "content-disposition",
            input.response_content_disposition.as_deref(),
        ),
        ("content-encoding", input.response_content_encoding.as_deref()),
        ("content-language", input.response_content_language.as_deref()),
        ("content-type", input.response_content_type.as_deref()),
    ];
    for (name, value) in wishes {
        let Some(value) = value else { continue };
        let value = HeaderValue::from_str(value)
            .map_err(|error| s3_error!(error, InvalidArgument, "response-{name} cannot be a header"))?;
        headers.insert(HeaderName::from_static(name), value);
    }
    if let Some(expires) = &input.response_expires {
        let mut date = Vec::new();
        if expires.format(TimestampFormat::HttpDate, &mut date).is_ok()
            && let Ok(date) = HeaderValue::from_bytes(&date)
        {
            headers.insert(EXPIRES, date);
        }
    }
    Ok(headers)
}

fn checksum_type(checksums: &[ObjectChecksum]) -> Option<ChecksumType> {
    checksums
        .first()
        .map(|first| ChecksumType::from_static(checksum::kind_name(first.kind)))
}

/// `s3s` has two types with these fields; what goes into them is said once.
macro_rules! output {
    ($output:ident, $shown:expr, $kept:expr) => {
        $output {
            accept_ranges: Some("bytes".to_owned()),
            cache_control: $kept.cache_control.clone(),
            checksum_crc32: $shown.checksums.crc32,
            checksum_crc32c: $shown.checksums.crc32c,
            checksum_crc64nvme: $shown.checksums.crc64nvme,
            checksum_sha1: $shown.checksums.sha1,
            checksum_sha256: $shown.checksums.sha256,
            checksum_type: $shown.checksum_type,
            content_disposition: $kept.content_disposition.clone(),
            content_encoding: $kept.content_encoding.clone(),
            content_language: $kept.content_language.clone(),
            content_length: Some($shown.content_length),
            content_range: $shown.content_range,
            content_type: Some(
                $kept
                    .content_type
                    .as_deref()
                    .unwrap_or(DEFAULT_CONTENT_TYPE)
                    .to_owned(),
            ),
            e_tag: Some($shown.e_tag),
            expires: $shown.expires,
            last_modified: Some($shown.last_modified),
            metadata: $shown.metadata,
            missing_meta: $shown.missing_meta,
            parts_count: $shown.parts_count,
            ..Default::default()
        }
    };
}

/// Headers that GET and HEAD share.
struct Shown {
    content_length: i64,
    content_range: Option<String>,
    parts_count: Option<i32>,
    tag_count: Option<i32>,
    checksums: Values,
    checksum_type: Option<ChecksumType>,
    e_tag: ETag,
    expires: Option<Timestamp>,
    last_modified: Timestamp,
    metadata: Option<Metadata>,
    missing_meta: Option<i32>,
}

impl Shown {
    fn new(
        info: &ObjectInfo,
        wanted: RangeRequest,
        range: Option<ByteRange>,
        mode: Option<&ChecksumMode>,
    ) -> Self {
        let is_whole = range == ByteRange::whole(info.bytes) && !matches!(wanted, RangeRequest::Part(_));
        // A checksum of the whole says nothing about a part, and SDKs would compare it.
        let shows_checksums = is_whole && mode.is_some_and(|mode| mode.as_str() == ChecksumMode::ENABLED);
        let checksums: &[ObjectChecksum] = if shows_checksums { &info.checksums } else { &[] };
        let content_range = match (wanted, range) {
            (RangeRequest::Whole, _) | (_, None) => None,
            (_, Some(range)) => Some(format!(
                "bytes {}-{}/{}",
                range.start(),
                range.end() - 1,
                info.bytes
            )),
        };
        let parts_count = i32::try_from(info.part_bytes.len())
            .ok()
            .filter(|count| *count > 0);
        let (metadata, missing_meta) = attributes::metadata(&info.attributes);
        Self {
            content_length: map::size(range.map_or(0, ByteRange::len)),
            content_range,
            parts_count: parts_count.filter(|_| matches!(wanted, RangeRequest::Part(_))),
            tag_count: i32::try_from(info.tag_count).ok().filter(|count| *count > 0),
            checksums: Values::of(checksums),
            checksum_type: checksum_type(checksums),
            e_tag: map::etag(info.version.as_str()),
            expires: attributes::expires(&info.attributes),
            last_modified: map::timestamp(info.modified),
            metadata,
            missing_meta,
        }
    }

    fn into_get(self, info: &ObjectInfo, body: Option<StreamingBlob>) -> GetObjectOutput {
        GetObjectOutput {
            body,
            tag_count: self.tag_count,
            ..output!(GetObjectOutput, self, &info.attributes)
        }
    }

    fn into_head(self, info: &ObjectInfo) -> HeadObjectOutput {
        output!(HeadObjectOutput, self, &info.attributes)
    }
}
