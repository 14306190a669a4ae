//! The lake: can it be read and written, and does it keep the promises that conditional writes need?

use std::time::Duration;

use forebay_lake::{OpenOptions, selftest};
use forebay_node::options::{LakePlace, NodeOptions};

use super::{Finding, Grade};

/// The longest that the test of one lake may take.
const TEST_TIME_MAX: Duration = Duration::from_secs(60);

pub(super) async fn check(options: &NodeOptions) -> Vec<Finding> {
    let mut findings = Vec::new();
    let is_made_later = options.lake_place == LakePlace::Default
        && options.lake.as_folder().is_some_and(|folder| !folder.exists());
    if is_made_later {
        let found = format!("{} is made at the first start", options.lake);
        findings.push(Finding::new("lake", Grade::Fine, found, ""));
    } else {
        findings.extend(check_one(options.lake.shown()).await);
    }
    for bucket in &options.buckets {
        if let Some(lake) = &bucket.lake {
            findings.extend(check_one(lake.shown()).await);
        }
    }
    findings
}

async fn check_one(url: &str) -> Vec<Finding> {
    let tested = tokio::time::timeout(TEST_TIME_MAX, async {
        let lake = forebay_lake::open(url, &OpenOptions::default()).await?;
        selftest::probe(&*lake).await
    });
    let report = match tested.await {
        Ok(Ok(report)) => report,
        Ok(Err(error)) => {
            let meaning =
                "Forebay cannot serve from this lake; check the URL, the network and the credentials.";
            return vec![Finding::new(
                "lake",
                Grade::Problem,
                format!("{url}: {error:?}"),
                meaning,
            )];
        }
        Err(_) => {
            let meaning = "Forebay cannot serve from this lake; check the URL and the network.";
            return vec![Finding::new(
                "lake",
                Grade::Problem,
                format!("{url}: no answer"),
                meaning,
            )];
        }
    };
    let promise = |check, holds: bool, grade, meaning: &str| {
        let found = format!("{url}: {}", if holds { "yes" } else { "no" });
        Finding::new(check, if holds { Grade::Fine } else { grade }, found, meaning)
    };
    let mut findings = vec![promise(
        "lake is writable",
        report.writable,
        Grade::Note,
        "Reads are served and cached; every write is refused.",
    )];
    if report.writable {
        findings.extend([
            promise(
                "read after write",
                report.read_after_write,
                Grade::Problem,
                "The lake may give old bytes; do not use it.",
            ),
            promise(
                "list after write",
                report.list_after_write,
                Grade::Problem,
                "Listings may miss objects; do not use it.",
            ),
            promise(
                "reads pin a version",
                report.if_match_reads,
                Grade::Note,
                "An object that is replaced while it is read is noticed late.",
            ),
            promise(
                "conditional create",
                report.conditional_create,
                Grade::Note,
                "PUT with If-None-Match is refused; checkpoints will need another lake.",
            ),
            promise(
                "conditional update",
                report.conditional_update,
                Grade::Note,
                "PUT with If-Match is refused; checkpoints will need another lake.",
            ),
        ]);
    }
    findings
}
