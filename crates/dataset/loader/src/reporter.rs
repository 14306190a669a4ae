//! Tells the node what its loaders do, so that its metrics answer why consumers waited.
//!
//! The consumer counts; a fetcher, which talks to the node anyway, sends the sum now and then, and the end of
//! the threads sends the rest. Advice only: what cannot be said is lost, and nobody waits for it but a
//! fetcher.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use forebay_client::LoaderReport;

use crate::dataset::Inner;

/// Counts that were not reported yet.
#[derive(Default)]
pub(crate) struct Reporter(Mutex<Pending>);

#[derive(Default)]
struct Pending {
    report: LoaderReport,
    said: Option<Instant>,
}

impl Reporter {
    /// Counts what was handed over.
    pub(crate) fn add(&self, more: &LoaderReport) {
        let mut pending = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        pending.report = pending.report.plus(more);
    }

    /// Says what there is, unless that was done just now.
    pub(crate) fn send(&self, datasets: &[Arc<Inner>], every: Duration) {
        let Some(dataset) = datasets.first() else { return };
        let report = {
            let mut pending = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            let is_early = pending.said.is_some_and(|said| said.elapsed() < every);
            if is_early || pending.report == LoaderReport::default() {
                return;
            }
            pending.said = Some(Instant::now());
            std::mem::take(&mut pending.report)
        };
        if let Err(error) = dataset.client.report_loader(report) {
            tracing::debug!(%error, "the node was not told what was loaded");
        }
    }
}
