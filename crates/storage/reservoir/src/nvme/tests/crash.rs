//! A real kill -9: this test program starts itself as a child that writes until it is killed.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use super::*;

const DIR_VARIABLE: &str = "FOREBAY_TEST_NVME_CRASH_DIR";

fn nth(n: u64) -> Arc<ObjectVersion> {
    object(&format!("o{n}"), 1 + n * 7919 % (MIB + 5000))
}

#[tokio::test]
#[ignore = "the child of kill_9_under_eviction_loses_nothing_that_was_acknowledged_lately"]
async fn child_writes_until_it_is_killed() {
    let Some(dir) = std::env::var_os(DIR_VARIABLE) else {
        return;
    };
    let store = open(Path::new(&dir), 8 * MIB).await;
    for n in 0..1_000_000 {
        put(&store, &nth(n)).await;
        settle(&store).await;
        println!("wrote {n}");
    }
}

#[tokio::test]
async fn kill_9_under_eviction_loses_nothing_that_was_acknowledged_lately() {
    let dir = tempfile::tempdir().unwrap();
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "nvme::tests::crash::child_writes_until_it_is_killed",
            "--ignored",
            "--nocapture",
        ])
        .env(DIR_VARIABLE, dir.path())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let wrote = lines
        .map_while(Result::ok)
        .filter_map(|line| line.strip_prefix("wrote ")?.parse::<u64>().ok());
    let last = wrote.take(60).last();
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(last, Some(59), "the child ended early");

    let store = open(dir.path(), 8 * MIB).await;
    assert!(
        has(&store, &nth(59)).await,
        "acknowledged and journaled just before"
    );
    let mut hits = 0;
    for n in 0..200 {
        hits += u32::from(has(&store, &nth(n)).await);
    }
    let stats = store.stats();
    assert!(hits >= 8, "{hits}");
    assert_eq!(
        (stats.corrupt_blocks, stats.read_errors, stats.set_aside_files),
        (0, 0, 0)
    );
}
