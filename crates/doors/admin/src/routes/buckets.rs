//! `/v1/buckets`: the buckets behind the S3 endpoint.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use forebay_core::BucketName;

use crate::Shared;
use crate::answer::{Body, Refusal};
use crate::api::{Bucket, CreateBucket, Failure};
use crate::jobs::timestamp;

/// All buckets.
#[utoipa::path(get, path = "/v1/buckets", tag = "buckets", responses((status = 200, body = Vec<Bucket>), (status = 503, body = Failure)))]
pub(crate) async fn list(State(node): State<Shared>) -> Result<Json<Vec<Bucket>>, Refusal> {
    let buckets = node.engine()?.list_buckets().await?;
    let shown = buckets.into_iter().map(|bucket| Bucket {
        name: bucket.name.to_string(),
        created: timestamp(bucket.created),
    });
    Ok(Json(shown.collect()))
}

/// Makes a bucket in the default lake.
#[utoipa::path(post, path = "/v1/buckets", tag = "buckets", request_body = CreateBucket, responses(
    (status = 201, description = "Made"), (status = 400, body = Failure), (status = 409, body = Failure)))]
pub(crate) async fn create(
    State(node): State<Shared>,
    Body(request): Body<CreateBucket>,
) -> Result<StatusCode, Refusal> {
    let name = BucketName::new(&request.name)?;
    node.engine()?.create_bucket(&name).await?;
    Ok(StatusCode::CREATED)
}
