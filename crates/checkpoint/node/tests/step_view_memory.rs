//! Memory cost of a hostile manifest for a node that is asked for its view. One test, because memory is that of the
//! process.
#![allow(clippy::unwrap_used, reason = "a failure here is the failure of a test")]

mod fixture;

use std::fmt::Write as _;
use std::sync::Arc;

use bytes::Bytes;
use fixture::{Fixture, bucket};
use forebay_checkpoint::manifest::Content;
use forebay_checkpoint::{Manifest, names};
use forebay_core::{Kind, Result};
use forebay_lake::{ListOptions, ListPage, MemoryLake};
use forebay_testkit::PeakMemory;

const BYTES: usize = 16 << 20;
/// Memory for each byte of a manifest, itself and the copy that is read included.
const TIMES_MAX: u64 = 12;

/// A manifest of about [`BYTES`] with `field` full of something, its digest right.
fn manifest(step: u64, field: &str, begin: &str, one: impl Fn(usize) -> String, end: &str) -> Vec<u8> {
    let mut empty = Manifest::new(step, 1, &names::attempt(1), 1, Content::default());
    let empty = String::from_utf8(empty.encode().unwrap()).unwrap();
    let place = empty.find(&format!("\"{field}\":")).unwrap() + field.len() + 3;
    let value_bytes = empty[place..].find(",\n").unwrap();
    let mut full = String::with_capacity(BYTES + 4096);
    write!(full, "{}{begin}", &empty[..place]).unwrap();
    for number in 0.. {
        let item = one(number);
        if full.len() + item.len() > BYTES {
            full.push_str(&item);
            break;
        }
        write!(full, "{item},").unwrap();
    }
    write!(full, "{end}{}", &empty[place + value_bytes..]).unwrap();
    let mut full = full.into_bytes();
    let digits = full.len() - 68..full.len() - 4;
    full[digits.clone()].fill(b'0');
    let digest = blake3::hash(&full).to_hex();
    full[digits].copy_from_slice(digest.as_bytes());
    full
}

async fn view(fixture: &Fixture, step: u64) -> Result<ListPage> {
    let options = ListOptions {
        prefix: format!("run/steps/{step}/whole/"),
        ..ListOptions::default()
    };
    fixture.engine.list(&bucket(), options).await
}

/// Asks for the view of a step with this manifest; gives what came and memory for each byte.
async fn cost(fixture: &Fixture, step: u64, manifest: Vec<u8>) -> (Result<ListPage>, u64) {
    let bytes = manifest.len() as u64;
    let path = format!("run/{}", names::manifest(step, 1));
    fixture.put_in_lake(&path, Bytes::from(manifest)).await;
    let peak = PeakMemory::start();
    let shown = view(fixture, step).await;
    (shown, peak.bytes().div_ceil(bytes))
}

#[tokio::test]
async fn a_hostile_manifest_takes_a_small_multiple_of_its_size() {
    let fixture = Fixture::over(Arc::new(MemoryLake::new())).await;
    let zero = |_: usize| "0".to_owned();
    let part = |_: usize| {
        r#"{"offset":[],"shape":[],"file":0,"range":[0,0],"blake3":"","table":0,"first_block":0}"#.to_owned()
    };
    let tensor = |number: usize| format!(r#""{number}":{{"dtype":"U8","shape":[0],"parts":[]}}"#);
    let file = |_: usize| r#"{"path":"","bytes":0,"data_start":0,"header_blake3":""}"#.to_owned();
    let wordy_tensor = |number: usize| format!(r#""{number:0>64}":{{"dtype":"U8","shape":[0],"parts":[]}}"#);
    let parts = r#"{"w":{"dtype":"U8","shape":[],"parts":["#;
    let shape = r#"{"w":{"dtype":"U8","parts":[],"shape":["#;
    let documents = [
        ("tree", manifest(1, "tree", "[", zero, "]"), None),
        ("metadata", manifest(2, "metadata", "{\"a\":[", zero, "]}"), None),
        (
            "objects",
            manifest(3, "objects", "{\"a\":[{\"ranks\":[", zero, "]}]}"),
            None,
        ),
        ("alarms", manifest(4, "alarms", "[", zero, "]"), None),
        (
            "shape",
            manifest(5, "tensors", shape, zero, "]}}"),
            Some(Kind::Corrupt),
        ),
        (
            "parts",
            manifest(6, "tensors", parts, part, "]}}"),
            Some(Kind::Corrupt),
        ),
        ("files", manifest(7, "files", "[", file, "]"), Some(Kind::Corrupt)),
        (
            "tensors",
            manifest(8, "tensors", "{", tensor, "}"),
            Some(Kind::Unsupported),
        ),
        ("long names", manifest(9, "tensors", "{", wordy_tensor, "}"), None),
    ];
    for (step, (what, document, refused)) in (1..).zip(documents) {
        let (shown, times) = cost(&fixture, step, document).await;
        println!("{what}: {times} bytes of memory for each byte");
        assert_eq!(
            shown.as_ref().err().map(forebay_core::Error::kind),
            refused,
            "{what}: {shown:?}"
        );
        assert!(
            times <= TIMES_MAX,
            "{what}: {times} bytes of memory for each byte"
        );
    }
}
