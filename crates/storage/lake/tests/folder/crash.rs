//! A writer that is killed at any moment: what it acknowledged is there, what it did not is whole or absent.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::time::Duration;

use bytes::Bytes;
use forebay_lake::{Attributes, FolderLake, GetOptions, Lake, PutOptions};
use forebay_testkit::{patterned, read_all};
use futures::StreamExt;

use super::processes::{lake_of_process, start};
use super::{fresh, key, md5_hex, names};

/// The keys that the writer writes again and again.
const KEYS: u64 = 5;

/// Number of times that a writer is started and killed.
const ROUNDS: usize = 36;

/// Delay of the kill beyond that of the round before, so that the kills spread over all steps of a
/// write (a small one takes about a millisecond).
const KILL_STEP: Duration = Duration::from_micros(120);

/// Returns what the writer writes to a key in a generation; the generation is also in the attributes.
fn body_of(generation: u64) -> Bytes {
    let bytes_max = if generation % 4 == 1 { 3 << 20 } else { 4096 };
    patterned((generation as usize * 104_729) % bytes_max, generation)
}

fn attributes_of(generation: u64) -> Attributes {
    let user = [("generation".to_owned(), generation.to_string())].into();
    Attributes {
        content_type: Some("application/x-crash".to_owned()),
        user,
        ..Attributes::default()
    }
}

/// Every third write is a multipart upload.
async fn write(lake: &FolderLake, name: &str, generation: u64) {
    let (key, body, attributes) = (key(name), body_of(generation), attributes_of(generation));
    if !generation.is_multiple_of(3) {
        lake.put(
            &key,
            body,
            PutOptions {
                attributes,
                ..PutOptions::default()
            },
        )
        .await
        .unwrap();
        return;
    }
    let upload = lake.start_upload(&key, attributes).await.unwrap();
    let mut parts = Vec::new();
    let (head, tail) = body.split_at(body.len() / 2);
    for (number, piece) in [(1, head), (2, tail)] {
        let stream = futures::stream::iter([Ok(Bytes::copy_from_slice(piece))]).boxed();
        parts.push(
            lake.upload_part(&key, &upload, number, piece.len() as u64, stream)
                .await
                .unwrap(),
        );
    }
    lake.complete_upload(&key, &upload, &parts, PutOptions::default())
        .await
        .unwrap();
}

#[tokio::test]
#[ignore = "started by a_killed_writer_leaves_whole_objects"]
async fn process_that_writes_until_killed() {
    let Some(lake) = lake_of_process() else { return };
    let first = match lake.head(&key("next")).await {
        Ok(_) => {
            let body = lake.get(&key("next"), GetOptions::default()).await.unwrap().body;
            str::from_utf8(&read_all(body).await.unwrap())
                .unwrap()
                .parse()
                .unwrap()
        }
        Err(_) => 1,
    };
    println!();
    for generation in first.. {
        let name = format!("data/k{}", generation % KEYS);
        write(&lake, &name, generation).await;
        println!("wrote {name} {generation}");
        std::io::stdout().flush().unwrap();
    }
}

#[tokio::test]
async fn a_killed_writer_leaves_whole_objects() {
    let (root, lake) = fresh();
    let mut acknowledged: HashMap<String, u64> = HashMap::new();
    for round in 0..ROUNDS {
        let mut child = start("crash::process_that_writes_until_killed", root.path());
        let output = BufReader::new(child.stdout.take().unwrap());
        let mut left = 1 + round % 5;
        for line in output.lines() {
            let line = line.unwrap();
            if let Some((name, generation)) =
                line.strip_prefix("wrote ").and_then(|rest| rest.split_once(' '))
            {
                acknowledged.insert(name.to_owned(), generation.parse().unwrap());
                left = left.saturating_sub(1);
                if left == 0 {
                    // It goes on writing meanwhile; lines that it still prints count.
                    std::thread::sleep(KILL_STEP * (round % 12) as u32);
                    child.kill().unwrap();
                }
            }
        }
        child.wait().unwrap();
        let reached = check(&FolderLake::open(root.path()).unwrap(), &acknowledged).await;
        let next = Bytes::from((reached + 1).to_string());
        lake.put(&key("next"), next, PutOptions::default()).await.unwrap();
    }
}

/// Checks every object and returns the highest generation seen.
async fn check(lake: &FolderLake, acknowledged: &HashMap<String, u64>) -> u64 {
    let listed = names(lake).await;
    let mut reached = acknowledged.values().copied().max().unwrap_or(0);
    for name in acknowledged.keys() {
        assert!(listed.contains(name), "{name} was acknowledged and is not listed");
    }
    for name in listed.iter().filter(|name| name.starts_with("data/")) {
        let result = lake.get(&key(name), GetOptions::default()).await.unwrap();
        let (version, attributes) = (result.meta.version.clone(), result.meta.attributes.clone());
        let bytes = read_all(result.body).await.unwrap();
        let generation: u64 = attributes
            .user
            .get("generation")
            .expect("attributes are there")
            .parse()
            .unwrap();
        assert_eq!(attributes, attributes_of(generation), "{name}");
        assert!(
            bytes == body_of(generation),
            "{name} has the bytes of generation {generation}"
        );
        if generation.is_multiple_of(3) {
            assert!(version.as_str().ends_with("-2"), "{name} has the etag {version}");
        } else {
            assert_eq!(version.as_str(), md5_hex(&bytes), "{name}");
        }
        let least = acknowledged.get(name).copied().unwrap_or(0);
        assert!(
            generation >= least,
            "{name} is of generation {generation}, {least} was acknowledged"
        );
        reached = reached.max(generation);
    }
    reached
}
