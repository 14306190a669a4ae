//! Several processes on one folder: conditional writes hold between them.
//!
//! The other processes are this test program again, told by the environment what to do.

use std::collections::HashMap;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use bytes::Bytes;
use forebay_core::Kind;
use forebay_lake::{FolderLake, Lake, PutMode, PutOptions, UpdateToken};
use futures::future::join_all;

use super::{fresh, key, read};

/// Folder of the started process; set only in it.
pub(super) const FOLDER_VARIABLE: &str = "FOREBAY_TEST_FOLDER";

const PROCESSES: usize = 4;
const ROUNDS: usize = 40;
const COUNTERS: usize = 4;
const COUNTS: usize = 10;

/// Starts this program again to run one ignored test on `folder`; what it prints can be read from the pipe.
pub(super) fn start(test: &str, folder: &Path) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--ignored", "--nocapture", "--test-threads=1"])
        .env(FOLDER_VARIABLE, folder)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

/// The lake of a started process, `None` in an ordinary test run.
pub(super) fn lake_of_process() -> Option<FolderLake> {
    let folder = std::env::var_os(FOLDER_VARIABLE)?;
    Some(FolderLake::open(folder).unwrap())
}

/// Runs the processes to their end and returns the lines that start with `mark`, without it.
fn run_all(test: &str, folder: &Path, mark: &str) -> Vec<String> {
    let children: Vec<Child> = (0..PROCESSES).map(|_| start(test, folder)).collect();
    let mut lines = Vec::new();
    for mut child in children {
        let output = BufReader::new(child.stdout.take().unwrap());
        let marked = output
            .lines()
            .map(Result::unwrap)
            .filter_map(|line| line.strip_prefix(mark).map(str::to_owned));
        lines.extend(marked);
        assert!(child.wait().unwrap().success());
    }
    lines
}

#[tokio::test]
#[ignore = "started by racing_processes_create_each_key_once"]
async fn process_that_creates() {
    let Some(lake) = lake_of_process() else { return };
    println!();
    for round in 0..ROUNDS {
        let options = PutOptions {
            mode: PutMode::Create,
            ..PutOptions::default()
        };
        let body = std::process::id().to_string();
        match lake
            .put(&key(&format!("race/{round}")), Bytes::from(body), options)
            .await
        {
            Ok(_) => println!("won {round} {}", std::process::id()),
            Err(error) => assert_eq!(error.kind(), Kind::AlreadyExists, "{error:?}"),
        }
    }
}

#[tokio::test]
async fn racing_processes_create_each_key_once() {
    let (root, lake) = fresh();
    let mut winners: HashMap<String, Vec<String>> = HashMap::new();
    for line in run_all("processes::process_that_creates", root.path(), "won ") {
        let (round, process) = line.split_once(' ').unwrap();
        winners
            .entry(round.to_owned())
            .or_default()
            .push(process.to_owned());
    }
    for round in 0..ROUNDS {
        let winners = &winners[&round.to_string()];
        assert_eq!(winners.len(), 1, "key {round} was created by {winners:?}");
        assert_eq!(read(&lake, &format!("race/{round}")).await.unwrap().1, winners[0]);
    }
}

#[tokio::test]
#[ignore = "started by racing_processes_lose_no_update"]
async fn process_that_counts() {
    let Some(lake) = lake_of_process() else { return };
    join_all((0..COUNTERS).map(|_| count(&lake))).await;
}

/// Adds one to the counter, [`COUNTS`] times.
async fn count(lake: &FolderLake) {
    let mut done = 0;
    while done < COUNTS {
        let (version, body) = read(lake, "counter").await.unwrap();
        let next = str::from_utf8(&body).unwrap().parse::<u64>().unwrap() + 1;
        let token = UpdateToken {
            etag: Some(version),
            version: None,
        };
        let options = PutOptions {
            mode: PutMode::Update(token),
            ..PutOptions::default()
        };
        match lake
            .put(&key("counter"), Bytes::from(next.to_string()), options)
            .await
        {
            Ok(_) => done += 1,
            Err(error) => assert_eq!(error.kind(), Kind::PreconditionFailed, "{error:?}"),
        }
    }
}

#[tokio::test]
async fn racing_processes_lose_no_update() {
    let (root, lake) = fresh();
    lake.put(&key("counter"), Bytes::from_static(b"0"), PutOptions::default())
        .await
        .unwrap();
    run_all("processes::process_that_counts", root.path(), "");
    assert_eq!(
        read(&lake, "counter").await.unwrap().1,
        (PROCESSES * COUNTERS * COUNTS).to_string()
    );
}
