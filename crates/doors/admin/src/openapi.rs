//! `/openapi.json`: the description of the admin API, made from the handlers and their types.

use axum::Json;
use utoipa::OpenApi;

use crate::routes::{buckets, cache, config, health, jobs, nodes, saves, status};

#[derive(OpenApi)]
#[openapi(
    info(
        title = "Forebay admin API",
        description = "Runs and watches one Forebay node."
    ),
    paths(
        health::healthz,
        health::readyz,
        health::metrics,
        status::show,
        nodes::list,
        config::show,
        buckets::list,
        buckets::create,
        cache::start,
        jobs::list,
        jobs::show,
        jobs::stop,
        saves::list,
        saves::show,
        saves::abort,
    )
)]
struct Document;

/// The description of the admin API.
#[must_use]
pub fn document() -> utoipa::openapi::OpenApi {
    Document::openapi()
}

pub(crate) async fn serve() -> Json<utoipa::openapi::OpenApi> {
    Json(document())
}
