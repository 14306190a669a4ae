//! The lakes of a node: opened, counted, tested at the start, looked at now and then.
//!
//! The self-test writes and removes a few small objects under `.forebay/` and finds out whether conditional
//! writes hold (see `forebay_lake::selftest`); what the lake cannot do is refused later with a clear message
//! rather than done wrongly. A lake that refuses us (credentials, no such bucket) is a configuration error;
//! one that does not answer is asked again, with longer and longer pauses.

use std::sync::Arc;
use std::time::Duration;

use forebay_admin::api;
use forebay_admin::metrics::LakeSnapshot;
use forebay_core::{BucketName, Error, Kind, Result};
use forebay_engine::LakeOptions;
use forebay_lake::{
    CleanKeys, Counted, Lake, LakeCounters, ListOptions, OpenOptions, SchedulerOptions, selftest,
};
use futures::future::try_join_all;
use parking_lot::RwLock;

use crate::lake_url::LakeUrl;
use crate::options::{Limits, NodeOptions, SelfTest};

/// The longest that one self-test or look may take.
const ASK_TIME_MAX: Duration = Duration::from_secs(20);
/// Pauses between requests to a lake that does not answer.
const PAUSES: [Duration; 5] = [
    Duration::from_millis(500),
    Duration::from_secs(1),
    Duration::from_secs(2),
    Duration::from_secs(5),
    Duration::from_secs(10),
];

/// Health of a lake.
#[derive(Debug, Clone)]
pub(crate) struct LakeHealth {
    /// True if it answered when it was last asked.
    pub(crate) up: bool,
    /// Finding of the self-test, or why there was no answer.
    pub(crate) finding: String,
    /// Report of the self-test.
    tested: String,
    /// Promises that the self-test proved; nothing before it has run.
    promises: Promises,
}

#[derive(Debug, Clone, Copy, Default)]
struct Promises {
    conditional_create: bool,
    conditional_update: bool,
    conditional_delete: bool,
}

/// A lake with its counters and what is known about it.
#[derive(Debug)]
pub(crate) struct WatchedLake {
    pub(crate) url: String,
    /// The bucket that lies in it alone; `None` for the default lake.
    pub(crate) bucket: Option<BucketName>,
    lake: Arc<CleanKeys>,
    counters: Arc<LakeCounters>,
    self_test: SelfTest,
    health: RwLock<LakeHealth>,
}

/// Opens the default lake and those of the buckets, in this order. Nothing is asked of them yet.
pub(crate) async fn open_all(options: &NodeOptions) -> Result<Vec<Arc<WatchedLake>>> {
    let self_test = options.self_test;
    let mut lakes = vec![open(&options.lake, None, self_test).await?];
    for bucket in &options.buckets {
        if let Some(url) = &bucket.lake {
            lakes.push(open(url, Some(bucket.name.clone()), self_test).await?);
        }
    }
    Ok(lakes)
}

async fn open(url: &LakeUrl, bucket: Option<BucketName>, self_test: SelfTest) -> Result<Arc<WatchedLake>> {
    let inner = forebay_lake::open(url.shown(), &OpenOptions::default())
        .await
        .map_err(|error| error.with("setting", if bucket.is_some() { "bucket.lake" } else { "lake" }))?;
    let counters = Arc::<LakeCounters>::default();
    let counted = Arc::new(Counted::with_counters(inner, Arc::clone(&counters)));
    let lake = Arc::new(CleanKeys::new(counted));
    let health = LakeHealth {
        up: false,
        finding: "not asked yet".into(),
        tested: String::new(),
        promises: Promises::default(),
    };
    Ok(Arc::new(WatchedLake {
        url: lake.url().to_owned(),
        bucket,
        lake,
        counters,
        self_test,
        health: RwLock::new(health),
    }))
}

/// Tests all lakes. `false` if one does not answer; an error if one refuses us.
pub(crate) async fn ask_all(lakes: &[Arc<WatchedLake>]) -> Result<bool> {
    let answers = try_join_all(lakes.iter().map(|lake| lake.test())).await?;
    Ok(answers.into_iter().all(|answered| answered))
}

/// Tests all lakes again and again until each has answered.
pub(crate) async fn ask_until_answered(lakes: &[Arc<WatchedLake>]) -> Result<()> {
    let last = PAUSES[PAUSES.len() - 1];
    for pause in PAUSES.into_iter().chain(std::iter::repeat(last)) {
        tokio::time::sleep(pause).await;
        if ask_all(lakes).await? {
            return Ok(());
        }
    }
    Ok(())
}

impl WatchedLake {
    /// Returns how the lake is.
    pub(crate) fn health(&self) -> LakeHealth {
        self.health.read().clone()
    }

