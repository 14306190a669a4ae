//! The admin API: JSON for people and programs that run the node, metrics for those who watch it.
//!
//! It listens on loopback unless told otherwise. Whatever changes something needs the bearer token; away from
//! loopback reading does too. `server.rs` limits connections and those who are slow.
//! `guard.rs` decides who may come in (and keeps web pages out), `routes/` answers with one file per noun,
//! `api.rs` has the types, from which `/openapi.json` is made. Bodies are limited to 64 KiB.
//! [`jobs`] is the table of long work, [`metrics`] defines every metric. The door knows its node only as an
//! [`Administered`]; whoever composes the node implements it.
#![forbid(unsafe_code)]

use std::sync::Arc;

use axum::extract::DefaultBodyLimit;
use axum::routing::{get, post};
use axum::{Router, middleware};
use forebay_checkpoint_node::Saves;
use forebay_core::{Result, Secret};
use forebay_engine::Engine;

use crate::jobs::Jobs;
use crate::metrics::{Metrics, Snapshot};
use crate::routes::{buckets, cache, config, health, nodes, saves, status};

mod answer;
pub mod api;
mod cache_jobs;
mod guard;
pub mod jobs;
pub mod metrics;
mod openapi;
mod routes;
mod server;

pub use openapi::document as openapi;
pub use server::serve;

/// The largest body of a request.
const BODY_BYTES_MAX: usize = 64 << 10;

/// A node as the admin API sees it.
pub trait Administered: Send + Sync + 'static {
    /// The engine, or `Unavailable` while a lake has not answered yet.
    fn engine(&self) -> Result<Arc<Engine>>;
    /// Why the node is not ready; `None` if it is.
    fn why_not_ready(&self) -> Option<String>;
    /// The lakes that are away now; `None` if all are there.
    fn lake_trouble(&self) -> Option<String>;
    /// The status page.
    fn status(&self) -> api::Status;
    /// The nodes of the cluster; none if the node is in no cluster.
    fn nodes(&self) -> Vec<api::ClusterNode>;
    /// All counters at this moment.
    fn snapshot(&self) -> Snapshot;
    /// The effective configuration without secrets, keys as in `forebay.toml`.
    fn config(&self) -> serde_json::Value;
    /// Long work.
    fn jobs(&self) -> &Jobs;
    /// Steps on their way to the lake.
    fn saves(&self) -> &Saves;
    /// Counters that nobody else keeps.
    fn metrics(&self) -> &Metrics;
    /// The most objects that one warm job reads at once.
    fn warm_parallel_max(&self) -> usize;
}

/// State of the handlers.
pub(crate) type Shared = Arc<dyn Administered>;

/// Rule for the token.
#[derive(Debug, Clone)]
pub enum Protection {
    /// Only processes on this host can connect: they need the token for whatever changes something.
    Loopback(Secret),
    /// Anybody may connect: the token is needed for everything but the health checks.
    Everywhere(Secret),
}

/// All routes, behind the guard.
pub fn router(node: Arc<dyn Administered>, protection: Protection) -> Router {
    Router::new()
        .route("/healthz", get(health::healthz))
        .route("/readyz", get(health::readyz))
        .route("/metrics", get(health::metrics))
        .route("/openapi.json", get(openapi::serve))
        .route("/v1/status", get(status::show))
        .route("/v1/nodes", get(nodes::list))
        .route("/v1/config", get(config::show))
        .route("/v1/buckets", get(buckets::list).post(buckets::create))
        .route("/v1/cache/{verb}", post(cache::start))
        .route("/v1/jobs", get(routes::jobs::list))
        .route("/v1/jobs/{id}", get(routes::jobs::show))
        .route("/v1/jobs/{id}/stop", post(routes::jobs::stop))
        .route("/v1/saves", get(saves::list))
        .route("/v1/saves/{id}", get(saves::show))
        .route("/v1/saves/{id}/abort", post(saves::abort))
        .fallback(answer::no_such_route)
        .method_not_allowed_fallback(answer::wrong_method)
        .layer(middleware::from_fn_with_state(Arc::new(protection), guard::check))
        .layer(DefaultBodyLimit::max(BODY_BYTES_MAX))
        .with_state(node)
}
