//! The routes, one file per noun.

use std::time::Duration;

use axum::extract::Query;
use axum::extract::rejection::QueryRejection;
use forebay_core::{Error, Kind, Result};
use serde::Deserialize;
use tokio::sync::{Semaphore, SemaphorePermit};

pub(crate) mod buckets;
pub(crate) mod cache;
pub(crate) mod config;
pub(crate) mod health;
pub(crate) mod jobs;
pub(crate) mod nodes;
pub(crate) mod saves;
pub(crate) mod status;

/// The longest that one request waits for a job or a save; a client asks again.
pub(crate) const WAIT_MAX: Duration = Duration::from_secs(60);

/// Requests that wait at once; beyond it the answer is what is known now, as after a wait that was too short.
/// So those who wait, which needs no token on loopback, leave most connections to others.
static WAITS: Semaphore = Semaphore::const_new(64);

/// Returns a place to wait in, if there is one.
pub(crate) fn wait_permit() -> Option<SemaphorePermit<'static>> {
    WAITS.try_acquire().ok()
}

/// Query of a page that can wait for an end.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct WaitQuery {
    wait: Option<String>,
}

/// Returns how long a request wants to wait, at most [`WAIT_MAX`]; `None` if it did not say.
pub(crate) fn wait_of(query: Result<Query<WaitQuery>, QueryRejection>) -> Result<Option<Duration>> {
    let Query(query) = query.map_err(|why| Error::new(Kind::InvalidInput, why.body_text()))?;
    let Some(text) = query.wait else {
        return Ok(None);
    };
    let wait = humantime::parse_duration(text.trim()).map_err(|why| {
        let message = format!("wait={text} is not a length of time; write for example 500ms, 5s or 10m");
        Error::new(Kind::InvalidInput, message).caused_by(why)
    })?;
    Ok(Some(wait.min(WAIT_MAX)))
}
