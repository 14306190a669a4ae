//! Tests by trying which promises a lake keeps.
//!
//! Stores differ: some ignore the condition of a write, some check it and then write without a lock. A node
//! runs [`probe`] when it starts and refuses what would need a promise that its lake does not keep. All
//! objects of the probe lie under `.forebay/selftest-<random>/` and are removed at the end. It takes 60
//! requests, most of them side by side. A lake that refuses writes gives a report that says so; only a lake
//! that cannot be reached gives an error.

use std::collections::BTreeSet;

use bytes::Bytes;
use forebay_core::{ByteRange, Error, Kind, ObjectKey, Result, Version};
use futures::TryStreamExt;
use futures::future::join_all;

use crate::{GetOptions, GetRange, Lake, ListOptions, PutMode, PutOptions, UpdateToken};

/// Number of creators of the same object at once; a store that checks and then writes lets several win.
const RACERS: usize = 5;
/// Creations are raced twice, because the first time connections may still be opening one after another.
const CREATE_ROUNDS: usize = 2;
/// `a-b` is less than `a/b` in byte order; a store that lists folder by folder has them the other way round.
const LISTED: [&str; 3] = ["list/a-b", "list/a/b", "list/b"];

/// Keys that a store may take for paths, and the key that it would then take them for.
const FOLDED: [(&str, &str); 3] = [
    ("fold-slash//a", "fold-slash/a"),
    ("fold-dot/./a", "fold-dot/a"),
    ("fold-back\\a", "fold-back/a"),
];

/// Findings of a self-test.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize)]
pub struct LakeReport {
    /// Objects can be written and removed.
    pub writable: bool,
    /// Of several that create an object at once exactly one wins, and the object has its bytes.
    pub conditional_create: bool,
    /// An update with an old token fails, one with the right token works, and of several at once exactly one
    /// wins.
    pub conditional_update: bool,
    /// A removal with an old token fails, and of several with the right one exactly one works. Few stores
    /// have it, so its absence is no finding.
    pub conditional_delete: bool,
    /// A read that names an old version fails instead of giving the new bytes.
    pub if_match_reads: bool,
    /// A read right after a write gives what was written.
    pub read_after_write: bool,
    /// A listing right after a write has what was written, in byte order.
    pub list_after_write: bool,
    /// `a//b`, `a\\b` and `a/./b` are other objects than `a/b`, or cannot be written. Else keys like these
    /// must not be used: see [`CleanKeys`](crate::CleanKeys).
    pub distinct_keys: bool,
    /// Promises that did not hold, one line each, for people.
    pub findings: Vec<String>,
}

impl LakeReport {
    /// Returns whether everything holds.
    #[must_use]
    pub fn is_perfect(&self) -> bool {
        self.findings.is_empty()
    }
}

/// Tries a lake out. `Err` only if the lake cannot be reached.
pub async fn probe(lake: &dyn Lake) -> Result<LakeReport> {
    let folder = format!(".forebay/selftest-{:016x}/", fastrand::u64(..));
    let probe = Probe { lake, folder };
    let report = probe.run().await;
    if report.as_ref().is_ok_and(|report| report.writable) {
        probe.clean_up().await;
    }
    report
}

struct Probe<'a> {
    lake: &'a dyn Lake,
    folder: String,
}

/// Outcomes that say something about the lake, as opposed to not reaching it.
fn is_about_the_lake(error: &Error) -> bool {
    !matches!(
        error.kind(),
        Kind::Unavailable | Kind::Timeout | Kind::Throttled | Kind::Busy
    )
}

/// Returns whether a conditional write was refused because of its condition.
fn is_refusal(error: &Error, lost: Kind) -> bool {
    error.kind() == lost || error.kind() == Kind::Conflict
}

/// Turns an outcome into a flag and a line; passes on only that the lake cannot be reached.
fn note(report: &mut LakeReport, what: &str, outcome: Result<Option<String>>) -> Result<bool> {
    match outcome {
        Ok(None) => Ok(true),
        Ok(Some(finding)) => {
            report.findings.push(format!("{what}: {finding}"));
            Ok(false)
        }
        Err(error) if is_about_the_lake(&error) => {
            report.findings.push(format!("{what}: {error}"));
            Ok(false)
        }
        Err(error) => Err(error),
    }
}

