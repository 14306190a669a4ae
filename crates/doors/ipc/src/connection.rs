//! One connection of a client: hello, then requests and replies, one at a time and in order.
//!
//! Life cycle: the first message must be `Hello`, soon. It opens a session, which ends with this connection,
//! or joins one. A request goes to its family and is answered before the next one is read; what is warm is
//! answered without a wait. A request of a family that the node does not know, or knows in another version, is
//! refused and the connection goes on. A client that goes away while it waits is noticed at once, so that what
//! its process held comes back; only what was handed over goes on. A message that is not ours ends the
//! connection after a failure that says why, because what follows cannot be trusted.

use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::Duration;

use forebay_core::{Error, Kind, Result};
use forebay_wire::{self as wire, FRAME_BYTES_MAX, session};
use tokio::net::UnixStream;
use tokio_util::sync::CancellationToken;

use crate::Ipc;
use crate::counters::Present;
use crate::family::{Handling, Reply};
use crate::sessions::{Peer, Session};
use crate::stream::FrameStream;

/// Longest wait for the hello of a client.
const HELLO_DEADLINE: Duration = Duration::from_secs(10);
/// A hello is a name and a secret.
const HELLO_BYTES_MAX: usize = 4096;

/// Serves a connection until it ends.
pub(crate) async fn serve(ipc: Arc<Ipc>, stream: UnixStream, peer: Peer) {
    let _present = Present::new(&ipc.counters.connections);
    let descriptor = stream.as_raw_fd();
    let mut connection = Connection {
        stream: FrameStream::new(stream),
        reply: Reply::default(),
    };
    let _remembered = ipc.remember_socket(&descriptor);
    let hello = tokio::time::timeout(HELLO_DEADLINE, connection.hello(&ipc, peer));
    let hello = tokio::select! {
        hello = hello => hello,
        () = ipc.services.stop.cancelled() => return,
    };
    let joined = match hello {
        Ok(Ok(joined)) => joined,
        Ok(Err(error)) => {
            tracing::debug!(%error, uid = peer.uid, pid = peer.pid, "a client did not get in");
            return;
        }
        Err(_) => {
            tracing::debug!(
                uid = peer.uid,
                pid = peer.pid,
                "a client did not say hello in time"
            );
            return;
        }
    };
    let Joined { session, is_first } = joined;
    // Closes the session also if this task is aborted.
    let _guard = is_first.then(|| SessionGuard {
        ipc: Arc::clone(&ipc),
        session: Arc::clone(&session),
    });
    if let Err(error) = connection.converse(&ipc, &session).await {
        tracing::debug!(%error, client = session.client(), "a connection was ended");
    }
}

struct Joined {
    session: Arc<Session>,
    is_first: bool,
}

struct SessionGuard {
    ipc: Arc<Ipc>,
    session: Arc<Session>,
}

impl Drop for SessionGuard {
    fn drop(&mut self) {
        self.ipc.close_session(&self.session);
    }
}

struct Connection {
    stream: FrameStream,
    reply: Reply,
}

impl Connection {
    async fn hello(&mut self, ipc: &Ipc, peer: Peer) -> Result<Joined> {
        let request = match self.stream.next(HELLO_BYTES_MAX).await {
            Ok(Some(frame)) => wire::decode(&frame.header, frame.message),
            Ok(None) => return Err(Error::new(Kind::Io, "the client closed before it said hello")),
            Err(error) => Err(error),
        };
        let joined = match request {
            Ok(session::Request::Hello(hello)) => ipc.welcome(peer, &hello),
            Ok(_) => Err(Error::new(
                Kind::InvalidInput,
                "the first message must be a hello",
            )),
            Err(error) => Err(error),
        };
        match joined {
            Ok((session, is_first)) => {
                let joined = Joined { session, is_first };
                self.reply
                    .answer(&session::Answer::Welcome(ipc.greeting(&joined.session)))?;
                if let Err(error) = self.send().await {
                    if joined.is_first {
                        ipc.close_session(&joined.session);
                    }
                    return Err(error);
                }
                Ok(joined)
            }
            Err(error) => Err(self.refuse(error).await),
        }
    }

    async fn converse(&mut self, ipc: &Ipc, session: &Arc<Session>) -> Result<()> {
        loop {
            let Self { stream, reply } = self;
            let frame = tokio::select! {
                biased;
                frame = stream.next(FRAME_BYTES_MAX) => frame,
                () = session.ended.cancelled() => return Ok(()),
            };
            let frame = match frame {
                Ok(Some(frame)) => frame,
                Ok(None) => return Ok(()),
                Err(error) => return Err(self.refuse(error).await),
            };
            if let Err(error) = frame.header.check(frame.message) {
                return Err(self.refuse(error).await);
            }
            let family = match ipc.families.find(&frame.header, frame.message) {
                Ok(family) => family,
                Err(error) => {
                    reply.fail(&error)?;
                    self.send().await?;
                    continue;
                }
            };
            let handled = match family.handle(session, frame.message, reply) {
                Handling::Done(handled) => Ok(handled),
                Handling::Waiting(work) => tokio::select! {
                    biased;
                    handled = work => Ok(handled),
                    () = stream.closed() => return Ok(()),
                    () = cut(&session.ended, &ipc.services.stop) => return Ok(()),
                },
                Handling::Malformed(error) => Err(error),
            };
            let handled = match handled {
                Ok(handled) => handled,
                Err(error) => return Err(self.refuse(error).await),
            };
            if let Err(error) = handled {
                self.reply.fail(&error)?;
            }
            let sent = self.send().await;
            if let (Err(_), Some(answer)) = (&sent, self.reply.message()) {
                family.take_back(session, answer);
            }
            sent?;
            self.reply.trim();
        }
    }

    /// Says why the connection ends; it may be gone already, then nobody needs to be told.
    async fn refuse(&mut self, error: Error) -> Error {
        if self.reply.fail(&error).is_ok() {
            let _ = self.send().await;
        }
        error
    }

    async fn send(&mut self) -> Result<()> {
        let sent = self
            .stream
            .send(self.reply.frame(), self.reply.descriptor())
            .await;
        sent.map_err(|why| Error::io("an answer could not be sent", why))
    }
}

/// The session is over while the node is not: its process is dead. When the node stops, answers under way may
/// still be finished.
async fn cut(ended: &CancellationToken, node_stops: &CancellationToken) {
    ended.cancelled().await;
    if node_stops.is_cancelled() {
        std::future::pending::<()>().await;
    }
}
