//! Frames and descriptors on a Unix socket.
//!
//! One `recv` usually brings a whole request, one `send` takes a whole answer, and both buffers are used
//! again, so that a warm batch costs two system calls. Limits: a frame grows its buffer only as its bytes
//! arrive, never by what its header claims; who has begun a frame must end it within [`FRAME_DEADLINE`], and
//! who asks must take the answer within it. Between frames a client may be silent for ever. Descriptors go
//! to clients only: one that a client sends is closed by the kernel, because nobody receives it.

use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use forebay_core::{Error, Kind, Result};
use forebay_wire::{FrameHeader, HEADER_BYTES};
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
use tokio::io::Interest;
use tokio::net::UnixStream;
use tokio::time::Instant;

/// Longest time of a frame from its first byte to its last.
const FRAME_DEADLINE: Duration = Duration::from_secs(30);
/// The input buffer at rest.
const INPUT_BYTES: usize = 16 << 10;
/// By how much it grows at once for a long frame.
const INPUT_GROWTH_BYTES: usize = 256 << 10;

/// A connection that speaks frames.
#[derive(Debug)]
pub(crate) struct FrameStream {
    stream: UnixStream,
    input: Vec<u8>,
    /// Bytes of `input` that have come.
    filled: usize,
    /// Bytes of the frame that was handed out last; they leave with the next one.
    taken: usize,
    /// Longest time of a frame, and of an answer.
    frame_deadline: Duration,
    /// [`Self::closed`] has swallowed a wake-up, so the socket has to be asked before it is waited for.
    is_stale: bool,
}

/// A whole frame.
pub(crate) struct Frame<'a> {
    pub(crate) header: FrameHeader,
    pub(crate) message: &'a [u8],
}

impl FrameStream {
    pub(crate) fn new(stream: UnixStream) -> Self {
        Self {
            stream,
            input: vec![0; INPUT_BYTES],
            filled: 0,
            taken: 0,
            frame_deadline: FRAME_DEADLINE,
            is_stale: false,
        }
    }

