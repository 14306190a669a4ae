//! The lake: can it be read and written, and does it keep the promises that conditional writes need?

use std::time::Duration;

use forebay_lake::{LakeReport, OpenOptions, selftest};
use forebay_node::options::{LakeOrigin, NodeOptions};

use super::{Finding, Grade};

/// The longest that the test of one lake may take.
const TEST_TIME_MAX: Duration = Duration::from_secs(60);

pub(super) async fn check(options: &NodeOptions) -> Vec<Finding> {
    let mut findings = Vec::new();
    let is_made_later = options.lake_origin == LakeOrigin::Default
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
    let why = match tested.await {
        Ok(Ok(report)) => return promises(url, &report),
        Ok(Err(error)) => format!("{error:?}"),
        Err(_) => "no answer".to_owned(),
    };
    let meaning = "Forebay cannot serve from this lake; check the URL, the network and the credentials.";
    vec![Finding::new(
        "lake",
        Grade::Problem,
        format!("{url}: {why}"),
        meaning,
    )]
}

fn promises(url: &str, report: &LakeReport) -> Vec<Finding> {
    let writable = (
        "lake is writable",
        report.writable,
        Grade::Note,
        "Reads are served and cached; every write is refused.",
    );
    let others = [
        (
            "read after write",
            report.read_after_write,
            Grade::Problem,
            "The lake may give old bytes; do not use it.",
        ),
        (
            "list after write",
            report.list_after_write,
            Grade::Problem,
            "Listings may miss objects; do not use it.",
        ),
        (
            "reads pin a version",
            report.if_match_reads,
            Grade::Note,
            "An object replaced while it is read is noticed late.",
        ),
        (
            "conditional create",
            report.conditional_create,
            Grade::Note,
            "PUT with If-None-Match is refused.",
        ),
        (
            "conditional update",
            report.conditional_update,
            Grade::Note,
            "PUT with If-Match is refused.",
        ),
        (
            "conditional delete",
            report.conditional_delete,
            Grade::Note,
            "DELETE with If-Match is refused.",
        ),
    ];
    // What cannot be written cannot be tested further.
    let tested = if report.writable { &others[..] } else { &[] };
    let finding = |(check, holds, grade, meaning): &(&'static str, bool, Grade, &str)| {
        let found = if *holds { "yes" } else { "no" };
        Finding::new(check, if *holds { Grade::Fine } else { *grade }, found, *meaning)
    };
    let lake = Finding::new("lake", Grade::Fine, url, "");
    let promises = std::iter::once(&writable).chain(tested).map(finding);
    std::iter::once(lake).chain(promises).collect()
}
