//! `/v1/jobs`: long work, shown, waited for, stopped.

use std::time::Duration;

use axum::Json;
use axum::extract::{Path, Query, State};
use forebay_core::{Error, Kind};
use serde::Deserialize;

use super::Shared;
use super::answer::Refusal;
use super::api::Failure;
use crate::jobs::JobInfo;
use crate::value::Period;

/// The longest that one request waits for a job; a client asks again.
const WAIT_MAX: Duration = Duration::from_secs(60);

/// Query of a job.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ShowQuery {
    wait: Option<String>,
}

/// All jobs, the newest first.
#[utoipa::path(get, path = "/v1/jobs", tag = "jobs", responses((status = 200, body = Vec<JobInfo>)))]
pub(crate) async fn list(State(services): State<Shared>) -> Json<Vec<JobInfo>> {
    Json(services.jobs.list())
}

/// One job, at once or when it has ended.
#[utoipa::path(get, path = "/v1/jobs/{id}", tag = "jobs", params(("id" = String, Path), ("wait" = Option<String>, Query, description = "Answer when the job has ended, or after this time (`30s`, at most 60s)")), responses(
    (status = 200, body = JobInfo), (status = 400, body = Failure), (status = 404, body = Failure)))]
pub(crate) async fn show(
    State(services): State<Shared>,
    Path(id): Path<String>,
    query: Result<Query<ShowQuery>, axum::extract::rejection::QueryRejection>,
) -> Result<Json<JobInfo>, Refusal> {
    let Query(query) = query.map_err(|why| Error::new(Kind::InvalidInput, why.body_text()))?;
    let Some(text) = query.wait else {
        return Ok(Json(services.jobs.show(&id)?));
    };
    let Period(wait) = text.parse()?;
    Ok(Json(services.jobs.wait(&id, wait.min(WAIT_MAX)).await?))
}

/// Tells a job to stop.
#[utoipa::path(post, path = "/v1/jobs/{id}/stop", tag = "jobs", params(("id" = String, Path)), responses(
    (status = 200, body = JobInfo), (status = 404, body = Failure)))]
pub(crate) async fn stop(
    State(services): State<Shared>,
    Path(id): Path<String>,
) -> Result<Json<JobInfo>, Refusal> {
    Ok(Json(services.jobs.stop(&id)?))
}
