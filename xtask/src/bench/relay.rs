//! A TCP relay between a node and its lake that counts what the lake sends: the lake's side of "lake bytes".

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use anyhow::Result;

/// Listens on a free port of loopback until the process ends.
pub(super) struct Relay {
    /// Its address.
    pub(super) address: SocketAddr,
    from_lake_bytes: Arc<AtomicU64>,
}

impl Relay {
    /// Starts relaying to `lake`.
    pub(super) fn start(lake: SocketAddr) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?;
        let from_lake_bytes = Arc::new(AtomicU64::new(0));
        let counter = Arc::clone(&from_lake_bytes);
        thread::spawn(move || {
            for node in listener.incoming().flatten() {
                if let Ok(lake) = TcpStream::connect(lake) {
                    serve(node, lake, &counter);
                }
            }
        });
        Ok(Self {
            address,
            from_lake_bytes,
        })
    }

    /// Bytes that came from the lake so far, HTTP heads included.
    pub(super) fn bytes_from_lake(&self) -> u64 {
        self.from_lake_bytes.load(Ordering::SeqCst)
    }
}

fn serve(node: TcpStream, lake: TcpStream, counter: &Arc<AtomicU64>) {
    let (Ok(node_too), Ok(lake_too)) = (node.try_clone(), lake.try_clone()) else {
        return;
    };
    let counter = Arc::clone(counter);
    thread::spawn(move || copy(node, lake, &AtomicU64::new(0)));
    thread::spawn(move || copy(lake_too, node_too, &counter));
}

fn copy(mut from: TcpStream, mut to: TcpStream, counter: &AtomicU64) {
    let mut buffer = vec![0; 256 * 1024];
    while let Ok(count) = from.read(&mut buffer) {
        counter.fetch_add(count as u64, Ordering::SeqCst);
        if count == 0 || to.write_all(&buffer[..count]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Write);
}
