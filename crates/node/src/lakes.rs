//! The lakes of a node: opened, counted, tested at the start, looked at now and then.
//!
//! The self-test writes and removes a few small objects under `.forebay/` and finds out whether conditional
//! writes hold (see `forebay_lake::selftest`); what the lake cannot do is refused later with a clear message
//! rather than done wrongly. Lakes stand apart: one that does not answer, refuses us (credentials, no such
//! bucket) or fails its self-test makes its own buckets answer so, and is asked again with longer and longer
//! pauses; the others are served.

use std::sync::Arc;
use std::time::Duration;

use forebay_admin::api;
use forebay_admin::metrics::LakeSnapshot;
use forebay_core::{BucketName, Error, Kind, ObjectKey, Result};
use forebay_engine::{Engine, LakeOptions, LakePromises};
use forebay_lake::{
    Admission, AdmissionOptions, CleanKeys, Counted, Lake, LakeCondition, LakeCounters, ListOptions,
    OpenOptions, SchedulerOptions, selftest,
};
use futures::future::join_all;
use parking_lot::RwLock;

use crate::lake_url::LakeUrl;
use crate::options::{NodeOptions, SelfTest};

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

/// The longest that a look at a lake that should be there may take.
const LOOK_TIME_MAX: Duration = Duration::from_millis(900);

/// Period at which a self-test looks whether its lake is away.
const AWAY_PERIOD: Duration = Duration::from_millis(100);

/// Depth of a look at a lake.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Look {
    /// One key; every second.
    Short,
    /// A listing; now and then.
    Long,
}

/// Health of a lake.
#[derive(Debug, Clone)]
pub(crate) struct LakeHealth {
    /// True if it answered when it was last asked.
    pub(crate) up: bool,
    /// Finding of the self-test, or why there was no answer.
    pub(crate) finding: String,
    /// Report of the self-test.
    tested: String,
    /// Promises that the self-test proved; nothing before it has passed.
    promises: Option<LakePromises>,
}

/// A lake with its counters and what is known about it.
#[derive(Debug)]
pub(crate) struct WatchedLake {
    pub(crate) url: String,
    /// The bucket that lies in it alone; `None` for the default lake.
    pub(crate) bucket: Option<BucketName>,
    lake: Arc<CleanKeys>,
    counters: Arc<LakeCounters>,
    /// The way that all requests to it take.
    admission: Arc<Admission>,
    self_test: SelfTest,
    health: RwLock<LakeHealth>,
    refusal: RwLock<Option<Error>>,
}

/// Opens the default lake and those of the buckets, in this order. Nothing is asked of them yet.
pub(crate) async fn open_all(options: &NodeOptions) -> Result<Vec<Arc<WatchedLake>>> {
    let mut lakes = vec![open(&options.lake, None, options).await?];
    for bucket in &options.buckets {
        if let Some(url) = &bucket.lake {
            lakes.push(open(url, Some(bucket.name.clone()), options).await?);
        }
    }
    Ok(lakes)
}

async fn open(url: &LakeUrl, bucket: Option<BucketName>, options: &NodeOptions) -> Result<Arc<WatchedLake>> {
    let limits = AdmissionOptions {
        in_flight_max: options.limits.lake_requests_max,
        patience: options.limits.lake_patience,
        ..AdmissionOptions::default()
    };
    let admission = Admission::new(url.shown(), limits);
    let open_options = OpenOptions {
        admission: Some(Arc::clone(&admission)),
        ..OpenOptions::default()
    };
    let inner = forebay_lake::open(url.shown(), &open_options)
        .await
        .map_err(|error| error.with("setting", if bucket.is_some() { "bucket.lake" } else { "lake" }))?;
    let counters = Arc::<LakeCounters>::default();
    let counted = Arc::new(Counted::with_counters(inner, Arc::clone(&counters)));
    let lake = Arc::new(CleanKeys::new(counted));
    let health = LakeHealth {
        up: false,
        finding: "not asked yet".into(),
        tested: String::new(),
        promises: None,
    };
    Ok(Arc::new(WatchedLake {
        url: lake.url().to_owned(),
        bucket,
        lake,
        counters,
        admission,
        self_test: options.self_test,
        health: RwLock::new(health),
        refusal: RwLock::default(),
    }))
}

/// Tests all lakes, once and side by side; what was found is in their health.
pub(crate) async fn ask_all(lakes: &[Arc<WatchedLake>]) {
    join_all(lakes.iter().map(|lake| lake.test())).await;
}

/// Tests each lake that has not passed yet again and again, and tells the engine what it promises. `on_pass` is
/// called for each that has passed.
pub(crate) async fn ask_until_passed(lakes: &[Arc<WatchedLake>], engine: &Engine, on_pass: impl Fn()) {
    let untested = lakes.iter().filter(|lake| lake.health().promises.is_none());
    let asking = untested.map(|lake| async {
        let last = PAUSES[PAUSES.len() - 1];
        for pause in PAUSES.into_iter().chain(std::iter::repeat(last)) {
            tokio::time::sleep(pause).await;
            if lake.test().await {
                engine.set_promises(lake.bucket.as_ref(), lake.health().promises);
                on_pass();
                return;
            }
        }
    });
    join_all(asking).await;
}

impl WatchedLake {
    /// Returns how the lake is: as it was found when last asked, unless requests have found since that it is
    /// away.
    pub(crate) fn health(&self) -> LakeHealth {
        let mut health = self.health.read().clone();
        match self.admission.condition() {
            LakeCondition::Well => {}
            condition @ LakeCondition::Throttled { .. } => health.finding = condition.to_string(),
            condition @ LakeCondition::Away { .. } => {
                health.up = false;
                health.finding = condition.to_string();
            }
        }
        health
    }