    /// The next frame, of at most `message_bytes_max`; `None` if the peer has closed between frames. Not
    /// cancel-safe in the middle of a frame: only whoever ends the connection may drop this.
    pub(crate) async fn next(&mut self, message_bytes_max: usize) -> Result<Option<Frame<'_>>> {
        self.forget_taken();
        let mut deadline = None;
        let header = loop {
            let header = self.header(message_bytes_max)?;
            let wanted = HEADER_BYTES + header.map_or(0, |header| header.length);
            if let Some(header) = header
                && self.filled >= wanted
            {
                break header;
            }
            self.make_room(wanted);
            let received = match deadline {
                None => self.receive().await,
                Some(at) => match tokio::time::timeout_at(at, self.receive()).await {
                    Ok(received) => received,
                    Err(_) => return Err(Error::new(Kind::Timeout, "a message did not arrive in time")),
                },
            };
            match received.map_err(|why| Error::io("the connection broke", why))? {
                0 if self.filled == 0 => return Ok(None),
                0 => return Err(Error::new(Kind::Corrupt, "the connection ended inside a message")),
                bytes => self.filled += bytes,
            }
            deadline = deadline.or_else(|| Some(Instant::now() + self.frame_deadline));
        };
        self.taken = HEADER_BYTES + header.length;
        let message = &self.input[HEADER_BYTES..self.taken];
        Ok(Some(Frame { header, message }))
    }

    fn forget_taken(&mut self) {
        self.input.copy_within(self.taken..self.filled, 0);
        self.filled -= self.taken;
        self.taken = 0;
        if self.filled == 0 && self.input.len() > INPUT_GROWTH_BYTES {
            self.input = vec![0; INPUT_BYTES];
        }
    }

    fn header(&self, message_bytes_max: usize) -> Result<Option<FrameHeader>> {
        let Some(bytes) = self.input[..self.filled].first_chunk::<HEADER_BYTES>() else {
            return Ok(None);
        };
        let header = FrameHeader::parse(bytes)?;
        if header.length > message_bytes_max {
            let error = Error::new(
                Kind::Corrupt,
                "the message is longer than it may be at this point",
            );
            return Err(error
                .with("bytes", header.length)
                .with("bytes_max", message_bytes_max));
        }
        Ok(Some(header))
    }

    fn make_room(&mut self, wanted: usize) {
        if self.filled == self.input.len() {
            let grown = wanted.min(self.filled + INPUT_GROWTH_BYTES);
            self.input.resize(grown.max(INPUT_BYTES), 0);
        }
    }

    async fn receive(&mut self) -> io::Result<usize> {
        let Self {
            stream,
            input,
            filled,
            is_stale,
            ..
        } = self;
        let room = &mut input[*filled..];
        if std::mem::take(is_stale) {
            match receive_now(stream.as_fd(), room) {
                Err(why) if why.kind() == io::ErrorKind::WouldBlock => {}
                received => return received,
            }
        }
        let socket = stream.as_fd();
        stream
            .async_io(Interest::READABLE, || receive_now(socket, room))
            .await
    }

    /// Waits until the peer is gone, while its request is being answered. Cancel-safe.
    pub(crate) async fn closed(&mut self) {
        loop {
            match self.stream.ready(Interest::READABLE).await {
                Ok(ready) if !ready.is_read_closed() => {}
                _ => return,
            }
            // More requests have come already. They wait; what matters is the next event.
            self.is_stale = true;
            let _ = self.stream.try_io(Interest::READABLE, || {
                Err::<(), _>(io::ErrorKind::WouldBlock.into())
            });
        }
    }

    /// Sends a frame, with a descriptor beside its first byte if there is one.
    pub(crate) async fn send(&mut self, frame: &[u8], descriptor: Option<BorrowedFd<'_>>) -> io::Result<()> {
        let sent = match send_now(self.stream.as_fd(), frame, descriptor) {
            Ok(sent) if sent == frame.len() => return Ok(()),
            Ok(sent) => sent,
            Err(why) if why.kind() == io::ErrorKind::WouldBlock => 0,
            Err(why) => return Err(why),
        };
        let rest = self.send_rest(frame, sent, descriptor);
        match tokio::time::timeout(self.frame_deadline, rest).await {
            Ok(done) => done,
            Err(_) => Err(io::ErrorKind::TimedOut.into()),
        }
    }

    async fn send_rest(
        &self,
        frame: &[u8],
        mut sent: usize,
        descriptor: Option<BorrowedFd<'_>>,
    ) -> io::Result<()> {
        while sent < frame.len() {
            let descriptor = descriptor.filter(|_| sent == 0);
            let socket = self.stream.as_fd();
            sent += self
                .stream
                .async_io(Interest::WRITABLE, || {
                    send_now(socket, &frame[sent..], descriptor)
                })
                .await?;
        }
        Ok(())
    }
}

fn receive_now(socket: BorrowedFd<'_>, room: &mut [u8]) -> io::Result<usize> {
    let (_, received) = rustix::net::recv(socket, room, RecvFlags::DONTWAIT)?;
    Ok(received)
}

fn send_now(socket: BorrowedFd<'_>, bytes: &[u8], descriptor: Option<BorrowedFd<'_>>) -> io::Result<usize> {
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    let Some(descriptor) = descriptor else {
        return Ok(rustix::net::send(socket, bytes, flags)?);
    };
    let descriptors = [descriptor];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !control.push(SendAncillaryMessage::ScmRights(&descriptors)) {
        return Err(io::Error::other("no room for a descriptor"));
    }
    Ok(rustix::net::sendmsg(
        socket,
        &[IoSlice::new(bytes)],
        &mut control,
        flags,
    )?)
}

#[cfg(test)]
mod tests;