    /// Runs the self-test and remembers what it found. `false` if the lake does not answer.
    async fn test(&self) -> Result<bool> {
        // The listing comes first: a lake that may be read but not written is fine, the other way round is
        // not.
        let tested = within(ASK_TIME_MAX, async {
            self.lake.list(first_name()).await?;
            match self.self_test {
                SelfTest::Full => selftest::probe(&*self.lake).await.map(Some),
                SelfTest::Listing => Ok(None),
            }
        });
        match tested.await {
            Ok(None) => {
                let mut health = self.health.write();
                health.up = true;
                health.finding = "answers; only listed".into();
                health.tested = health.finding.clone();
                Ok(true)
            }
            Ok(Some(report)) => {
                let promises = Promises {
                    conditional_create: report.conditional_create,
                    conditional_update: report.conditional_update,
                    conditional_delete: report.conditional_delete,
                };
                if !report.distinct_keys && report.writable {
                    self.lake.refuse_unclean();
                }
                let finding = describe(&report);
                if report.is_perfect() {
                    tracing::info!(lake = self.url, finding, "lake answered");
                } else {
                    tracing::warn!(
                        lake = self.url,
                        finding,
                        "lake answered, but does not keep all promises"
                    );
                }
                *self.health.write() = LakeHealth {
                    up: true,
                    finding: finding.clone(),
                    tested: finding,
                    promises,
                };
                Ok(true)
            }
            Err(error) if error.is_retryable() => {
                tracing::warn!(lake = self.url, error = ?error, "lake does not answer; asking again");
                self.health.write().finding = error.to_string();
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }

    /// Asks for one key, to see whether the lake is there.
    pub(crate) async fn look(&self) {
        let looked = within(ASK_TIME_MAX, self.lake.list(first_name())).await;
        let was_up = self.health.read().up;
        match looked {
            Ok(_) if was_up => {}
            Ok(_) => {
                tracing::info!(lake = self.url, "lake answers again");
                let mut health = self.health.write();
                health.up = true;
                health.finding = health.tested.clone();
            }
            Err(error) => {
                if was_up {
                    tracing::warn!(lake = self.url, error = ?error, "lake does not answer");
                }
                let mut health = self.health.write();
                health.up = false;
                health.finding = error.to_string();
            }
        }
    }

    /// The lake as the engine takes it.
    pub(crate) fn engine_options(&self, limits: &Limits) -> LakeOptions {
        let promises = self.health.read().promises;
        LakeOptions {
            lake: Arc::clone(&self.lake) as Arc<dyn Lake>,
            conditional_create: promises.conditional_create,
            conditional_update: promises.conditional_update,
            conditional_delete: promises.conditional_delete,
            scheduler: SchedulerOptions {
                in_flight_max: limits.lake_requests_max,
                ..SchedulerOptions::default()
            },
        }
    }

    /// Its counters, for metrics.
    pub(crate) fn snapshot(&self) -> LakeSnapshot {
        let counts = self.counters.snapshot();
        LakeSnapshot {
            url: self.url.clone(),
            up: self.health.read().up,
            requests: counts
                .requests
                .iter()
                .map(|r| (r.operation.as_str(), r.outcome(), r.count))
                .collect(),
            read_bytes: counts.read_bytes,
            written_bytes: counts.written_bytes,
        }
    }

    /// Its line in the status.
    pub(crate) fn status(&self) -> api::Lake {
        let (counts, health) = (self.counters.snapshot(), self.health());
        let failed = counts.requests.iter().filter(|r| r.error.is_some_and(is_fault));
        api::Lake {
            url: self.url.clone(),
            bucket: self.bucket.as_ref().map(ToString::to_string),
            up: health.up,
            finding: health.finding,
            conditional_create: health.promises.conditional_create,
            conditional_update: health.promises.conditional_update,
            conditional_delete: health.promises.conditional_delete,
            requests: counts.requests_total(),
            failed_requests: failed.map(|r| r.count).sum(),
            read_bytes: counts.read_bytes,
            written_bytes: counts.written_bytes,
        }
    }
}

/// The cheapest listing: one name at the top, nothing below it.
fn first_name() -> ListOptions {
    ListOptions {
        delimiter: Some("/".into()),
        limit: 1,
        ..ListOptions::default()
    }
}

fn describe(report: &selftest::LakeReport) -> String {
    if report.is_perfect() {
        "keeps all promises".into()
    } else {
        report.findings.join("; ")
    }
}

/// Returns whether an answer is the lake's fault; a missing key or a failed condition is a good answer.
fn is_fault(kind: Kind) -> bool {
    matches!(
        kind,
        Kind::Denied
            | Kind::Throttled
            | Kind::Unavailable
            | Kind::Timeout
            | Kind::Checksum
            | Kind::Io
            | Kind::Internal
    )
}

async fn within<T>(limit: Duration, work: impl Future<Output = Result<T>>) -> Result<T> {
    let late = |_| Error::new(Kind::Timeout, format!("no answer within {} s", limit.as_secs()));
    tokio::time::timeout(limit, work).await.map_err(late)?
}
