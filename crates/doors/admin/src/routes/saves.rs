//! `/v1/saves`: steps on their way to the lake, shown, waited for, given up.

use axum::Json;
use axum::extract::{Path, Query, State};
use forebay_core::{Error, Kind};
use forebay_wire::saves::{SaveState, StagedIn};

use super::{WAIT_MAX, WaitQuery, wait_of, wait_permit};
use crate::Shared;
use crate::answer::Refusal;
use crate::api::{Failure, Save, SaveAlarm};

/// Saves under way, and the last ones that ended; the oldest first.
#[utoipa::path(get, path = "/v1/saves", tag = "saves", responses((status = 200, body = Vec<Save>)))]
pub(crate) async fn list(State(node): State<Shared>) -> Json<Vec<Save>> {
    let saves = node.saves().all();
    Json(saves.iter().map(|save| shown(save.state())).collect())
}

/// One save, at once or when it has ended.
#[utoipa::path(get, path = "/v1/saves/{id}", tag = "saves", params(("id" = String, Path), ("wait" = Option<String>, Query, description = "Answer when the save has ended, or after this time (`30s`, at most 60s)")), responses(
    (status = 200, body = Save), (status = 400, body = Failure), (status = 404, body = Failure)))]
pub(crate) async fn show(
    State(node): State<Shared>,
    Path(id): Path<String>,
    query: Result<Query<WaitQuery>, axum::extract::rejection::QueryRejection>,
) -> Result<Json<Save>, Refusal> {
    let wait = wait_of(query)?;
    let save = node.saves().find(&id)?;
    let permit = wait_permit();
    let wait = wait.filter(|_| permit.is_some()).unwrap_or_default();
    Ok(Json(shown(save.wait(wait).await)))
}

/// Gives a save up; fine if it has ended.
#[utoipa::path(post, path = "/v1/saves/{id}/abort", tag = "saves", params(("id" = String, Path)), responses(
    (status = 200, body = Save), (status = 404, body = Failure)))]
pub(crate) async fn abort(State(node): State<Shared>, Path(id): Path<String>) -> Result<Json<Save>, Refusal> {
    let save = node.saves().find(&id)?;
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
