//! Readiness of a node: the engine and the S3 edge are there, and at least one lake has passed its self-test.

use std::sync::{Arc, OnceLock};

use forebay_core::{Error, Kind, Result};
use forebay_engine::{Engine, EngineSource};
use forebay_s3::S3Edge;
use tokio_util::sync::CancellationToken;

use crate::lakes::WatchedLake;

/// The engine and the S3 edge, or why they are not there yet.
#[derive(Debug)]
pub(crate) struct Readiness {
    lakes: Vec<Arc<WatchedLake>>,
    stop: CancellationToken,
    serving: OnceLock<Serving>,
}

/// Services that need the answers of the lakes.
#[derive(Debug)]
pub(crate) struct Serving {
    pub(crate) engine: Arc<Engine>,
    pub(crate) edge: Arc<S3Edge>,
}

impl Readiness {
    pub(crate) fn new(lakes: Vec<Arc<WatchedLake>>, stop: CancellationToken) -> Arc<Self> {
        Arc::new(Self {
            lakes,
            stop,
            serving: OnceLock::new(),
        })
    }

    pub(crate) fn serving(&self) -> Option<&Serving> {
        self.serving.get()
    }

    /// Sets what serves from now on, once.
    pub(crate) fn set(&self, serving: Serving) -> Result<()> {
        let set = self.serving.set(serving);
        set.map_err(|_| Error::new(Kind::Internal, "the S3 endpoint was opened twice"))
    }

    /// Why the node is not ready; `None` if it is.
    pub(crate) fn why_not(&self) -> Option<String> {
        if self.stop.is_cancelled() {
            return Some("the node is stopping".into());
        }
        let is_ready = self.serving.get().is_some() && self.lakes.iter().any(|lake| lake.has_passed());
        (!is_ready).then(|| self.waiting_for())
    }

    fn waiting_for(&self) -> String {
        let silent = self.lakes.iter().find(|lake| !lake.health().up);
        silent.map_or_else(
            || "the node is starting".into(),
            |lake| format!("the lake {} cannot be used: {}", lake.url, lake.health().finding),
        )
    }
}

impl EngineSource for Readiness {
    fn engine(&self) -> Result<&Arc<Engine>> {
        let serving = self.serving.get();
        serving
            .map(|serving| &serving.engine)
            .ok_or_else(|| Error::new(Kind::Unavailable, self.waiting_for()))
    }
}
