//! `/v1/cache/{warm,evict,pin,unpin}`: cache commands, each a job.

use axum::Json;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use forebay_core::{BucketName, Error, Kind};

use crate::Shared;
use crate::answer::{Body, Refusal};
use crate::api::{CacheRequest, Failure};
use crate::cache_jobs;
use crate::jobs::{JobInfo, JobKind};

/// Starts a cache job for what lies below a prefix.
#[utoipa::path(post, path = "/v1/cache/{verb}", tag = "cache", request_body = CacheRequest,
    params(("verb" = JobKind, Path, description = "What to do")), responses(
    (status = 202, description = "The job that does it", body = JobInfo),
    (status = 400, body = Failure), (status = 404, body = Failure), (status = 503, body = Failure)))]
pub(crate) async fn start(
    State(node): State<Shared>,
    Path(verb): Path<String>,
    Body(request): Body<CacheRequest>,
) -> Result<(StatusCode, Json<JobInfo>), Refusal> {
    let kind = match verb.as_str() {
        "warm" => JobKind::Warm,
        "evict" => JobKind::Evict,
        "pin" => JobKind::Pin,
        "unpin" => JobKind::Unpin,
        _ => {
            return Err(Error::new(
                Kind::NotFound,
                "no such cache command; there are warm, evict, pin and unpin",
            )
            .into());
        }
    };
    let bucket = BucketName::new(&request.bucket)?;
    node.engine()?.head_bucket(&bucket).await?;
    let job = cache_jobs::start(&*node, kind, bucket, request.prefix)?;
    Ok((StatusCode::ACCEPTED, Json(job)))
}
