//! `/v1/saves`: steps on their way to the lake, shown, waited for, given up.

use std::time::Duration;

use axum::Json;
use axum::extract::{Path, Query, State};
use forebay_core::{Error, Kind};
use forebay_wire::saves::{SaveState, StagedIn};
use serde::Deserialize;

use super::Shared;
use super::answer::Refusal;
use super::api::{Failure, Save, SaveAlarm};
use crate::value::Period;

/// The longest that one request waits for a save; a client asks again.
const WAIT_MAX: Duration = Duration::from_secs(60);

/// Query of a save.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ShowQuery {
    wait: Option<String>,
}

/// Saves under way, and the last ones that ended; the oldest first.
#[utoipa::path(get, path = "/v1/saves", tag = "saves", responses((status = 200, body = Vec<Save>)))]
pub(crate) async fn list(State(services): State<Shared>) -> Json<Vec<Save>> {
    let saves = services.saves.all();
    Json(saves.iter().map(|save| shown(save.state())).collect())
}

/// One save, at once or when it has ended.
#[utoipa::path(get, path = "/v1/saves/{id}", tag = "saves", params(("id" = String, Path), ("wait" = Option<String>, Query, description = "Answer when the save has ended, or after this time (`30s`, at most 60s)")), responses(
    (status = 200, body = Save), (status = 400, body = Failure), (status = 404, body = Failure)))]
pub(crate) async fn show(
    State(services): State<Shared>,
    Path(id): Path<String>,
    query: Result<Query<ShowQuery>, axum::extract::rejection::QueryRejection>,
) -> Result<Json<Save>, Refusal> {
    let Query(query) = query.map_err(|why| Error::new(Kind::InvalidInput, why.body_text()))?;
    let save = services.saves.find(&id)?;
    let Period(wait) = query.wait.as_deref().unwrap_or("0s").parse()?;
    Ok(Json(shown(save.wait(wait.min(WAIT_MAX)).await)))
}

/// Gives a save up; fine if it has ended.
#[utoipa::path(post, path = "/v1/saves/{id}/abort", tag = "saves", params(("id" = String, Path)), responses(
    (status = 200, body = Save), (status = 404, body = Failure)))]
pub(crate) async fn abort(
    State(services): State<Shared>,
    Path(id): Path<String>,
) -> Result<Json<Save>, Refusal> {
    let save = services.saves.find(&id)?;
    save.give_up(Error::new(
        Kind::Cancelled,
        "the save was given up by the admin API; nothing was committed",
    ));
    Ok(Json(shown(save.wait(WAIT_MAX).await)))
}

fn shown(state: SaveState) -> Save {
    let staged = match state.staged {
        StagedIn::Ram => "ram",
        StagedIn::Nvme => "nvme",
    };
    let alarms = state.alarms.into_iter();
    Save {
        id: state.id,
        bucket: state.root.bucket,
        root: state.root.key,
        step: state.step,
        attempt: state.attempt,
        rank: state.rank,
        world_size: state.world_size,
        phase: state.phase.as_str().into(),
        staged: staged.into(),
        generation: state.generation,
        parent_step: state.parent.map(|(step, _)| step),
        bytes: state.bytes,
        written_bytes: state.written_bytes,
        reused_bytes: state.reused_bytes,
        files: state.files,
        age_ms: state.age_ms,
        staged_ms: state.staged_ms,
        ended_ms: state.ended_ms,
        alarms: alarms
            .map(|(kind, tensor, message)| SaveAlarm {
                kind,
                tensor,
                message,
            })
            .collect(),
        trouble: state.last_error.map(|trouble| Failure {
            message: Error::from(trouble.clone()).to_string(),
            kind: trouble.kind,
        }),
    }
}
