//! Multipart uploads: create, upload a part, complete, abort. Listings are in `uploads.rs`, copies in
//! `copy.rs`.

use std::sync::Arc;
use std::time::Duration;

use forebay_core::{BucketName, Error, ObjectKey};
use forebay_engine::{
    ChecksumKind, CompleteRequest, CompletedPart as EnginePart, CreateUpload, ObjectChecksum, PartRequest,
    UploadInfo,
};
use futures::StreamExt;
use parking_lot::Mutex;
use s3s::dto::*;
use s3s::{S3Response, S3Result, s3_error};

use super::{Request, Response};
use crate::attributes::{self, GivenHeaders};
use crate::checksum::{self, Algorithm, PartSum, Values, Verifier};
use crate::map;
use crate::operations::Operations;
use crate::ops::object_write::{body_bytes, body_error, parse_md5};

const PART_NUMBER_MAX: i32 = 10_000;
const PART_BYTES_MAX: u64 = 5 << 30;

/// A completion that takes longer is answered at once with `200` and blanks that keep the connection alive;
/// its outcome follows in the body, as S3 does it.
const COMPLETE_QUICK: Duration = Duration::from_secs(10);

/// `CreateMultipartUpload`.
pub(crate) async fn create(
    operations: &Operations,
    request: Request<CreateMultipartUploadInput>,
) -> Response<CreateMultipartUploadOutput> {
    let input = request.input;
    let (bucket, key) = (map::bucket(&input.bucket)?, map::writable_key(&input.key)?);
    let asked_kind = input.checksum_type.as_ref().map(ChecksumType::as_str);
    let checksum = match &input.checksum_algorithm {
        Some(name) => {
            let algorithm = Algorithm::from_name(name.as_str())?;
            Some((algorithm.name().to_owned(), algorithm.upload_kind(asked_kind)?))
        }
        None if asked_kind.is_some() => {
            return Err(s3_error!(
                InvalidRequest,
                "x-amz-checksum-type needs x-amz-checksum-algorithm"
            ));
        }
        None => None,
    };
    let upload = CreateUpload {
        attributes: GivenHeaders {
            content_type: input.content_type,
            content_encoding: input.content_encoding,
            content_language: input.content_language,
            content_disposition: input.content_disposition,
            cache_control: input.cache_control,
            expires: input.expires,
            metadata: input.metadata,
        }
        .into_attributes()?,
        tags: attributes::parse_tagging_header(input.tagging.as_deref())?,
        checksum,
    };
    let created = operations.engine.create_upload(&bucket, &key, upload).await;
    let upload = created.map_err(|error| map::failure(&error, &request.extensions))?;
    Ok(S3Response::new(CreateMultipartUploadOutput {
        bucket: Some(input.bucket),
        key: Some(input.key),
        upload_id: Some(upload.id),
        checksum_algorithm: upload
            .checksum
            .as_ref()
            .map(|(name, _)| ChecksumAlgorithm::from(name.clone())),
        checksum_type: upload
            .checksum
            .map(|(_, kind)| ChecksumType::from_static(checksum::kind_name(kind))),
        ..Default::default()
    }))
}

