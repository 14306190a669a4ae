//! `DeleteObject` and `DeleteObjects`.

use forebay_core::{BucketName, Error, Version};
use forebay_engine::DeleteCondition;
use futures::{StreamExt, stream};
use s3s::dto::*;
use s3s::{S3Error, S3Response, s3_error};

use super::{Request, Response};
use crate::map;
use crate::operations::Operations;

/// S3's limit for one request.
const KEYS_MAX: usize = 1000;

/// Deletes of one request that run at a time.
const DELETES_IN_FLIGHT_MAX: usize = 16;

/// `DeleteObject`: deleting what is not there is fine.
pub(crate) async fn one(
    operations: &Operations,
    request: Request<DeleteObjectInput>,
) -> Response<DeleteObjectOutput> {
    let input = &request.input;
    let (bucket, key) = (map::bucket(&input.bucket)?, map::writable_key(&input.key)?);
    map::refuse_version(input.version_id.as_deref())?;
    if input.if_match_last_modified_time.is_some() || input.if_match_size.is_some() {
        return Err(only_etags());
    }
    let condition = map::delete_condition(input.if_match.as_ref());
    operations
        .engine
        .delete_if(&bucket, &key, &condition)
        .await
        .map_err(|error| map::failure(&error, &request.extensions))?;
    Ok(S3Response::new(DeleteObjectOutput::default()))
}

/// `DeleteObjects`: each key has its own outcome, in the order of the request.
pub(crate) async fn many(
    operations: &Operations,
    request: Request<DeleteObjectsInput>,
) -> Response<DeleteObjectsOutput> {
    let bucket = map::bucket(&request.input.bucket)?;
    let Delete { objects, quiet } = request.input.delete;
    if objects.is_empty() || objects.len() > KEYS_MAX {
        return Err(s3_error!(
            MalformedXML,
            "between 1 and {KEYS_MAX} keys can be deleted in one request"
        ));
    }
    let extensions = &request.extensions;
    operations
        .engine
        .head_bucket(&bucket)
        .await
        .map_err(|error: Error| map::failure(&error, extensions))?;

    let outcomes: Vec<Outcome> = stream::iter(objects)
        .map(|object| delete_one(operations, &bucket, object, extensions))
        .buffered(DELETES_IN_FLIGHT_MAX)
        .collect()
        .await;
    let is_quiet = quiet.unwrap_or(false);
    let (mut deleted, mut errors) = (Vec::new(), Vec::new());
    for outcome in outcomes {
        match outcome {
            Ok(key) if !is_quiet => deleted.push(DeletedObject {
                key: Some(key),
                ..Default::default()
            }),
            Ok(_) => {}
            Err(error) => errors.push(error),
        }
    }
    Ok(S3Response::new(DeleteObjectsOutput {
        deleted: Some(deleted),
        errors: (!errors.is_empty()).then_some(errors),
        ..Default::default()
    }))
}

/// As in S3, where time and size are conditions in directory buckets only.
fn only_etags() -> S3Error {
    s3_error!(
        NotImplemented,
        "the condition of a delete is an ETag, not a time or size"
    )
}

type Outcome = Result<String, s3s::dto::Error>;

async fn delete_one(
    operations: &Operations,
    bucket: &BucketName,
    object: ObjectIdentifier,
    extensions: &http::Extensions,
) -> Outcome {
    let outcome = async {
        let key = map::writable_key(&object.key)?;
        map::refuse_version(object.version_id.as_deref())?;
        if object.last_modified_time.is_some() || object.size.is_some() {
            return Err(only_etags());
        }
        let etag = object.e_tag.as_ref();
        let condition = etag.map_or(DeleteCondition::None, |etag| match etag.value() {
            "*" => DeleteCondition::Exists,
            etag => DeleteCondition::Version(Version::new(etag)),
        });
        operations
            .engine
            .delete_if(bucket, &key, &condition)
            .await
            .map_err(|error| map::failure(&error, extensions))
    };
    match outcome.await {
        Ok(()) => Ok(object.key),
        Err(error) => Err(s3s::dto::Error {
            code: Some(error.code().as_str().to_owned()),
            message: error.message().map(str::to_owned),
            key: Some(object.key),
            version_id: None,
        }),
    }
}
