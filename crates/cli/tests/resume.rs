//! A large upload that was cut off goes on where it was.

mod support;

use std::sync::atomic::Ordering;

use support::Node;
use support::relay::Relay;

const MIB: u64 = 1 << 20;
const FILE_BYTES: u64 = 100 * MIB;

#[test]
fn an_upload_cut_off_by_kill_9_sends_only_what_is_missing() {
    let node = Node::start(&[]);
    node.ok(&["bucket", "create", "demo"]);
    let file: Vec<u8> = (0..FILE_BYTES / 8)
        .flat_map(|i| i.wrapping_mul(0x9E37_79B9_7F4A_7C15).to_le_bytes())
        .collect();
    std::fs::write(node.path("big"), &file).unwrap();
    let relay = Relay::start(&node.s3);
    let endpoint = format!("http://{}", relay.address);
    let copy = [
        "cp",
        "--endpoint",
        &endpoint,
        "--parallel",
        "1",
        "big",
        "forebay://demo/big",
    ];

    // Two parts of 16 MiB and a half are on their way when the process is killed.
    relay.cut_off(&node, &copy, 40 * MIB);
    node.ok(&copy);
    let again = relay.up_bytes.load(Ordering::Relaxed);
    assert!(again < FILE_BYTES - 31 * MIB, "{again} bytes were sent again");
    assert!(
        again > FILE_BYTES - 48 * MIB,
        "{again} bytes cannot be all that was missing"
    );
    node.ok(&["cp", "forebay://demo/big", "back"]);
    assert!(
        std::fs::read(node.path("back")).unwrap() == file,
        "the bytes are the file's"
    );
    // Nothing is left to go on with: a changed file is sent whole.
    relay.up_bytes.store(0, Ordering::Relaxed);
    node.ok(&[
        "cp",
        "--force",
        "--endpoint",
        &endpoint,
        "big",
        "forebay://demo/big",
    ]);
    assert!(relay.up_bytes.load(Ordering::Relaxed) >= FILE_BYTES);
}

#[test]
fn parts_of_a_file_that_was_changed_are_not_used() {
    let node = Node::start(&[]);
    node.ok(&["bucket", "create", "demo"]);
    let mut file = vec![7u8; FILE_BYTES as usize];
    std::fs::write(node.path("big"), &file).unwrap();
    let relay = Relay::start(&node.s3);
    let endpoint = format!("http://{}", relay.address);
    let copy = [
        "cp",
        "--endpoint",
        &endpoint,
        "--parallel",
        "1",
        "big",
        "forebay://demo/big",
    ];
    relay.cut_off(&node, &copy, 40 * MIB);

    // One byte in the first part; the second is still right.
    file[5] = 8;
    std::fs::write(node.path("big"), &file).unwrap();
    node.ok(&copy);
    let again = relay.up_bytes.load(Ordering::Relaxed);
    assert!(
        (FILE_BYTES - 17 * MIB..FILE_BYTES - 15 * MIB).contains(&again),
        "{again} bytes"
    );
    node.ok(&["cp", "forebay://demo/big", "back"]);
    assert!(
        std::fs::read(node.path("back")).unwrap() == file,
        "the bytes are the file's"
    );
}
