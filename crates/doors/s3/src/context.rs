//! Notes that one request collects on its way: for the access log, the metrics and the answer.
//!
//! The service puts an `Arc<RequestContext>` into the request's extensions; `access.rs` notes who and what,
//! the operations note errors and an unusual status, bodies count bytes. It ends when the answer's body is
//! dropped, or, if the client went away before there was an answer, when it is dropped itself.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use forebay_core::Tier;
use forebay_net::Origin;
use http::header::{AUTHORIZATION, HeaderMap, HeaderValue};
use http::{Extensions, Method, StatusCode, Uri};
use parking_lot::Mutex;
use s3s::{S3Error, S3Result};

use crate::body::BodyFault;
use crate::limits::{Admission, Holder, Load, Permit};
use crate::refusal;

/// Status in the log for a request whose client did not wait for the answer; nginx has the same number for it.
const ABANDONED_STATUS: u16 = 499;

/// A finished request, for metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RequestEnd {
    /// S3's name of the operation; `Unknown` if the request was refused before it was known.
    pub op: &'static str,
    /// HTTP status; 499 if the client went away before there was an answer.
    pub status: u16,
    /// Body bytes that came in.
    pub bytes_in: u64,
    /// Body bytes that went out.
    pub bytes_out: u64,
    /// Of the object bytes among them: from RAM,
    pub ram_bytes: u64,
    /// from NVMe,
    pub nvme_bytes: u64,
    /// from other nodes,
    pub peer_bytes: u64,
    /// from the lake.
    pub lake_bytes: u64,
    /// From the request's head to the end of the answer's body.
    pub duration: Duration,
}

/// Is told about every finished request. Called on the connection's task: must be quick and must not block.
pub trait S3Observer: Send + Sync + 'static {
    /// A request has ended, well or not.
    fn on_request_end(&self, end: &RequestEnd);
}

/// One request's notes.
pub(crate) struct RequestContext {
    /// Goes out as `x-amz-request-id`.
    pub(crate) id: String,
    started: Instant,
    bytes_in: AtomicU64,
    ram_bytes: AtomicU64,
    nvme_bytes: AtomicU64,
    peer_bytes: AtomicU64,
    lake_bytes: AtomicU64,
    notes: Mutex<RequestNotes>,
    observer: Option<Arc<dyn S3Observer>>,
    has_ended: AtomicBool,
    admission: Arc<Admission>,
    origin: Origin,
    /// Taken by `access.rs`, given back when the request ends.
    permit: Mutex<Option<Permit>>,
    /// The longest body that this operation takes; more ends it.
    body_bytes_max: AtomicU64,
}

/// Facts learnt on the way.
#[derive(Debug, Default)]
pub(crate) struct RequestNotes {
    pub(crate) op: Option<&'static str>,
    pub(crate) bucket: Option<Box<str>>,
    pub(crate) key: Option<Box<str>>,
    /// The access key id, once its signature is verified.
    pub(crate) who: Option<String>,
    /// Set when the signature was verified by an earlier pass; see `ignored_range.rs`.
    pub(crate) verified: bool,
    /// A status that `s3s` cannot give.
    pub(crate) status: Option<StatusCode>,
    /// The operation itself answered with an error, so a 500 is not one of `s3s`.
    pub(crate) own_error: bool,
    /// The request's body broke off.
    pub(crate) body_fault: Option<BodyFault>,
    /// The S3 error code of the answer.
    pub(crate) code: Option<String>,
    pub(crate) claim: Option<RequestClaim>,
}

/// Claims of a request about itself; nothing of it is verified.
#[derive(Debug)]
pub(crate) struct RequestClaim {
    method: Method,
    uri: Uri,
    authorization: Option<HeaderValue>,
}

/// Characters of a path, or of a key id that nobody knows, that are logged.
const CLAIM_CHARS_MAX: usize = 256;

impl RequestClaim {
    /// The access key id, wherever the signature stands.
    fn who(&self) -> Option<String> {
        let credential = match &self.authorization {
            Some(value) => value.to_str().ok()?.split_once("Credential=")?.1,
            None => {
                let query = self.uri.query()?;
                query
                    .split('&')
                    .find_map(|pair| pair.strip_prefix("X-Amz-Credential="))?
            }
        };
        let end = credential.find(['/', '%', ',', ' ']).unwrap_or(credential.len());
        Some(credential[..end].chars().take(CLAIM_CHARS_MAX).collect())
    }

