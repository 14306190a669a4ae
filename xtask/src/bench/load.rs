//! The load generator: one thread for each connection, HTTP/1.1 keep-alive, reads of 256 KiB, bytes
//! discarded.
//!
//! The same for every server, so that what differs is the server. Requests are bytes made (and signed) before
//! the clock starts; every answer must be 200 or 206 and as long as its Content-Length says.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

/// Bytes asked of the socket at a time.
const READ_BYTES: usize = 256 * 1024;
const HEAD_BYTES_MAX: usize = 64 * 1024;

/// Requests to send, and the time for them.
pub(super) struct Load<'a> {
    pub(super) address: SocketAddr,
    /// Each connection walks through these, starting at its own place.
    pub(super) requests: &'a [Vec<u8>],
    pub(super) connections: usize,
    pub(super) until: Until,
}

/// Condition to stop.
#[derive(Clone, Copy)]
pub(super) enum Until {
    /// After this time.
    Elapsed(Duration),
    /// Stops when each connection has sent its share of all requests once.
    Once,
    /// Stops when every connection has sent every request.
    EachSendsAll,
}

/// Responses of a run.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Outcome {
    pub(super) requests: u64,
    pub(super) bytes: u64,
    pub(super) seconds: f64,
}

impl Load<'_> {
    /// Runs it; the first error of any connection is the result.
    pub(super) fn run(&self) -> Result<Outcome> {
        let stop = &AtomicBool::new(false);
        let start = Instant::now();
        let parts = thread::scope(|scope| {
            let threads: Vec<_> = (0..self.connections)
                .map(|number| scope.spawn(move || self.connection(number, stop)))
                .collect();
            if let Until::Elapsed(time) = self.until {
                thread::sleep(time);
                stop.store(true, Ordering::Relaxed);
            }
            threads.into_iter().map(join).collect::<Result<Vec<Outcome>>>()
        })?;
        let mut whole = Outcome {
            seconds: start.elapsed().as_secs_f64(),
            ..Outcome::default()
        };
        for part in parts {
            whole.requests += part.requests;
            whole.bytes += part.bytes;
        }
        Ok(whole)
    }

    fn connection(&self, number: usize, stop: &AtomicBool) -> Result<Outcome> {
        let mut stream = connect(self.address)?;
        let mut buffer = vec![0; READ_BYTES];
        let mut outcome = Outcome::default();
        let (first, step) = match self.until {
            Until::Once => (number, self.connections),
            Until::Elapsed(_) => (number * self.requests.len() / self.connections, 1),
            Until::EachSendsAll => (0, 1),
        };
        let endless = matches!(self.until, Until::Elapsed(_));
        let mut next = first;
        while !stop.load(Ordering::Relaxed) && (endless || next < self.requests.len()) {
            stream
                .write_all(&self.requests[next % self.requests.len()])
                .context("cannot send")?;
            outcome.bytes += answer(&mut stream, &mut buffer)?;
            outcome.requests += 1;
            next += step;
        }
        Ok(outcome)
    }
}

fn join(handle: thread::ScopedJoinHandle<'_, Result<Outcome>>) -> Result<Outcome> {
    handle
        .join()
        .unwrap_or_else(|_| bail!("a connection's thread panicked"))
}

/// A connection without delays for small writes.
pub(super) fn connect(address: SocketAddr) -> Result<TcpStream> {
    let stream = TcpStream::connect(address).with_context(|| format!("cannot connect to {address}"))?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(Duration::from_secs(60)))?;
    Ok(stream)
}

/// Reads one answer to its end and returns the length of its body.
pub(super) fn answer(stream: &mut TcpStream, buffer: &mut [u8]) -> Result<u64> {
    let mut held = 0;
    let body_at = loop {
        let count = read(stream, &mut buffer[held..])?;
        held += count;
        if let Some(at) = find(&buffer[..held], b"\r\n\r\n") {
            break at + 4;
        }
        if count == 0 || held > HEAD_BYTES_MAX {
            bail!("the server closed the connection or sent no head");
        }
    };
    let head = String::from_utf8_lossy(&buffer[..body_at]).into_owned();
    let status = head.split(' ').nth(1).unwrap_or_default();
    let length = content_length(&head).with_context(|| format!("an answer without a length:\n{head}"))?;
    if !matches!(status, "200" | "206") {
        let body = String::from_utf8_lossy(&buffer[body_at..held]).into_owned();
        bail!("the server answered {status}:\n{head}{body}");
    }
    let mut left = length.saturating_sub((held - body_at) as u64);
    while left > 0 {
        let end = buffer.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        match read(stream, &mut buffer[..end])? {
            0 => bail!("the server closed the connection {left} bytes before the end"),
            count => left -= count as u64,
        }
    }
    Ok(length)
}

fn read(stream: &mut TcpStream, buffer: &mut [u8]) -> Result<usize> {
    loop {
        match stream.read(buffer) {
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            other => return other.context("cannot read"),
        }
    }
}

fn find(text: &[u8], wanted: &[u8]) -> Option<usize> {
    text.windows(wanted.len()).position(|window| window == wanted)
}

fn content_length(head: &str) -> Option<u64> {
    let lines = head.lines().filter_map(|line| line.split_once(':'));
    let mut found = lines.filter(|(name, _)| name.eq_ignore_ascii_case("content-length"));
    found.next()?.1.trim().parse().ok()
}
