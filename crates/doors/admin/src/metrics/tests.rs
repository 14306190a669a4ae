use std::collections::BTreeSet;

use forebay_reservoir::ReservoirStats;

use super::*;

fn snapshot() -> Snapshot {
    let lake = LakeSnapshot {
        url: "memory://".into(),
        up: true,
        requests: vec![("get", "ok", 3)],
        read_bytes: 4096,
        refused: 5,
        written_bytes: 7,
        ..LakeSnapshot::default()
    };
    let reservoir = ReservoirStats {
        served_ram_bytes: 11,
        served_lake_bytes: 12,
        ..ReservoirStats::default()
    };
    Snapshot {
        reservoir,
        lakes: vec![lake],
        ready: true,
        ..Snapshot::default()
    }
}

fn scrape() -> String {
    let metrics = Metrics::new();
    metrics.record(RequestEnd {
        operation: "GetObject",
        status: 200,
        received_bytes: 1,
        sent_bytes: 2,
        elapsed: Duration::from_millis(3),
    });
    metrics.encode(snapshot())
}

#[test]
fn the_promised_names_are_on_the_wire() {
    let text = scrape();
    for line in [
        "forebay_lake_read_bytes_total{lake=\"memory://\"} 4096",
        "forebay_lake_requests_total{lake=\"memory://\",operation=\"get\",outcome=\"ok\"} 3",
        "forebay_lake_refused_total{lake=\"memory://\"} 5",
        "forebay_served_bytes_total{source=\"ram\"} 11",
        "forebay_served_bytes_total{source=\"nvme\"} 0",
        "forebay_served_bytes_total{source=\"peer\"} 0",
        "forebay_served_bytes_total{source=\"lake\"} 12",
        "forebay_s3_requests_total{operation=\"GetObject\",status=\"200\"} 1",
        "forebay_s3_sent_bytes_total 2",
        "forebay_ready 1",
    ] {
        assert!(
            text.lines().any(|found| found == line),
            "{line} is not in\n{text}"
        );
    }
}

/// Compares what is scraped with what the reference page lists.
#[test]
fn every_scraped_metric_is_defined_and_every_defined_one_is_scraped() {
    let scraped: BTreeSet<_> = scrape()
        .lines()
        .filter_map(|line| {
            line.strip_prefix("# TYPE ")?
                .split_whitespace()
                .next()
                .map(str::to_owned)
        })
        .collect();
    let defined: BTreeSet<_> = all()
        .map(|metric| metric.wire_name().trim_end_matches("_total").to_owned())
        .collect();
    assert_eq!(scraped, defined);
}

#[test]
fn every_metric_has_help_that_ends_like_a_sentence() {
    for metric in all() {
        assert!(metric.help.ends_with('.'), "{}", metric.name);
    }
}