    /// The method and the path, without the query, which may hold a signature.
    fn what(&self) -> String {
        let path: String = self.uri.path().chars().take(CLAIM_CHARS_MAX).collect();
        format!("{} {path}", self.method)
    }
}

impl RequestContext {
    pub(crate) fn new(
        id: String,
        observer: Option<Arc<dyn S3Observer>>,
        admission: &Arc<Admission>,
        origin: Origin,
    ) -> Arc<Self> {
        Arc::new(Self {
            admission: Arc::clone(admission),
            origin,
            permit: Mutex::new(None),
            body_bytes_max: AtomicU64::new(u64::MAX),
            id,
            started: Instant::now(),
            bytes_in: AtomicU64::new(0),
            ram_bytes: AtomicU64::new(0),
            nvme_bytes: AtomicU64::new(0),
            peer_bytes: AtomicU64::new(0),
            lake_bytes: AtomicU64::new(0),
            notes: Mutex::new(RequestNotes::default()),
            observer,
            has_ended: AtomicBool::new(false),
        })
    }

    /// The context of a request, from its extensions.
    pub(crate) fn of(extensions: &Extensions) -> Option<&Arc<Self>> {
        extensions.get::<Arc<Self>>()
    }

    pub(crate) fn update(&self, change: impl FnOnce(&mut RequestNotes)) {
        change(&mut self.notes.lock());
    }

    /// Looks at the notes; quick, because the lock is held.
    pub(crate) fn read<T>(&self, look: impl FnOnce(&RequestNotes) -> T) -> T {
        look(&self.notes.lock())
    }

    /// Notes what the request says about itself, for the log line of a refusal.
    pub(crate) fn claimed(&self, method: &Method, uri: &Uri, headers: &HeaderMap) {
        let claim = RequestClaim {
            method: method.clone(),
            uri: uri.clone(),
            authorization: headers.get(AUTHORIZATION).cloned(),
        };
        self.update(|notes| notes.claim = Some(claim));
    }

    /// The verified access key id.
    pub(crate) fn who(&self) -> Option<String> {
        self.read(|notes| notes.who.clone())
    }

    /// Lets the request in, or refuses it. Its signature is verified and its key may do this.
    pub(crate) fn admit(&self, load: Load) -> S3Result<()> {
        let who = self
            .who()
            .map_or(Holder::Strangers, |key| Holder::Key(key.into()));
        let Some(permit) = self.admission.admit(who, self.origin, load) else {
            return Err(self.slow_down());
        };
        *self.permit.lock() = Some(permit);
        if let Load::Document { bytes_max } = load {
            self.body_bytes_max.store(bytes_max, Ordering::Relaxed);
        }
        Ok(())
    }

    fn slow_down(&self) -> S3Error {
        self.update(|notes| notes.own_error = true);
        refusal::slow_down()
    }

    /// Counts body bytes on their way in. Returns false if there is no room for them now: ask again.
    pub(crate) fn receive(&self, bytes: usize) -> Result<bool, BodyFault> {
        let before = self.bytes_in.load(Ordering::Relaxed);
        if before.saturating_add(bytes as u64) > self.body_bytes_max.load(Ordering::Relaxed) {
            return Err(BodyFault::TooLong);
        }
        let has_room = match &mut *self.permit.lock() {
            Some(permit) => permit.receive(bytes as u64),
            None => true,
        };
        if has_room {
            self.bytes_in.fetch_add(bytes as u64, Ordering::Relaxed);
        }
        Ok(has_room)
    }

    /// The body does not come as it was announced.
    pub(crate) fn break_promise(&self) {
        if let Some(permit) = &mut *self.permit.lock() {
            permit.break_promise();
        }
    }

