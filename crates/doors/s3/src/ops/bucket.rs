//! Buckets: list, create, head, delete, location.

use forebay_core::Kind;
use s3s::dto::*;
use s3s::{S3ErrorCode, S3Response, s3_error};

use super::{Request, Response};
use crate::context::RequestContext;
use crate::map;
use crate::operations::Operations;

/// At most so many buckets in one answer, unless the client asks for fewer.
const BUCKETS_MAX: usize = 10_000;

/// `ListBuckets`: those that the key may see.
pub(crate) async fn list(
    operations: &Operations,
    request: Request<ListBucketsInput>,
) -> Response<ListBucketsOutput> {
    let limit = match request.input.max_buckets {
        None => BUCKETS_MAX,
        Some(limit) => usize::try_from(limit)
            .ok()
            .filter(|limit| (1..=BUCKETS_MAX).contains(limit))
            .ok_or_else(|| s3_error!(InvalidArgument, "max-buckets must be 1 to {BUCKETS_MAX}"))?,
    };
    let prefix = request.input.prefix.clone().unwrap_or_default();
    let after = request.input.continuation_token.clone().unwrap_or_default();
    let who = RequestContext::of(&request.extensions).and_then(|context| context.who());

    let mut found = operations
        .engine
        .list_buckets()
        .await
        .map_err(|error| map::failure(&error, &request.extensions))?;
    found.retain(|bucket| {
        let name = bucket.name.as_str();
        name.starts_with(&prefix) && name > after.as_str() && operations.rules.sees(who.as_deref(), name)
    });
    found.sort_by(|a, b| a.name.cmp(&b.name));
    let is_truncated = found.len() > limit;
    found.truncate(limit);
    let continuation_token = is_truncated
        .then(|| found.last().map(|bucket| bucket.name.to_string()))
        .flatten();
    let to_dto = |bucket: forebay_engine::BucketInfo| Bucket {
        bucket_region: None,
        creation_date: Some(map::timestamp(bucket.created)),
        name: Some(bucket.name.to_string()),
    };
    Ok(S3Response::new(ListBucketsOutput {
        buckets: Some(found.into_iter().map(to_dto).collect()),
        continuation_token,
        owner: Some(map::owner()),
        prefix: request.input.prefix,
    }))
}

/// `CreateBucket`.
pub(crate) async fn create(
    operations: &Operations,
    request: Request<CreateBucketInput>,
) -> Response<CreateBucketOutput> {
    let input = &request.input;
    let bucket = map::bucket(&input.bucket)?;
    let asked = input
        .create_bucket_configuration
        .as_ref()
        .and_then(|wish| wish.location_constraint.as_ref());
    if let Some(region) = asked
        .map(BucketLocationConstraint::as_str)
        .filter(|region| !region.is_empty())
        && region != &*operations.region
    {
        return Err(s3_error!(
            InvalidLocationConstraint,
            "the only location here is '{}'",
            operations.region
        ));
    }
    match operations.engine.create_bucket(&bucket).await {
        Ok(()) => Ok(S3Response::new(CreateBucketOutput {
            location: Some(format!("/{bucket}")),
        })),
        Err(error) if error.kind() == Kind::AlreadyExists => Err(map::failure_as(
            &error,
            S3ErrorCode::BucketAlreadyOwnedByYou,
            &request.extensions,
        )),
        Err(error) => Err(map::failure(&error, &request.extensions)),
    }
}

/// `HeadBucket`.
pub(crate) async fn head(
    operations: &Operations,
    request: Request<HeadBucketInput>,
) -> Response<HeadBucketOutput> {
    let bucket = map::bucket(&request.input.bucket)?;
    operations
        .engine
        .head_bucket(&bucket)
        .await
        .map_err(|error| map::failure(&error, &request.extensions))?;
    let output = HeadBucketOutput {
        bucket_region: Some(operations.region.to_string()),
        ..HeadBucketOutput::default()
    };
    Ok(S3Response::new(output))
}

/// `DeleteBucket`: only an empty one.
pub(crate) async fn delete(
    operations: &Operations,
    request: Request<DeleteBucketInput>,
) -> Response<DeleteBucketOutput> {
    let bucket = map::bucket(&request.input.bucket)?;
    match operations.engine.delete_bucket(&bucket).await {
        Ok(()) => Ok(S3Response::new(DeleteBucketOutput::default())),
        Err(error) if error.kind() == Kind::Conflict => Err(map::failure_as(
            &error,
            S3ErrorCode::BucketNotEmpty,
            &request.extensions,
        )),
        Err(error) => Err(map::failure(&error, &request.extensions)),
    }
}

/// `GetBucketLocation`: S3's default region has no name here.
pub(crate) async fn location(
    operations: &Operations,
    request: Request<GetBucketLocationInput>,
) -> Response<GetBucketLocationOutput> {
    let bucket = map::bucket(&request.input.bucket)?;
    operations
        .engine
        .head_bucket(&bucket)
        .await
        .map_err(|error| map::failure(&error, &request.extensions))?;
    let location_constraint = (&*operations.region != "us-east-1")
        .then(|| BucketLocationConstraint::from(operations.region.to_string()));
    Ok(S3Response::new(GetBucketLocationOutput { location_constraint }))
}
