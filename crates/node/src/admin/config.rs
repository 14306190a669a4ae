//! `/v1/config`: the effective configuration, secrets hidden.

use axum::Json;
use axum::extract::State;

use super::Shared;
use crate::config::Config;

/// The effective configuration without secrets.
#[utoipa::path(get, path = "/v1/config", tag = "node", responses((status = 200, description = "Keys as in forebay.toml", body = Object)))]
pub(crate) async fn show(State(services): State<Shared>) -> Json<Config> {
    Json(services.options.to_config())
}
