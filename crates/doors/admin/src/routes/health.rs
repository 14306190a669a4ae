//! `/healthz`, `/readyz`, `/metrics`: for load balancers and Prometheus.

use axum::Json;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};

use crate::Shared;
use crate::api::Health;

/// The process runs.
#[utoipa::path(get, path = "/healthz", tag = "health", responses((status = 200, body = Health)))]
pub(crate) async fn healthz() -> Json<Health> {
    Json(Health {
        ok: true,
        reason: None,
    })
}

/// A lake has passed its self-test and the node is not stopping; lakes that are away are named.
#[utoipa::path(get, path = "/readyz", tag = "health", responses((status = 200, body = Health), (status = 503, body = Health)))]
pub(crate) async fn readyz(State(node): State<Shared>) -> Response {
    match node.why_not_ready() {
        None => Json(Health {
            ok: true,
            reason: node.lake_trouble(),
        })
        .into_response(),
        Some(reason) => (
            StatusCode::SERVICE_UNAVAILABLE,
            Json(Health {
                ok: false,
                reason: Some(reason),
            }),
        )
            .into_response(),
    }
}

/// All metrics, as OpenMetrics text.
#[utoipa::path(get, path = "/metrics", tag = "health", responses((status = 200, body = String, content_type = "text/plain")))]
pub(crate) async fn metrics(State(node): State<Shared>) -> Response {
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    (
        [(header::CONTENT_TYPE, kind)],
        node.metrics().encode(node.snapshot()),
    )
        .into_response()
}
