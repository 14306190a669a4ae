//! Object tags: get, put, delete.

use forebay_engine::Tag as EngineTag;
use s3s::dto::*;
use s3s::{S3Response, s3_error};

use super::{Request, Response};
use crate::attributes;
use crate::map;
use crate::operations::Operations;

/// `GetObjectTagging`.
pub(crate) async fn get(
    operations: &Operations,
    request: Request<GetObjectTaggingInput>,
) -> Response<GetObjectTaggingOutput> {
    let input = &request.input;
    let (bucket, key) = (map::bucket(&input.bucket)?, map::readable_key(&input.key)?);
    map::refuse_version(input.version_id.as_deref())?;
    let tags = operations
        .engine
        .tags(&bucket, &key)
        .await
        .map_err(|error| map::failure(&error, &request.extensions))?;
    let to_dto = |tag: EngineTag| Tag {
        key: Some(tag.key),
        value: Some(tag.value),
    };
    let tag_set = tags.into_iter().map(to_dto).collect();
    Ok(S3Response::new(GetObjectTaggingOutput {
        tag_set,
        version_id: None,
    }))
}

/// `PutObjectTagging`: replaces all tags.
pub(crate) async fn put(
    operations: &Operations,
    request: Request<PutObjectTaggingInput>,
) -> Response<PutObjectTaggingOutput> {
    let input = &request.input;
    let (bucket, key) = (map::bucket(&input.bucket)?, map::readable_key(&input.key)?);
    map::refuse_version(input.version_id.as_deref())?;
    let mut tags = Vec::with_capacity(input.tagging.tag_set.len());
    for tag in &input.tagging.tag_set {
        let Some(key) = tag.key.clone() else {
            return Err(s3_error!(MalformedXML, "a tag needs a key"));
        };
        tags.push(EngineTag {
            key,
            value: tag.value.clone().unwrap_or_default(),
        });
    }
    attributes::check_tags(&tags)?;
    let set = operations.engine.set_tags(&bucket, &key, tags).await;
    set.map_err(|error| map::failure(&error, &request.extensions))?;
    Ok(S3Response::new(PutObjectTaggingOutput::default()))
}

/// `DeleteObjectTagging`.
pub(crate) async fn delete(
    operations: &Operations,
    request: Request<DeleteObjectTaggingInput>,
) -> Response<DeleteObjectTaggingOutput> {
    let input = &request.input;
    let (bucket, key) = (map::bucket(&input.bucket)?, map::readable_key(&input.key)?);
    map::refuse_version(input.version_id.as_deref())?;
    let set = operations.engine.set_tags(&bucket, &key, Vec::new()).await;
    set.map_err(|error| map::failure(&error, &request.extensions))?;
    Ok(S3Response::new(DeleteObjectTaggingOutput::default()))
}
