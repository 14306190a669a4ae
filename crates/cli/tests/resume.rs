//! A large upload that was cut off goes on where it was.

mod support;

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use support::{Node, forebay, wait_for};

const MIB: u64 = 1 << 20;
const FILE_BYTES: u64 = 100 * MIB;

/// Passes bytes on to a node, counts those on their way up, and holds them back past a limit.
struct Relay {
    address: String,
    up_bytes: Arc<AtomicU64>,
    limit: Arc<AtomicU64>,
    connections: Arc<AtomicU64>,
    is_over: Arc<AtomicBool>,
}

impl Relay {
    fn start(node: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address").to_string();
        let relay = Self {
            address,
            up_bytes: Arc::default(),
            limit: Arc::new(AtomicU64::new(u64::MAX)),
            connections: Arc::default(),
            is_over: Arc::default(),
        };
        let node = node.trim_start_matches("http://").to_owned();
        let (up_bytes, limit, is_over) = (relay.up_bytes.clone(), relay.limit.clone(), relay.is_over.clone());
        let connections = relay.connections.clone();
        // The threads end with the connections, and those with the processes at both ends.
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let server = TcpStream::connect(&node).expect("the node listens");
                let (mut down_from, mut down_to) = (copy_of(&server), copy_of(&client));
                thread::spawn(move || std::io::copy(&mut down_from, &mut down_to));
                let (up_bytes, limit, is_over) = (up_bytes.clone(), limit.clone(), is_over.clone());
                let connections = connections.clone();
                connections.fetch_add(1, Ordering::Relaxed);
                thread::spawn(move || {
                    up(client, server, &up_bytes, &limit, &is_over);
                    connections.fetch_sub(1, Ordering::Relaxed);
                });
            }
        });
        relay
    }

    /// Starts a copy, kills it when so many bytes are on their way, and lets what it left behind drain away.
    fn cut_off(&self, node: &Node, copy: &[&str], after_bytes: u64) {
        self.limit.store(after_bytes, Ordering::Relaxed);
        let mut command = forebay(node.dir.path(), copy);
        let mut child = command
            .env("FOREBAY_DATA", "data")
            .spawn()
            .expect("the binary runs");
        wait_for("some parts to be sent", || {
            let ended = child.try_wait().expect("a child");
            assert!(ended.is_none(), "the copy ended: {ended:?}");
            (self.up_bytes.load(Ordering::Relaxed) > after_bytes).then_some(())
        });
        child.kill().expect("it runs");
        child.wait().expect("it was killed");
        self.limit.store(u64::MAX, Ordering::Relaxed);
        wait_for("the connections to end", || {
            (self.connections.load(Ordering::Relaxed) == 0).then_some(())
        });
        self.up_bytes.store(0, Ordering::Relaxed);
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
    }
}

fn copy_of(stream: &TcpStream) -> TcpStream {
    stream.try_clone().expect("a second handle")
}

fn up(mut from: TcpStream, mut to: TcpStream, bytes: &AtomicU64, limit: &AtomicU64, is_over: &AtomicBool) {
    let mut buffer = vec![0; 64 << 10];
    while let Ok(count @ 1..) = from.read(&mut buffer) {
        bytes.fetch_add(count as u64, Ordering::Relaxed);
        while bytes.load(Ordering::Relaxed) > limit.load(Ordering::Relaxed)
            && !is_over.load(Ordering::Relaxed)
        {
            thread::sleep(Duration::from_millis(5));
        }
        if to.write_all(&buffer[..count]).is_err() {
            return;
        }
    }
    let _ = to.shutdown(std::net::Shutdown::Write);
}

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