    /// Returns whether the lake has passed its self-test.
    pub(crate) fn has_passed(&self) -> bool {
        self.health.read().promises.is_some()
    }

    /// Why the lake refuses us, if it does.
    pub(crate) fn refusal(&self) -> Option<Error> {
        self.refusal.read().as_ref().map(Error::share)
    }

    /// Runs the self-test and remembers what it found. `false` if the lake does not answer or refuses us.
    async fn test(&self) -> bool {
        // The listing comes first: a lake that may be read but not written is fine, the other way round is
        // not.
        let tested = self.unless_away(within(ASK_TIME_MAX, async {
            self.lake.list(first_name()).await?;
            match self.self_test {
                SelfTest::Full => selftest::probe(&*self.lake).await.map(Some),
                SelfTest::Listing => Ok(None),
            }
        }));
        match tested.await {
            Ok(None) => {
                let mut health = self.health.write();
                health.up = true;
                health.finding = "answers; only listed".into();
                health.tested = health.finding.clone();
                health.promises = Some(LakePromises::default());
                true
            }
            Ok(Some(report)) => {
                let promises = LakePromises {
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
                    promises: Some(promises),
                };
                *self.refusal.write() = None;
                true
            }
            Err(error) => {
                let error = error.with("setting", self.setting());
                if error.is_retryable() {
                    tracing::warn!(lake = self.url, error = ?error, "lake does not answer; asking again");
                } else {
                    tracing::error!(lake = self.url, error = ?error, "lake refuses us; its buckets answer with errors");
                }
                self.health.write().finding = error.to_string();
                *self.refusal.write() = (!error.is_retryable()).then_some(error);
                false
            }
        }
    }

    fn has_answered_within(&self, time: Duration) -> bool {
        self.admission.since_answer().is_some_and(|since| since < time)
    }

    /// The setting that names the lake.
    fn setting(&self) -> &'static str {
        if self.bucket.is_some() {
            "bucket.lake"
        } else {
            "lake"
        }
    }

    /// Asks whether the lake is there, unless it has answered somebody just now. A listing finds what a lookup of
    /// one key does not: a bucket or a folder that is gone.
    pub(crate) async fn look(&self, depth: Look) {
        if !self.has_passed() {
            return; // The self-test is being repeated.
        }
        let is_known = self.has_answered_within(LOOK_TIME_MAX / 2);
        let looked = match depth {
            Look::Short if is_known && self.health.read().up => return,
            Look::Short => within(LOOK_TIME_MAX, self.look_up_one_key()).await,
            Look::Long => within(ASK_TIME_MAX, self.lake.list(first_name()))
                .await
                .map(|_| ()),
        };
        let was_up = self.health.read().up;
        match looked {
            Ok(_) if was_up => {}
            Ok(_) => {
                tracing::info!(lake = self.url, "lake answers again");
                let mut health = self.health.write();
                health.up = true;
                health.finding = health.tested.clone();
            }
            // It has answered somebody while we waited for our turn: it throttles.
            Err(error) if error.kind() == Kind::Timeout && self.has_answered_within(LOOK_TIME_MAX) => {}
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

    /// Does the work, but does not wait for a lake that is found to be away.
    async fn unless_away<T>(&self, work: impl Future<Output = Result<T>>) -> Result<T> {
        tokio::pin!(work);
        loop {
            match tokio::time::timeout(AWAY_PERIOD, &mut work).await {
                Ok(ended) => return ended,
                Err(_) => match self.admission.condition() {
                    LakeCondition::Away { .. } => {
                        let message = "it cannot be reached or does not answer";
                        return Err(Error::new(Kind::Unavailable, message).with("lake", &self.url));
                    }
                    LakeCondition::Well | LakeCondition::Throttled { .. } => {}
                },
            }
        }
    }

    async fn look_up_one_key(&self) -> Result<()> {
        let key = ObjectKey::new(".forebay/lake-check")?;
        match self.lake.head(&key).await {
            Err(error) if !matches!(error.kind(), Kind::NotFound | Kind::Denied) => Err(error),
            _ => Ok(()),
        }
    }

    /// The lake as the engine takes it.
    pub(crate) fn engine_options(&self) -> LakeOptions {
        let promises = self.health.read().promises.unwrap_or_default();
        LakeOptions {
            lake: Arc::clone(&self.lake) as Arc<dyn Lake>,
            conditional_create: promises.conditional_create,
            conditional_update: promises.conditional_update,
            conditional_delete: promises.conditional_delete,
            scheduler: SchedulerOptions {
                admission: Some(Arc::clone(&self.admission)),
                ..SchedulerOptions::default()
            },
        }
    }

    /// The lake for documents of the node, and whether a conditional create has exactly one winner there.
    pub(crate) fn for_documents(&self) -> (Arc<dyn Lake>, bool) {
        let promises = self.health.read().promises.unwrap_or_default();
        let lake = Arc::clone(&self.lake) as Arc<dyn Lake>;
        (lake, promises.conditional_create)
    }

    /// Its counters, for metrics.
    pub(crate) fn snapshot(&self) -> LakeSnapshot {
        let (counts, ways) = (self.counters.snapshot(), self.admission.stats());
        LakeSnapshot {
            url: self.url.clone(),
            up: self.health().up,
            refused: ways.refused,
            outages: ways.outages,
            waiting: ways.waiting as u64,
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
        let promises = health.promises.unwrap_or_default();
        let failed = counts.requests.iter().filter(|r| r.error.is_some_and(is_fault));
        api::Lake {
            url: self.url.clone(),
            bucket: self.bucket.as_ref().map(ToString::to_string),
            up: health.up,
            finding: health.finding,
            conditional_create: promises.conditional_create,
            conditional_update: promises.conditional_update,
            conditional_delete: promises.conditional_delete,
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
