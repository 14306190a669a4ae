//! Memory cost of reading all of a manifest. One test, because memory is that of the process.
#![allow(clippy::unwrap_used, reason = "a failure here is the failure of a test")]

use forebay_checkpoint::manifest::{Content, Tree};
use forebay_checkpoint::{Manifest, names};
use forebay_testkit::PeakMemory;

const BYTES: usize = 16 << 20;
/// Memory for each byte of a manifest, beside itself.
const TIMES_MAX: u64 = 2;

#[test]
fn a_manifest_with_a_large_tree_takes_a_small_multiple_of_its_size() {
    let content = Content {
        tree: Tree::parse(&format!("[{}0]", "0,".repeat(BYTES / 2))).unwrap(),
        ..Content::default()
    };
    let mut manifest = Manifest::new(1, 1, &names::attempt(1), 1, content);
    let bytes = manifest.encode().unwrap();
    let peak = PeakMemory::start();
    let read = Manifest::decode(&bytes).unwrap();
    let times = peak.bytes().div_ceil(bytes.len() as u64);
    println!("{times} bytes of memory for each byte");
    assert!(times <= TIMES_MAX, "{times} bytes of memory for each byte");
    assert!(read == manifest);
}