/// `UploadPart`.
pub(crate) async fn upload_part(
    operations: &Operations,
    mut request: Request<UploadPartInput>,
) -> Response<UploadPartOutput> {
    let body = request
        .input
        .body
        .take()
        .unwrap_or_else(|| StreamingBlob::from(s3s::Body::empty()));
    let given = Values {
        crc32: request.input.checksum_crc32.take(),
        crc32c: request.input.checksum_crc32c.take(),
        crc64nvme: request.input.checksum_crc64nvme.take(),
        sha1: request.input.checksum_sha1.take(),
        sha256: request.input.checksum_sha256.take(),
    };
    let verifier = Arc::new(Mutex::new(Some(Verifier::new(&request, &given)?)));
    let input = &request.input;
    let bucket = map::bucket(&input.bucket)?;
    let on_the_way = Arc::clone(&verifier);
    let extensions = request.extensions.clone();
    let body = body.map(move |chunk| {
        let chunk = chunk.map_err(|error| body_error(&error, &extensions))?;
        if let Some(verifier) = on_the_way.lock().as_mut() {
            verifier.update(&chunk);
        }
        Ok(chunk)
    });
    let part = PartRequest {
        key: map::writable_key(&input.key)?,
        upload: input.upload_id.clone(),
        number: part_number(input.part_number)?,
        bytes: body_bytes(input.content_length, &request.headers, PART_BYTES_MAX)?,
        body: body.boxed(),
        md5: parse_md5(input.content_md5.as_deref())?,
    };
    let checksums = move || {
        verifier
            .lock()
            .take()
            .map_or_else(|| Ok(Vec::new()), Verifier::finish)
    };
    let stored = operations.engine.upload_part(&bucket, part, checksums).await;
    let part = stored.map_err(|error| map::failure(&error, &request.extensions))?;
    let shown = Values::of(&part.checksums);
    Ok(S3Response::new(UploadPartOutput {
        checksum_crc32: shown.crc32,
        checksum_crc32c: shown.crc32c,
        checksum_crc64nvme: shown.crc64nvme,
        checksum_sha1: shown.sha1,
        checksum_sha256: shown.sha256,
        e_tag: Some(map::etag(&part.etag)),
        ..Default::default()
    }))
}

/// `CompleteMultipartUpload`.
pub(crate) async fn complete(
    operations: &Operations,
    request: Request<CompleteMultipartUploadInput>,
) -> Response<CompleteMultipartUploadOutput> {
    let extensions = request.extensions;
    let completion = Completion::new(operations, request.input)?;
    let mut joined = Box::pin(async move {
        let output = completion.run().await;
        output.map_err(|failed| match failed {
            Failed::Engine(error) => map::failure(&error, &extensions),
            Failed::Refused(error) => error,
        })
    });
    match tokio::time::timeout(COMPLETE_QUICK, &mut joined).await {
        Ok(output) => Ok(S3Response::new(output?)),
        Err(_) => Ok(S3Response::new(CompleteMultipartUploadOutput {
            future: Some(joined),
            ..Default::default()
        })),
    }
}

/// `AbortMultipartUpload`.
pub(crate) async fn abort(
    operations: &Operations,
    request: Request<AbortMultipartUploadInput>,
) -> Response<AbortMultipartUploadOutput> {
    let input = &request.input;
    let (bucket, key) = (map::bucket(&input.bucket)?, map::writable_key(&input.key)?);
    let aborted = operations
        .engine
        .abort_upload(&bucket, &key, &input.upload_id)
        .await;
    aborted.map_err(|error| map::failure(&error, &request.extensions))?;
    Ok(S3Response::new(AbortMultipartUploadOutput::default()))
}

/// The number of a part, checked.
pub(crate) fn part_number(number: i32) -> S3Result<u16> {
    u16::try_from(number)
        .ok()
        .filter(|_| (1..=PART_NUMBER_MAX).contains(&number))
        .ok_or_else(|| s3_error!(InvalidArgument, "part numbers go from 1 to {PART_NUMBER_MAX}"))
}

enum Failed {
    Engine(Error),
    Refused(s3s::S3Error),
}

impl From<Error> for Failed {
    fn from(error: Error) -> Self {
        Self::Engine(error)
    }
}

/// A completion that owns all it needs, so that it can outlive the start of its answer.
struct Completion {
    operations: Operations,
    bucket: BucketName,
    key: ObjectKey,
    upload: String,
    request: CompleteRequest,
    /// Checksums of the whole, as the client says them.
    claimed: Option<ObjectChecksum>,
    claimed_kind: Option<String>,
}

