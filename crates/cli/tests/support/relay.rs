//! A relay between a command and its node, for commands that are cut off in the middle: past a limit it holds
//! what is sent, so however fast the command is, it has not finished when it is killed.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use super::{Node, forebay, wait_for};

/// Passes bytes on to a node, counts those on their way up, and holds them back past a limit.
pub(crate) struct Relay {
    pub(crate) address: String,
    pub(crate) up_bytes: Arc<AtomicU64>,
    limit: Arc<AtomicU64>,
    connections: Arc<AtomicU64>,
    is_over: Arc<AtomicBool>,
}

impl Relay {
    /// Between clients and the node at this URL.
    pub(crate) fn start(node: &str) -> Self {
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
    pub(crate) fn cut_off(&self, node: &Node, copy: &[&str], after_bytes: u64) {
        let mut command = forebay(node.dir.path(), copy);
        self.cut_off_command(node, command.env("FOREBAY_DATA", "data"), after_bytes);
    }

    /// The same with any command that is told the address of the relay.
    pub(crate) fn cut_off_command(&self, node: &Node, command: &mut Command, after_bytes: u64) {
        self.limit.store(after_bytes, Ordering::Relaxed);
        let mut child = command.spawn().expect("the binary runs");
        wait_for("so many bytes to be sent", || {
            let ended = child.try_wait().expect("a child");
            assert!(ended.is_none(), "it ended: {ended:?}");
            (self.up_bytes.load(Ordering::Relaxed) > after_bytes).then_some(())
        });
        child.kill().expect("it runs");
        child.wait().expect("it was killed");
        self.limit.store(u64::MAX, Ordering::Relaxed);
        wait_for("the connections to end", || {
            (self.connections.load(Ordering::Relaxed) == 0).then_some(())
        });
        wait_for("its last requests to end", || {
            let status: serde_json::Value =
                serde_json::from_str(&node.ok(&["--json", "status"])).expect("JSON");
            (status["in_flight"]["s3_requests"] == 0).then_some(())
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
