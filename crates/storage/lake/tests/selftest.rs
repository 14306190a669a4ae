//! The self-test on lakes that keep their promises and on lakes that do not.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test may panic, also outside its test function"
)]

use std::collections::HashMap;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use forebay_core::{Error, Kind, ObjectKey, Result};
use forebay_lake::{
    Attributes, ByteStream, CopyOptions, Counted, Fault, Faulty, FolderLake, GetOptions, GetResult, Lake,
    LakeReport, LakeWriter, ListOptions, ListPage, MemoryLake, ObjectMeta, Operation, PartNumber,
    PartReceipt, PutMode, PutOptions, PutReceipt, UpdateToken, UploadId, selftest,
};
use parking_lot::Mutex;

async fn probe(lake: &dyn Lake) -> LakeReport {
    selftest::probe(lake).await.unwrap()
}

async fn is_empty(lake: &dyn Lake) -> bool {
    lake.list(ListOptions::default())
        .await
        .unwrap()
        .objects
        .is_empty()
}

#[tokio::test]
async fn our_own_lakes_keep_every_promise_and_are_left_clean() {
    let folder = tempfile::tempdir().unwrap();
    let lakes: [Arc<dyn Lake>; 2] = [
        Arc::new(MemoryLake::new()),
        Arc::new(FolderLake::open(folder.path()).unwrap()),
    ];
    for lake in lakes {
        let report = probe(&*lake).await;
        assert!(report.is_perfect(), "{}: {report:?}", lake.url());
        assert!(report.conditional_create && report.conditional_update && report.if_match_reads);
        assert!(report.conditional_delete, "{}", lake.url());
        assert!(report.writable && report.read_after_write && report.list_after_write);
        assert!(report.distinct_keys, "{}", lake.url());
        assert!(is_empty(&*lake).await, "{}", lake.url());
    }
}

#[tokio::test]
async fn a_self_test_costs_at_most_sixty_five_requests() {
    let lake = Counted::new(Arc::new(MemoryLake::new()));
    assert!(probe(&lake).await.is_perfect());
    let counts = lake.counters().snapshot();
    assert!(counts.requests_total() <= 65, "{counts:?}");
}

#[tokio::test]
async fn a_read_only_lake_is_reported_not_an_error() {
    let lake = Faulty::new(Arc::new(MemoryLake::new()), 1);
    for operation in [Operation::Put, Operation::Delete] {
        lake.random(operation, 1.0, Fault::Error(Kind::Denied));
    }
    let report = probe(&lake).await;
    assert!(!report.writable && !report.conditional_create && !report.conditional_update);
    assert!(report.findings[0].contains("cannot be written"), "{report:?}");
}

#[tokio::test]
async fn a_lake_that_cannot_be_reached_is_an_error() {
    let lake = Faulty::new(Arc::new(MemoryLake::new()), 1);
    lake.random(Operation::Put, 1.0, Fault::Error(Kind::Unavailable));
    assert_eq!(
        selftest::probe(&lake).await.unwrap_err().kind(),
        Kind::Unavailable
    );
}

#[tokio::test]
async fn a_lake_that_ignores_conditions_is_found_out() {
    let report = probe(&Careless::new(Ignores::Conditions)).await;
    assert!(
        !report.conditional_create && !report.conditional_update,
        "{report:?}"
    );
    assert!(
        report.writable && report.read_after_write && report.if_match_reads,
        "{report:?}"
    );
    assert!(!report.conditional_delete, "{report:?}");
    assert_eq!(report.findings.len(), 2, "{report:?}");
}

#[tokio::test]
async fn a_lake_that_ignores_versions_in_reads_is_found_out() {
    let report = probe(&Careless::new(Ignores::Versions)).await;
    assert!(
        !report.if_match_reads && report.conditional_create && report.conditional_update,
        "{report:?}"
    );
}

#[tokio::test]
async fn a_lake_that_checks_and_then_writes_is_found_out() {
    let report = probe(&Careless::new(Ignores::Races)).await;
    assert!(
        !report.conditional_create && !report.conditional_update,
        "{report:?}"
    );
    assert!(!report.conditional_delete, "{report:?}");
}

#[tokio::test]
async fn losers_that_are_answered_with_an_error_have_lost() {
    let report = probe(&Careless::new(Ignores::Manners)).await;
    assert!(report.is_perfect(), "{report:?}");
}

#[tokio::test]
async fn a_lake_that_refuses_only_by_errors_and_lets_latecomers_win_is_found_out() {
    let report = probe(&Careless::new(Ignores::Latecomers)).await;
    assert!(!report.conditional_create && report.writable, "{report:?}");
    assert!(report.findings[0].contains("came after the winner"), "{report:?}");
}

#[tokio::test]
async fn a_race_that_nobody_wins_for_errors_is_a_lake_that_cannot_be_reached() {
    let lake = Careless::new(Ignores::Crowds);
    assert_eq!(
        selftest::probe(&lake).await.unwrap_err().kind(),
        Kind::Unavailable
    );
}