impl Probe<'_> {
    async fn run(&self) -> Result<LakeReport> {
        let mut report = LakeReport::default();
        let key = self.key("read")?;
        let (old, new) = match self.write_twice(&key).await {
            Ok(versions) => versions,
            Err(error) if is_about_the_lake(&error) => {
                let finding = format!("the lake cannot be written: {error}");
                report.findings.push(finding);
                return Ok(report);
            }
            Err(error) => return Err(error),
        };
        report.writable = true;
        let (reads, lists, pinned, creates, updates, deletes, keys) = futures::join!(
            self.read_after_write(&key, &new),
            self.list_after_write(),
            self.if_match_reads(&key, old, new.clone()),
            self.conditional_create(),
            self.conditional_update(),
            self.conditional_delete(),
            self.distinct_keys(),
        );
        report.read_after_write = note(&mut report, "reads", reads)?;
        report.list_after_write = note(&mut report, "listings", lists)?;
        report.if_match_reads = note(&mut report, "reads of a version", pinned)?;
        report.conditional_create = note(&mut report, "conditional create", creates)?;
        report.conditional_update = note(&mut report, "conditional update", updates)?;
        report.distinct_keys = note(&mut report, "keys", keys)?;
        report.conditional_delete = deletes.unwrap_or_else(|error| {
            tracing::debug!(%error, "the lake has no conditional delete");
            false
        });
        Ok(report)
    }

    fn key(&self, name: &str) -> Result<ObjectKey> {
        ObjectKey::new(&format!("{}{name}", self.folder))
    }

    async fn put(&self, key: &ObjectKey, body: &str, mode: PutMode) -> Result<(Version, UpdateToken)> {
        let options = PutOptions {
            mode,
            ..PutOptions::default()
        };
        let receipt = self
            .lake
            .put(key, Bytes::copy_from_slice(body.as_bytes()), options)
            .await?;
        Ok((receipt.version, receipt.token))
    }

    async fn read(&self, key: &ObjectKey) -> Result<Vec<u8>> {
        let answer = self.lake.get(key, GetOptions::default()).await?;
        let chunks: Vec<Bytes> = answer.body.try_collect().await?;
        Ok(chunks.concat())
    }

    async fn write_twice(&self, key: &ObjectKey) -> Result<(Version, Version)> {
        let (old, _) = self.put(key, "old bytes", PutMode::Overwrite).await?;
        let (new, _) = self.put(key, "new bytes!", PutMode::Overwrite).await?;
        Ok((old, new))
    }

    async fn read_after_write(&self, key: &ObjectKey, new: &Version) -> Result<Option<String>> {
        let is_new = self.read(key).await? == b"new bytes!" && self.lake.head(key).await?.version == *new;
        Ok((!is_new).then(|| "a read right after a write gave something older".to_owned()))
    }

    async fn list_after_write(&self) -> Result<Option<String>> {
        let mut expected = BTreeSet::new();
        for name in LISTED {
            let key = self.key(name)?;
            self.put(&key, name, PutMode::Overwrite).await?;
            expected.insert(key);
        }
        let prefix = format!("{}list/", self.folder);
        let page = self
            .lake
            .list(ListOptions {
                prefix,
                ..ListOptions::default()
            })
            .await?;
        let found: Vec<ObjectKey> = page.objects.into_iter().map(|object| object.key).collect();
        if found.is_sorted() && found.into_iter().collect::<BTreeSet<_>>() == expected {
            return Ok(None);
        }
        Ok(Some(
            "a listing right after three writes does not show exactly these, in byte order".to_owned(),
        ))
    }

    async fn if_match_reads(&self, key: &ObjectKey, old: Version, new: Version) -> Result<Option<String>> {
        let range = Some(GetRange::Bounded(ByteRange::new(1, 4)?));
        match self
            .lake
            .get(
                key,
                GetOptions {
                    range,
                    if_match: Some(old),
                },
            )
            .await
        {
            Err(error) if error.kind() == Kind::Changed => {}
            Err(error) => return Err(error),
            Ok(_) => {
                return Ok(Some(
                    "a read that names an old version gave the new bytes".to_owned(),
                ));
            }
        }
        let answer = self
            .lake
            .get(
                key,
                GetOptions {
                    range,
                    if_match: Some(new),
                },
            )
            .await?;
        let chunks: Vec<Bytes> = answer.body.try_collect().await?;
        Ok((chunks.concat() != b"ew ")
            .then(|| "a read that names the right version gave other bytes".to_owned()))
    }

    async fn conditional_create(&self) -> Result<Option<String>> {
        for round in 0..CREATE_ROUNDS {
            let key = self.key(&format!("create-{round}"))?;
            if let Some(finding) = self.race(&key, &PutMode::Create, Kind::AlreadyExists).await? {
                return Ok(Some(finding));
            }
        }
        Ok(None)
    }

    async fn conditional_update(&self) -> Result<Option<String>> {
        let key = self.key("update")?;
        let (_, stale) = self.put(&key, "first", PutMode::Overwrite).await?;
        let (_, token) = self.put(&key, "second", PutMode::Update(stale.clone())).await?;
        match self.put(&key, "third", PutMode::Update(stale)).await {
            Err(error) if matches!(error.kind(), Kind::PreconditionFailed | Kind::Conflict) => {}
            Err(error) => return Err(error),
            Ok(_) => return Ok(Some("an update with an old token replaced the object".to_owned())),
        }
        self.race(&key, &PutMode::Update(token), Kind::PreconditionFailed)
            .await
    }

    async fn conditional_delete(&self) -> Result<bool> {
        let key = self.key("delete")?;
        let (_, stale) = self.put(&key, "first", PutMode::Overwrite).await?;
        let (_, token) = self.put(&key, "second", PutMode::Overwrite).await?;
        match self.lake.delete_if(&key, &stale).await {
            Err(error) if is_refusal(&error, Kind::PreconditionFailed) => {}
            other => return other.map(|()| false),
        }
        let outcomes = join_all((0..RACERS).map(|_| self.lake.delete_if(&key, &token))).await;
        let is_refused =
            |error: &Error| error.kind() == Kind::NotFound || is_refusal(error, Kind::PreconditionFailed);
        let winners = outcomes.iter().filter(|outcome| outcome.is_ok()).count();
        let losers = outcomes
            .iter()
            .filter(|outcome| outcome.as_ref().is_err_and(is_refused));
        let is_gone = self
            .lake
            .head(&key)
            .await
            .is_err_and(|error| error.kind() == Kind::NotFound);
        Ok(winners == 1 && losers.count() == RACERS - 1 && is_gone)
    }

    /// Writes under keys that are no clean paths, and looks whether another object has come of it.
    async fn distinct_keys(&self) -> Result<Option<String>> {
        for (unclean, clean) in FOLDED {
            let (unclean_key, clean_key) = (self.key(unclean)?, self.key(clean)?);
            match self.put(&unclean_key, unclean, PutMode::Overwrite).await {
                Ok(_) => {}
                // A key that cannot be written does no harm.
                Err(error) if is_about_the_lake(&error) => continue,
                Err(error) => return Err(error),
            }
            let is_folded = match self.lake.head(&clean_key).await {
                Ok(_) => true,
                Err(error) if is_about_the_lake(&error) => false,
                Err(error) => return Err(error),
            };
            let is_kept = match self.read(&unclean_key).await {
                Ok(bytes) => bytes == unclean.as_bytes(),
                Err(error) if is_about_the_lake(&error) => false,
                Err(error) => return Err(error),
            };
            if is_folded || !is_kept {
                let finding = "the lake takes keys for paths, so `a//b`, `a\\b` and `a/./b` would be `a/b`; such keys are refused";
                return Ok(Some(finding.to_owned()));
            }
        }
        Ok(None)
    }

    /// Several write at once under the same condition: one must win and its bytes must stay.
    ///
    /// Some servers (Ceph) answer those that lose with a 500. That counts as lost, but proves nothing: if no
    /// loser was refused in so many words, one that comes late must be. If nobody won, the lake was not
    /// reached.
    async fn race(&self, key: &ObjectKey, mode: &PutMode, lost: Kind) -> Result<Option<String>> {
        // Bodies differ from each other and from earlier rounds, so that no two writes have the same version.
        let bodies: Vec<String> = (0..RACERS)
            .map(|racer| format!("racer {racer} {:016x}", fastrand::u64(..)))
            .collect();
        let outcomes = join_all(bodies.iter().map(|body| self.put(key, body, mode.clone()))).await;
        let mut winners = Vec::new();
        let mut was_refused = false;
        let mut unanswered = None;
        for (outcome, body) in outcomes.into_iter().zip(&bodies) {
            match outcome {
                Ok(_) => winners.push(body),
                Err(error) if is_refusal(&error, lost) => was_refused = true,
                Err(error) if is_about_the_lake(&error) => return Err(error),
                Err(error) => unanswered = Some(error),
            }
        }
        match (winners.as_slice(), unanswered) {
            ([], Some(error)) => Err(error),
            ([_], Some(_)) if !was_refused && !self.refuses_late(key, mode, lost).await? => {
                Ok(Some("a writer that came after the winner won too".to_owned()))
            }
            ([winner], _) if self.read(key).await? == winner.as_bytes() => Ok(None),
            ([_], _) => Ok(Some(
                "the object does not have the bytes of the writer that won".to_owned(),
            )),
            (winners, _) => Ok(Some(format!("{} of {RACERS} writers at once won", winners.len()))),
        }
    }

    /// Returns whether a writer is refused whose condition does not hold any more.
    async fn refuses_late(&self, key: &ObjectKey, mode: &PutMode, lost: Kind) -> Result<bool> {
        match self.put(key, "late", mode.clone()).await {
            Ok(_) => Ok(false),
            Err(error) if is_refusal(&error, lost) => Ok(true),
            Err(error) => Err(error),
        }
    }

    /// Best effort: a report is worth more than an empty folder.
    async fn clean_up(&self) {
        let created = (0..CREATE_ROUNDS).map(|round| format!("create-{round}"));
        let folded = FOLDED.into_iter().flat_map(|(unclean, clean)| [unclean, clean]);
        let fixed = ["read", "update", "delete"]
            .into_iter()
            .chain(LISTED)
            .chain(folded)
            .map(str::to_owned);
        let removals = fixed.chain(created).map(|name| async move {
            let removed = match self.key(&name) {
                Ok(key) => self.lake.delete(&key).await,
                Err(error) => Err(error),
            };
            if let Err(error) = removed {
                tracing::debug!(name, %error, "cannot remove an object of the self-test");
            }
        });
        join_all(removals).await;
    }
}
