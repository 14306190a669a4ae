//! A blocking HTTP/1.1 connection, as far as a node's S3 endpoint needs it: one request, one answer, bodies
//! by length or in chunks.
//!
//! Written here and not taken from a library because a client must be interruptible while it waits, must not
//! start threads (a process may fork), and must read bodies straight into the caller's memory. `httparse`
//! does the parsing. Bounded: headers 64 KiB, a chunk's line 256 bytes. The timeout is for silence, not for
//! the whole transfer: a large object may take as long as bytes keep coming.

use std::io::{ErrorKind, Read, Write};

use forebay_core::{Error, Kind, Result};

use super::stream::{NodeStream, TlsTarget, broke, is_wait};
use crate::options::ClientOptions;
use crate::wait::Wait;

const HEAD_BYTES_MAX: usize = 64 << 10;
const CHUNK_LINE_BYTES_MAX: usize = 256;
const BUFFER_BYTES: usize = 256 << 10;

/// A connection.
pub(super) struct HttpConnection {
    stream: NodeStream,
    buffer: Vec<u8>,
    start: usize,
    end: usize,
    body: Body,
    /// The other side keeps the connection open after this answer.
    keeps: bool,
    /// Some of an answer has come.
    pub(super) answered: bool,
}

/// Rest of a body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Body {
    Over,
    Length(u64),
    /// Bytes left of the current chunk; `None` before the first one.
    Chunk(Option<u64>),
    UntilClose,
}

/// The head of an answer.
#[derive(Debug)]
pub(super) struct Head {
    pub(super) status: u16,
    headers: Vec<(String, String)>,
}

impl Head {
    /// A header by its name in lower case.
    pub(super) fn header(&self, name: &str) -> Option<&str> {
        self.headers()
            .find(|(found, _)| *found == name)
            .map(|(_, value)| value)
    }

    /// All headers, names in lower case.
    pub(super) fn headers(&self) -> impl Iterator<Item = (&str, &str)> {
        self.headers
            .iter()
            .map(|(name, value)| (name.as_str(), value.as_str()))
    }
}

impl HttpConnection {
    /// Connects to `host:port`, with TLS if there is a target for it.
    pub(super) fn open(host: &str, tls: Option<&TlsTarget>, options: &ClientOptions) -> Result<Self> {
        Ok(Self {
            stream: NodeStream::open(host, tls, options)?,
            buffer: vec![0; BUFFER_BYTES],
            start: 0,
            end: 0,
            body: Body::Over,
            keeps: true,
            answered: false,
        })
    }

    /// Returns whether another request may be sent on it.
    pub(super) fn is_reusable(&self) -> bool {
        self.keeps && self.body == Body::Over && self.start == self.end && !self.stream.is_hung_up()
    }

    /// Sends a request: its head with the empty line, then its body.
    pub(super) fn send(&mut self, head: &[u8], body: &[u8], options: &ClientOptions) -> Result<()> {
        (self.answered, self.keeps) = (false, false);
        for mut left in [head, body] {
            let mut wait = Wait::start(options);
            while !left.is_empty() {
                match self.stream.write(left) {
                    Ok(0) => return Err(broke(ErrorKind::WriteZero.into())),
                    Ok(sent) => {
                        left = &left[sent..];
                        wait = Wait::start(options);
                    }
                    Err(why) if is_wait(&why) => wait.check()?,
                    // A node that refuses a request early has said why; the answer is read all the same.
                    Err(_) if std::ptr::eq(left, body) || left.len() < body.len() => return Ok(()),
                    Err(why) => return Err(broke(why)),
                }
            }
        }
        self.flush(options)
    }

    /// Sends what TLS still holds back.
    fn flush(&mut self, options: &ClientOptions) -> Result<()> {
        let wait = Wait::start(options);
        loop {
            match self.stream.flush() {
                Err(why) if is_wait(&why) => wait.check()?,
                // As in `send`: the answer may be there although the rest could not be sent.
                Ok(()) | Err(_) => return Ok(()),
            }
        }
    }

    /// The head of the answer. `without_body` for answers to `HEAD`.
    pub(super) fn head(&mut self, without_body: bool, options: &ClientOptions) -> Result<Head> {
        loop {
            if let Some((head, used, keeps)) = parse_head(&self.buffer[self.start..self.end])? {
                self.start += used;
                if head.status == 100 {
                    continue;
                }
                self.keeps = keeps;
                self.body = if without_body || matches!(head.status, 204 | 304) {
                    Body::Over
                } else {
                    body_of(&head)?
                };
                return Ok(head);
            }
            if self.end - self.start >= HEAD_BYTES_MAX {
                return Err(garbled("the head of the answer is too long"));
            }
            if self.fill(options)? == 0 {
                return Err(broke(ErrorKind::UnexpectedEof.into()));
            }
            self.answered = true;
        }
    }