    pub(crate) fn count_tier(&self, tier: Tier, bytes: usize) {
        let counter = match tier {
            Tier::Ram => &self.ram_bytes,
            Tier::Nvme => &self.nvme_bytes,
            Tier::Peer => &self.peer_bytes,
            Tier::Lake => &self.lake_bytes,
        };
        counter.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Writes the access log line and tells the observer. Called once, when the answer's body is gone.
    /// `complete` is false if the body broke off.
    pub(crate) fn end(&self, status: StatusCode, bytes_out: u64, complete: bool) {
        drop(self.permit.lock().take());
        // These have no body; the length in their head is that of the object.
        let has_no_body = matches!(status, StatusCode::NOT_MODIFIED | StatusCode::NO_CONTENT);
        self.report(status.as_u16(), bytes_out, complete || has_no_body);
    }

    fn report(&self, status: u16, bytes_out: u64, complete: bool) {
        if self.has_ended.swap(true, Ordering::Relaxed) {
            return;
        }
        let notes = self.notes.lock();
        let end = RequestEnd {
            op: notes.op.unwrap_or("Unknown"),
            status,
            bytes_in: self.bytes_in.load(Ordering::Relaxed),
            bytes_out,
            ram_bytes: self.ram_bytes.load(Ordering::Relaxed),
            nvme_bytes: self.nvme_bytes.load(Ordering::Relaxed),
            peer_bytes: self.peer_bytes.load(Ordering::Relaxed),
            lake_bytes: self.lake_bytes.load(Ordering::Relaxed),
            duration: self.started.elapsed(),
        };
        if let Some(observer) = &self.observer {
            observer.on_request_end(&end);
        }
        // Who is verified needs no claim, and an operation that is known says what was asked for.
        let claim = notes.claim.as_ref();
        let claimed_who = claim.filter(|_| notes.who.is_none()).and_then(RequestClaim::who);
        let claimed_what = claim.filter(|_| notes.op.is_none()).map(RequestClaim::what);
        tracing::info!(
            target: "forebay::access",
            who = notes.who.as_deref().unwrap_or("-"),
            op = end.op,
            bucket = notes.bucket.as_deref().unwrap_or("-"),
            key = notes.key.as_deref().unwrap_or("-"),
            status = end.status,
            code = notes.code.as_deref().unwrap_or("-"),
            claimed_who = claimed_who.as_deref().unwrap_or("-"),
            claimed_what = claimed_what.as_deref().unwrap_or("-"),
            bytes_out = end.bytes_out,
            bytes_in = end.bytes_in,
            ram_bytes = end.ram_bytes,
            nvme_bytes = end.nvme_bytes,
            peer_bytes = end.peer_bytes,
            lake_bytes = end.lake_bytes,
            // Whole microseconds: a log is read by people.
            duration_ms = (end.duration.as_secs_f64() * 1e6).round() / 1e3,
            complete,
            request_id = self.id,
            "request"
        );
    }
}

impl Drop for RequestContext {
    fn drop(&mut self) {
        self.report(ABANDONED_STATUS, 0, false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Default)]
    struct Seen(Mutex<Vec<u16>>);

    impl S3Observer for Seen {
        fn on_request_end(&self, end: &RequestEnd) {
            self.0.lock().push(end.status);
        }
    }

    fn claim(uri: &'static str, authorization: Option<&'static str>) -> RequestClaim {
        RequestClaim {
            method: Method::PUT,
            uri: Uri::from_static(uri),
            authorization: authorization.map(HeaderValue::from_static),
        }
    }

    #[test]
    fn a_claim_names_the_key_and_the_path_and_no_signature() {
        let header = "AWS4-HMAC-SHA256 Credential=KEY/20260101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=0";
        assert_eq!(claim("/b/k", Some(header)).who().as_deref(), Some("KEY"));
        let presigned = claim("/b/k?X-Amz-Credential=KEY%2F2026&X-Amz-Signature=secret", None);
        assert_eq!(presigned.who().as_deref(), Some("KEY"));
        assert_eq!(presigned.what(), "PUT /b/k");
        assert_eq!(claim("/b/k", None).who(), None);
    }

    #[test]
    fn every_request_is_reported_once_also_an_abandoned_one() {
        let seen = Arc::new(Seen::default());
        let admission = Admission::new(1, 1);
        let context = || {
            let observer = Some(Arc::clone(&seen) as Arc<dyn S3Observer>);
            RequestContext::new("ID".to_owned(), observer, &admission, Origin::default())
        };
        context().end(StatusCode::OK, 1, true);
        drop(context());
        assert_eq!(*seen.0.lock(), [200, 499]);
    }
}
