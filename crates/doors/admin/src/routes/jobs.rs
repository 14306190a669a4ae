//! `/v1/jobs`: long work, shown, waited for, stopped.

use axum::Json;
use axum::extract::{Path, Query, State};

use super::{WaitQuery, wait_of, wait_permit};
use crate::Shared;
use crate::answer::Refusal;
use crate::api::Failure;
use crate::jobs::JobInfo;

/// All jobs, the newest first.
#[utoipa::path(get, path = "/v1/jobs", tag = "jobs", responses((status = 200, body = Vec<JobInfo>)))]
pub(crate) async fn list(State(node): State<Shared>) -> Json<Vec<JobInfo>> {
    Json(node.jobs().list())
}

/// One job, at once or when it has ended.
#[utoipa::path(get, path = "/v1/jobs/{id}", tag = "jobs", params(("id" = String, Path), ("wait" = Option<String>, Query, description = "Answer when the job has ended, or after this time (`30s`, at most 60s)")), responses(
    (status = 200, body = JobInfo), (status = 400, body = Failure), (status = 404, body = Failure)))]
pub(crate) async fn show(
    State(node): State<Shared>,
    Path(id): Path<String>,
    query: Result<Query<WaitQuery>, axum::extract::rejection::QueryRejection>,
) -> Result<Json<JobInfo>, Refusal> {
    let wait = wait_of(query)?;
    let (Some(wait), Some(_permit)) = (wait, wait_permit()) else {
        return Ok(Json(node.jobs().show(&id)?));
    };
    Ok(Json(node.jobs().wait(&id, wait).await?))
}

/// Tells a job to stop.
#[utoipa::path(post, path = "/v1/jobs/{id}/stop", tag = "jobs", params(("id" = String, Path)), responses(
    (status = 200, body = JobInfo), (status = 404, body = Failure)))]
pub(crate) async fn stop(
    State(node): State<Shared>,
    Path(id): Path<String>,
) -> Result<Json<JobInfo>, Refusal> {
    Ok(Json(node.jobs().stop(&id)?))
}