#[tokio::test]
async fn a_lake_that_takes_keys_for_paths_is_found_out() {
    for folding in ["//", "/./", "\\"] {
        let report = probe(&Careless::new(Ignores::Path(folding))).await;
        assert!(!report.distinct_keys && report.writable, "{report:?}");
        assert!(report.findings[0].contains("takes keys for paths"), "{report:?}");
        assert!(
            report.conditional_create && report.conditional_update,
            "{report:?}"
        );
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ignores {
    /// Takes this in a key for a slash.
    Path(&'static str),
    /// Every write is an overwrite.
    Conditions,
    /// Every read is of what is there now.
    Versions,
    /// Checks the condition, lets others go first, writes.
    Races,
    /// Answers those that lose a race as if it were broken, as Ceph does.
    Manners,
    /// The same, and one that comes after the race finds no condition.
    Latecomers,
    /// Answers everyone in a race as if it were broken.
    Crowds,
}

#[derive(Debug)]
struct Careless {
    inner: MemoryLake,
    ignores: Ignores,
    /// Conditional writes of a key that are under way.
    racing: Mutex<HashMap<ObjectKey, usize>>,
}

impl Careless {
    fn new(ignores: Ignores) -> Self {
        Self {
            inner: MemoryLake::new(),
            ignores,
            racing: Mutex::default(),
        }
    }

    /// The key under which it keeps an object.
    fn kept(&self, key: &ObjectKey) -> ObjectKey {
        match self.ignores {
            Ignores::Path(folding) => ObjectKey::new(&key.as_str().replace(folding, "/")).unwrap(),
            _ => key.clone(),
        }
    }

    /// A conditional write that knows whether it is in a race.
    async fn race(&self, key: &ObjectKey, body: Bytes, mut options: PutOptions) -> Result<PutReceipt> {
        let racing = |change: isize| {
            let mut racing = self.racing.lock();
            let count = racing.entry(key.clone()).or_default();
            *count = count.checked_add_signed(change).unwrap();
            *count
        };
        let before = racing(1);
        tokio::task::yield_now().await;
        let is_alone = before.max(racing(0)) == 1;
        if is_alone && self.ignores == Ignores::Latecomers && options.mode == PutMode::Create {
            options.mode = PutMode::Overwrite;
        }
        let answer = match self.ignores {
            Ignores::Crowds if !is_alone => Err(Error::new(Kind::Unavailable, "too many")),
            _ => self.inner.put(key, body, options).await,
        };
        racing(-1);
        match answer {
            Err(_) if !is_alone => Err(Error::new(Kind::Unavailable, "something went wrong")),
            answer => answer,
        }
    }
}

#[async_trait]
impl Lake for Careless {
    fn url(&self) -> &'static str {
        "careless://"
    }

    async fn head(&self, key: &ObjectKey) -> Result<ObjectMeta> {
        self.inner.head(&self.kept(key)).await
    }

    async fn get(&self, key: &ObjectKey, mut options: GetOptions) -> Result<GetResult> {
        if self.ignores == Ignores::Versions {
            options.if_match = None;
        }
        self.inner.get(&self.kept(key), options).await
    }

    async fn writer(
        &self,
        key: &ObjectKey,
        options: PutOptions,
        hint: Option<u64>,
    ) -> Result<Box<dyn LakeWriter>> {
        self.inner.writer(key, options, hint).await
    }

    async fn put(&self, key: &ObjectKey, body: Bytes, mut options: PutOptions) -> Result<PutReceipt> {
        if matches!(self.ignores, Ignores::Path(_)) {
            return self.inner.put(&self.kept(key), body, options).await;
        }
        let knows_races = matches!(
            self.ignores,
            Ignores::Manners | Ignores::Latecomers | Ignores::Crowds
        );
        if knows_races && options.mode == PutMode::Overwrite {
            return self.inner.put(key, body, options).await;
        }
        if knows_races {
            return self.race(key, body, options).await;
        }
        if self.ignores == Ignores::Races {
            let found = self.inner.head(key).await.ok().map(|meta| meta.token);
            let holds = match &options.mode {
                PutMode::Overwrite => true,
                PutMode::Create => found.is_none(),
                PutMode::Update(token) => found.as_ref() == Some(token),
            };
            if !holds {
                return self.inner.put(key, body, options).await;
            }
            tokio::task::yield_now().await;
        }
        if self.ignores != Ignores::Versions {
            options.mode = PutMode::Overwrite;
        }
        self.inner.put(key, body, options).await
    }

    async fn delete(&self, key: &ObjectKey) -> Result<()> {
        self.inner.delete(key).await
    }

    async fn delete_if(&self, key: &ObjectKey, token: &UpdateToken) -> Result<()> {
        match self.ignores {
            Ignores::Conditions => self.inner.delete(key).await,
            Ignores::Races => {
                let found = self.inner.head(key).await?.token;
                tokio::task::yield_now().await;
                if found == *token {
                    self.inner.delete(key).await
                } else {
                    self.inner.delete_if(key, token).await
                }
            }
            _ => self.inner.delete_if(key, token).await,
        }
    }

    async fn copy(&self, from: &ObjectKey, to: &ObjectKey, options: CopyOptions) -> Result<PutReceipt> {
        self.inner.copy(from, to, options).await
    }

    async fn list(&self, options: ListOptions) -> Result<ListPage> {
        self.inner.list(options).await
    }

    async fn start_upload(&self, key: &ObjectKey, attributes: Attributes) -> Result<UploadId> {
        self.inner.start_upload(key, attributes).await
    }

    async fn upload_part(
        &self,
        key: &ObjectKey,
        upload: &UploadId,
        number: PartNumber,
        bytes: u64,
        body: ByteStream,
    ) -> Result<PartReceipt> {
        self.inner.upload_part(key, upload, number, bytes, body).await
    }

    async fn complete_upload(
        &self,
        key: &ObjectKey,
        upload: &UploadId,
        parts: &[PartReceipt],
        options: PutOptions,
    ) -> Result<PutReceipt> {
        self.inner.complete_upload(key, upload, parts, options).await
    }

    async fn abort_upload(&self, key: &ObjectKey, upload: &UploadId) -> Result<()> {
        self.inner.abort_upload(key, upload).await
    }
}