    /// The next piece of the body, passed on where it lies; `false` at its end.
    pub(super) fn piece(
        &mut self,
        options: &ClientOptions,
        take: &mut dyn FnMut(&[u8]) -> Result<()>,
    ) -> Result<bool> {
        let left = match self.body {
            Body::Over => return Ok(false),
            Body::Length(left) => left,
            Body::UntilClose => u64::MAX,
            Body::Chunk(Some(left)) if left > 0 => left,
            Body::Chunk(previous) => match self.next_chunk(previous.is_some(), options)? {
                0 => return Ok(false),
                left => left,
            },
        };
        if self.start == self.end && self.fill(options)? == 0 {
            if self.body == Body::UntilClose {
                self.body = Body::Over;
                return Ok(false);
            }
            return Err(broke(ErrorKind::UnexpectedEof.into()));
        }
        let bytes = (self.end - self.start).min(usize::try_from(left).unwrap_or(usize::MAX));
        take(&self.buffer[self.start..self.start + bytes])?;
        self.start += bytes;
        let left = left - bytes as u64;
        self.body = match self.body {
            Body::Length(_) if left == 0 => Body::Over,
            Body::Length(_) => Body::Length(left),
            Body::Chunk(_) => Body::Chunk(Some(left)),
            other => other,
        };
        Ok(true)
    }

    /// The whole body, which must not be longer than `bytes_max`.
    pub(super) fn whole_body(&mut self, bytes_max: usize, options: &ClientOptions) -> Result<Vec<u8>> {
        let mut body = Vec::new();
        let mut take = |piece: &[u8]| {
            if body.len() + piece.len() > bytes_max {
                return Err(garbled("the answer is longer than expected"));
            }
            body.extend_from_slice(piece);
            Ok(())
        };
        while self.piece(options, &mut take)? {}
        Ok(body)
    }

    /// The size of the next chunk; 0 after the last, when the trailer was read too.
    fn next_chunk(&mut self, behind_another: bool, options: &ClientOptions) -> Result<u64> {
        if behind_another && !self.line(options)?.is_empty() {
            return Err(garbled("a chunk of the answer does not end where it should"));
        }
        let mut line = self.line(options)?;
        line.extend_from_slice(b"\r\n");
        let Ok(httparse::Status::Complete((_, bytes))) = httparse::parse_chunk_size(&line) else {
            return Err(garbled("a chunk of the answer has no size"));
        };
        if bytes == 0 {
            while !self.line(options)?.is_empty() {}
            self.body = Body::Over;
        }
        Ok(bytes)
    }

    fn line(&mut self, options: &ClientOptions) -> Result<Vec<u8>> {
        let mut line = Vec::new();
        loop {
            while self.start < self.end {
                let byte = self.buffer[self.start];
                self.start += 1;
                match byte {
                    b'\n' => return Ok(line),
                    b'\r' => {}
                    _ if line.len() >= CHUNK_LINE_BYTES_MAX => {
                        return Err(garbled("a line of the answer is too long"));
                    }
                    _ => line.push(byte),
                }
            }
            if self.fill(options)? == 0 {
                return Err(broke(ErrorKind::UnexpectedEof.into()));
            }
        }
    }

    /// Reads some more into the buffer.
    fn fill(&mut self, options: &ClientOptions) -> Result<usize> {
        self.buffer.copy_within(self.start..self.end, 0);
        (self.start, self.end) = (0, self.end - self.start);
        let wait = Wait::start(options);
        loop {
            match self.stream.read(&mut self.buffer[self.end..]) {
                Ok(bytes) => {
                    self.end += bytes;
                    return Ok(bytes);
                }
                Err(why) if is_wait(&why) => wait.check()?,
                Err(why) => return Err(broke(why)),
            }
        }
    }
}

fn parse_head(bytes: &[u8]) -> Result<Option<(Head, usize, bool)>> {
    let mut headers = [httparse::EMPTY_HEADER; 128];
    let mut parsed = httparse::Response::new(&mut headers);
    let used = match parsed.parse(bytes) {
        Ok(httparse::Status::Complete(used)) => used,
        Ok(httparse::Status::Partial) => return Ok(None),
        Err(why) => return Err(garbled("this is not an answer of a node; check the address").caused_by(why)),
    };
    let text = |header: &httparse::Header<'_>| {
        let value = String::from_utf8_lossy(header.value).trim().to_owned();
        (header.name.to_ascii_lowercase(), value)
    };
    let head = Head {
        status: parsed.code.unwrap_or(0),
        headers: parsed.headers.iter().map(text).collect(),
    };
    let closes = head
        .header("connection")
        .is_some_and(|value| value.eq_ignore_ascii_case("close"));
    let keeps = parsed.version == Some(1) && !closes;
    Ok(Some((head, used, keeps)))
}

fn body_of(head: &Head) -> Result<Body> {
    if head
        .header("transfer-encoding")
        .is_some_and(|value| value.eq_ignore_ascii_case("chunked"))
    {
        return Ok(Body::Chunk(None));
    }
    let Some(length) = head.header("content-length") else {
        return Ok(Body::UntilClose);
    };
    match length.parse() {
        Ok(0) => Ok(Body::Over),
        Ok(length) => Ok(Body::Length(length)),
        Err(_) => Err(garbled("the answer has a length that is no number")),
    }
}

fn garbled(message: &'static str) -> Error {
    Error::new(Kind::Corrupt, message)
}
