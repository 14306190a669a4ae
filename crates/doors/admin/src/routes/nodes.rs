//! `/v1/nodes`: the nodes of the cluster, as this one sees them.

use axum::Json;
use axum::extract::State;

use crate::Shared;
use crate::api::ClusterNode;

/// Nodes of the cluster, as this one sees them.
#[utoipa::path(get, path = "/v1/nodes", tag = "node", responses((status = 200, body = Vec<ClusterNode>)))]
pub(crate) async fn list(State(node): State<Shared>) -> Json<Vec<ClusterNode>> {
    Json(node.nodes())
}
