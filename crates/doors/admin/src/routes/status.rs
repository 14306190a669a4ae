//! `/v1/status`: tiers, hit rates, lake traffic, what is in flight.

use axum::Json;
use axum::extract::State;

use crate::Shared;
use crate::api::Status;

/// Status of the node.
#[utoipa::path(get, path = "/v1/status", tag = "node", responses((status = 200, body = Status)))]
pub(crate) async fn show(State(node): State<Shared>) -> Json<Status> {
    Json(node.status())
}