impl Completion {
    fn new(operations: &Operations, input: CompleteMultipartUploadInput) -> S3Result<Self> {
        let (bucket, key) = (map::bucket(&input.bucket)?, map::writable_key(&input.key)?);
        let parts = named_parts(input.multipart_upload)?;
        let claimed = Values {
            crc32: input.checksum_crc32,
            crc32c: input.checksum_crc32c,
            crc64nvme: input.checksum_crc64nvme,
            sha1: input.checksum_sha1,
            sha256: input.checksum_sha256,
        };
        let bytes = input.mpu_object_size.map(u64::try_from).transpose();
        Ok(Self {
            operations: operations.clone(),
            bucket,
            key,
            upload: input.upload_id,
            request: CompleteRequest {
                parts,
                condition: map::write_condition(input.if_match.as_ref(), input.if_none_match.as_ref())?,
                checksum: None,
                bytes: bytes.map_err(|_| s3_error!(InvalidArgument, "x-amz-mp-object-size is negative"))?,
            },
            claimed: claimed.to_checksums(ChecksumKind::FullObject).into_iter().next(),
            claimed_kind: input.checksum_type.map(|kind| kind.as_str().to_owned()),
        })
    }

    async fn run(mut self) -> Result<CompleteMultipartUploadOutput, Failed> {
        self.request.checksum = self.checksum_of_whole().await?;
        let (receipt, checksum) = self
            .operations
            .engine
            .complete_upload(&self.bucket, &self.key, &self.upload, self.request)
            .await?;
        let shown = Values::of(checksum.as_slice());
        Ok(CompleteMultipartUploadOutput {
            location: Some(format!("/{}/{}", self.bucket, self.key)),
            bucket: Some(self.bucket.to_string()),
            key: Some(self.key.to_string()),
            checksum_crc32: shown.crc32,
            checksum_crc32c: shown.crc32c,
            checksum_crc64nvme: shown.crc64nvme,
            checksum_sha1: shown.sha1,
            checksum_sha256: shown.sha256,
            checksum_type: checksum.map(|one| ChecksumType::from_static(checksum::kind_name(one.kind))),
            e_tag: Some(map::etag(receipt.version.as_str())),
            ..Default::default()
        })
    }

    /// The checksum of the object, made from those of its parts and compared with what the client claims.
    async fn checksum_of_whole(&self) -> Result<Option<ObjectChecksum>, Failed> {
        let engine = &self.operations.engine;
        let (upload, _, _) = engine
            .list_parts(&self.bucket, &self.key, &self.upload, 0, 1)
            .await?;
        let Some((name, kind)) = self.covered(&upload)? else {
            return Ok(None);
        };
        let algorithm = Algorithm::from_name(&name).map_err(Failed::Refused)?;

        let all = usize::from(u16::MAX);
        let (_, stored, _) = engine
            .list_parts(&self.bucket, &self.key, &self.upload, 0, all)
            .await?;
        let mut sums = Vec::with_capacity(self.request.parts.len());
        for part in &self.request.parts {
            // A part that is not there is the engine's to refuse; one without a checksum leaves the whole
            // without.
            let found = stored.iter().find(|stored| stored.number == part.number);
            let sum = found.and_then(|found| {
                let checksum = found
                    .checksums
                    .iter()
                    .find(|checksum| checksum.algorithm == name)?;
                Some(PartSum {
                    value: &checksum.value,
                    bytes: found.bytes,
                })
            });
            let Some(sum) = sum else { return Ok(None) };
            sums.push(sum);
        }
        let Some(value) = checksum::of_parts(algorithm, kind, &sums) else {
            return Ok(None);
        };
        if let Some(claimed) = self.claimed.as_ref().filter(|claimed| claimed.algorithm == name)
            && claimed.value != value
            // Some SDKs leave out the number of parts.
            && value.rsplit_once('-').is_none_or(|(digest, _)| digest != claimed.value)
        {
            let message = "the checksum you specified did not match the checksum of the parts";
            return Err(Failed::Refused(s3_error!(BadDigest, "{message}")));
        }
        Ok(Some(ObjectChecksum {
            algorithm: name,
            value,
            kind,
        }))
    }

