//! `/v1/config`: the effective configuration, secrets hidden.

use axum::Json;
use axum::extract::State;

use crate::Shared;

/// The effective configuration without secrets.
#[utoipa::path(get, path = "/v1/config", tag = "node", responses((status = 200, description = "Keys as in forebay.toml", body = Object)))]
pub(crate) async fn show(State(node): State<Shared>) -> Json<serde_json::Value> {
    Json(node.config())
}