    /// Algorithm and kind of the object's checksum; from the upload, or, where it was opened without, from
    /// the client.
    fn covered(&self, upload: &UploadInfo) -> Result<Option<(String, ChecksumKind)>, Failed> {
        if let Some((name, kind)) = &upload.checksum {
            let claimed = self.claimed_kind.as_deref();
            if claimed.is_some_and(|claimed| claimed != checksum::kind_name(*kind)) {
                let message = "the upload was opened with another checksum type";
                return Err(Failed::Refused(s3_error!(InvalidRequest, "{message}")));
            }
            return Ok(Some((name.clone(), *kind)));
        }
        let Some(claimed) = &self.claimed else {
            return Ok(None);
        };
        let algorithm = Algorithm::from_name(&claimed.algorithm).map_err(Failed::Refused)?;
        let kind = algorithm
            .upload_kind(self.claimed_kind.as_deref())
            .map_err(Failed::Refused)?;
        Ok(Some((claimed.algorithm.clone(), kind)))
    }
}

fn named_parts(upload: Option<CompletedMultipartUpload>) -> S3Result<Vec<EnginePart>> {
    let parts = upload.and_then(|upload| upload.parts).unwrap_or_default();
    if parts.is_empty() {
        return Err(s3_error!(
            MalformedXML,
            "an upload is completed with at least one part"
        ));
    }
    if parts.len() > 10_000 {
        return Err(s3_error!(
            InvalidArgument,
            "an upload has at most {PART_NUMBER_MAX} parts"
        ));
    }
    let mut named: Vec<EnginePart> = Vec::with_capacity(parts.len());
    for part in parts {
        let (Some(number), Some(etag)) = (part.part_number, part.e_tag) else {
            return Err(s3_error!(
                MalformedXML,
                "every part needs a PartNumber and an ETag"
            ));
        };
        let number = part_number(number)?;
        if named.last().is_some_and(|previous| previous.number >= number) {
            return Err(s3_error!(
                InvalidPartOrder,
                "parts must be named in ascending order"
            ));
        }
        let values = Values {
            crc32: part.checksum_crc32,
            crc32c: part.checksum_crc32c,
            crc64nvme: part.checksum_crc64nvme,
            sha1: part.checksum_sha1,
            sha256: part.checksum_sha256,
        };
        let checksums = values.to_checksums(ChecksumKind::FullObject);
        named.push(EnginePart {
            number,
            etag: etag.value().to_owned(),
            checksums,
        });
    }
    Ok(named)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(numbers: &[i32]) -> Option<CompletedMultipartUpload> {
        let part = |number: &i32| CompletedPart {
            e_tag: Some(map::etag("abc")),
            part_number: Some(*number),
            ..Default::default()
        };
        Some(CompletedMultipartUpload {
            parts: Some(numbers.iter().map(part).collect()),
        })
    }

    fn code(numbers: &[i32]) -> String {
        named_parts(parts(numbers))
            .unwrap_err()
            .code()
            .as_str()
            .to_owned()
    }

    #[test]
    fn parts_must_ascend() {
        assert_eq!(named_parts(parts(&[1, 3, 10_000])).unwrap().len(), 3);
        assert_eq!(code(&[2, 1]), "InvalidPartOrder");
        assert_eq!(code(&[1, 1]), "InvalidPartOrder");
    }

    #[test]
    fn odd_part_lists_are_refused() {
        assert_eq!(code(&[]), "MalformedXML");
        assert_eq!(code(&[0]), "InvalidArgument");
        assert_eq!(code(&[10_001]), "InvalidArgument");
        assert_eq!(code(&[65_537]), "InvalidArgument");
        assert_eq!(named_parts(None).unwrap_err().code().as_str(), "MalformedXML");
    }
}
