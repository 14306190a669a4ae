//! The pipeline that every request walks through, and the [`S3Edge`] that owns it.
//!
//! CORS, guard, `s3s` with access and admission, finishing touches. All answers, also refusals, get a request
//! id and count in the access log; nothing here spawns a task, so a client that goes away ends its request.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use forebay_engine::Engine;
use forebay_net::{Activity, Origin};
use http::header::{CONNECTION, CONTENT_LENGTH, HeaderName, HeaderValue};
use http::{Method, Request, Response, StatusCode};
use hyper::body::{Body as _, Incoming};
use s3s::Body;
use s3s::service::{S3Service, S3ServiceBuilder};

use crate::access::AccessRules;
use crate::batch::{self, AnyName, BatchRoute};
use crate::body::{BodyFault, RequestBody, ResponseBody};
use crate::context::{RequestContext, RequestNotes};
use crate::cors::Cors;
use crate::guard::Guard;
use crate::hosts::{BucketHosts, HostCheck};
use crate::ignored_range::IgnoredRange;
use crate::keys::KeyAuth;
use crate::lake_patience;
use crate::limits::{Admission, InFlight};
use crate::operations::Operations;
use crate::rechunk::{SmallChunks, is_chunked};
use crate::refusal::{Refusal, push_element};
use crate::xml_answer;
use crate::xml_digest::{self, Digested};
use crate::{S3Observer, S3Options};

const REQUEST_ID: HeaderName = HeaderName::from_static("x-amz-request-id");

/// The S3 edge: everything between a connection and the engine. Shared by `Arc`; see [`crate::serve`].
pub struct S3Edge {
    service: S3Service,
    /// For batches only; see `batch.rs`.
    batches: S3Service,
    guard: Guard,
    cors: Cors,
    engine: Arc<Engine>,
    admission: Arc<Admission>,
    observer: Option<Arc<dyn S3Observer>>,
    ids: RequestIds,
    pub(crate) options: S3Options,
}

impl std::fmt::Debug for S3Edge {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("S3Edge")
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}

impl S3Edge {
    /// An edge over this engine.
    #[must_use]
    pub fn new(engine: Arc<Engine>, options: S3Options) -> Self {
        let rules = AccessRules {
            keys: Arc::clone(&options.keys),
            public_read: Arc::new(options.public_read.clone()),
            hosts: HostCheck::new(&engine, options.domain.as_deref()).map(Arc::new),
        };
        let operations = Operations::new(Arc::clone(&engine), rules.clone(), options.region.clone());
        let domain = options.domain.as_deref();
        let second = builder(operations.clone(), &rules, domain).build();
        let mut first = builder(operations.clone(), &rules, domain);
        first.set_route(IgnoredRange { second });
        let mut batches = builder(operations, &rules, domain);
        batches.set_validation(AnyName);
        batches.set_route(BatchRoute {
            engine: Arc::clone(&engine),
            rules,
            members: options.members.clone(),
        });
        Self {
            service: first.build(),
            batches: batches.build(),
            guard: Guard {
                region: options.region.clone(),
                header_bytes_max: options.header_bytes_max,
            },
            cors: Cors::new(options.cors_origins.clone()),
            engine,
            admission: Admission::new(options.inflight_requests_max, options.inflight_bytes_max),
            observer: options.observer.clone(),
            ids: RequestIds::new(),
            options,
        }
    }

    /// Returns what is in flight now.
    #[must_use]
    pub fn in_flight(&self) -> InFlight {
        self.admission.in_flight()
    }

    /// Answers one request. Cancel-safe: dropping the future abandons the request.
    pub(crate) async fn handle(
        &self,
        request: Request<Incoming>,
        origin: Origin,
        activity: &Arc<Activity>,
    ) -> Response<ResponseBody> {
        activity.begin_answer();
        let observer = self.observer.clone();
        let context = RequestContext::new(self.ids.next(), observer, &self.admission, origin);
        context.claimed(request.method(), request.uri(), request.headers());
        let is_head = request.method() == Method::HEAD;
        let cors_headers = self.cors.answer_headers(request.method(), request.headers());

        let mut response = if request.method() == Method::OPTIONS {
            if !request.body().is_end_stream() {
                activity.leave_unread();
            }
            self.cors.preflight(request.headers())
        } else {
            self.ask(request, &context, activity).await
        };

        if response.status().is_client_error() || response.status().is_server_error() {
            finish_error(&mut response, &context);
        }
        if let Some(headers) = cors_headers {
            response.headers_mut().extend(headers);
        }
        if let Ok(id) = HeaderValue::from_str(&context.id) {
            response.headers_mut().insert(REQUEST_ID, id);
        }
        if activity.has_unread() {
            // The connection ends after this; a client that pools connections must not send another request
            // on it.
            response
                .headers_mut()
                .insert(CONNECTION, HeaderValue::from_static("close"));
        }
        let status = response.status();
        let activity = Arc::clone(activity);
        response.map(|body| ResponseBody::new(body, context, activity, status, is_head))
    }

    /// The guard, then `s3s`, then what `s3s` cannot do.
    async fn ask(
        &self,
        request: Request<Incoming>,
        context: &Arc<RequestContext>,
        activity: &Arc<Activity>,
    ) -> Response<Body> {
        let (mut parts, body) = request.into_parts();
        let checked = self
            .guard
            .check(&mut parts)
            .and_then(|()| xml_digest::wanted(&parts));
        let document_digest = match checked {
            Ok(digest) => digest,
            Err(refusal) => {
                if !body.is_end_stream() {
                    activity.leave_unread();
                }
                return refusal.into_response();
            }
        };
        let body = if body.is_end_stream() {
            Body::empty()
        } else {
            let pace = self.options.pace();
            let body = RequestBody::new(body, Arc::clone(context), pace, Arc::clone(activity));
            if is_chunked(&parts.headers) {
                Body::http_body(SmallChunks::new(body))
            } else if let Some(digest) = document_digest {
                Body::http_body(Digested::new(body, digest))
            } else {
                Body::http_body(body)
            }
        };
        parts.extensions.insert(Arc::clone(context));

        // A batch is a loader's, which waits as long as the lake's own patience lasts.
        let (service, patience) = if batch::is_batch(&parts.method, &parts.uri) {
            (&self.batches, Duration::MAX)
        } else {
            (&self.service, self.options.lake_patience)
        };
        let method = parts.method.clone();
        let answer = tokio::select! {
            biased;
            answer = service.call(Request::from_parts(parts, body)) => answer,
            refusal = lake_patience::ended(&self.engine, context, &method, patience) => Ok(refusal.into_response()),
        };
        let mut response = match answer {
            Ok(response) => response,
            Err(error) => {
                let error: s3s::StdError = error.into();
                tracing::error!(request_id = context.id, error = ?error, "the answer could not be written");
                internal_error().into_response()
            }
        };
        // The bytes of objects are not ours to change.
        if context.read(|notes| notes.op != Some("GetObject")) {
            xml_answer::keep_carriage_returns(&mut response);
        }
        if let Some(refusal) = context.read(|notes| body_refusal(response.status(), notes)) {
            response = refusal.into_response();
        }
        if let Some(status) = context.read(|notes| notes.status) {
            *response.status_mut() = status;
        }
        response
    }
}

fn builder(operations: Operations, rules: &AccessRules, domain: Option<&str>) -> S3ServiceBuilder {
    let mut builder = S3ServiceBuilder::new(operations);
    builder.set_auth(KeyAuth(Arc::clone(&rules.keys)));
    builder.set_access(rules.clone());
    if let Some(domain) = domain {
        builder.set_host(BucketHosts::new(domain));
    }
    builder
}

fn internal_error() -> Refusal {
    Refusal::new(
        StatusCode::INTERNAL_SERVER_ERROR,
        "InternalError",
        "an internal error; please report the request id",
    )
}

/// `s3s` answers 500 when it cannot read a small body (XML) to its end, but that is the client's fault.
fn body_refusal(status: StatusCode, notes: &RequestNotes) -> Option<Refusal> {
    if status != StatusCode::INTERNAL_SERVER_ERROR || notes.own_error {
        return None;
    }
    Some(match notes.body_fault {
        Some(BodyFault::Stalled) => Refusal::bad("RequestTimeout", "the request body came too slowly"),
        Some(BodyFault::TooLong) => Refusal::bad(
            "MaxMessageLengthExceeded",
            "the body is longer than this operation takes",
        ),
        Some(BodyFault::NoRoom) => Refusal::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "SlowDown",
            "too much is in flight; try again in a second",
        ),
        Some(BodyFault::Broken) => Refusal::bad("IncompleteBody", "the request body broke off"),
        None => Refusal::bad(
            "BadDigest",
            "the request body does not match its checksum, signature or framing",
        ),
    })
}

/// Adds what every error document must have. The documents are small and at hand.
fn finish_error(response: &mut Response<Body>, context: &RequestContext) {
    let Some(document) = response.body().bytes() else {
        return;
    };
    let Some(head) = std::str::from_utf8(&document)
        .ok()
        .and_then(|text| text.strip_suffix("</Error>"))
    else {
        return;
    };
    let mut xml = head.to_owned();
    let code = code_of(&xml).to_owned();
    if !xml.contains("<Message>") {
        let message = default_message(&code);
        push_element(&mut xml, "Message", message);
    }
    let resource = context.read(|notes| match (&notes.bucket, &notes.key) {
        (Some(bucket), Some(key)) => Some(format!("/{bucket}/{key}")),
        (Some(bucket), None) => Some(format!("/{bucket}")),
        _ => None,
    });
    if let Some(resource) = resource {
        push_element(&mut xml, "Resource", &resource);
    }
    push_element(&mut xml, "RequestId", &context.id);
    xml.push_str("</Error>");
    response.headers_mut().remove(CONTENT_LENGTH);
    *response.body_mut() = Body::from(Bytes::from(xml));
    context.update(|notes| notes.code = Some(code));
}

/// The code in an error document.
fn code_of(xml: &str) -> &str {
    xml.split_once("<Code>")
        .and_then(|(_, rest)| rest.split_once("</Code>"))
        .map_or("", |(code, _)| code)
}

/// A sentence for the codes that `s3s` leaves without one.
fn default_message(code: &str) -> &'static str {
    match code {
        "SignatureDoesNotMatch" => "the signature does not match; check the secret key and the clock",
        "InvalidBucketName" => "the bucket name is not valid",
        "InvalidURI" => "the request path or query cannot be parsed",
        "KeyTooLongError" => "the key is longer than 1024 bytes",
        "MalformedXML" => "the XML body is not what this operation expects",
        "MissingRequestBodyError" => "the request body is empty",
        "MissingContentLength" => "the Content-Length header is needed",
        "IncompleteBody" => "the body has another length than Content-Length says",
        "MaxMessageLengthExceeded" => "the request body is too large",
        "MethodNotAllowed" => "this method is not allowed here",
        _ => "the request was refused",
    }
}

/// Request ids: unique in a run, different between runs, cheap.
struct RequestIds {
    seed: u64,
    next: AtomicU64,
}

impl RequestIds {
    fn new() -> Self {
        Self {
            seed: RandomState::new().hash_one(0),
            next: AtomicU64::new(0),
        }
    }

    fn next(&self) -> String {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        // An odd multiplier permutes the 64-bit numbers, so ids of one run never repeat.
        let id = (self.seed ^ number).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        format!("{id:016X}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_ids_do_not_repeat() {
        let ids = RequestIds::new();
        let some: std::collections::BTreeSet<_> = (0..1000).map(|_| ids.next()).collect();
        assert_eq!(some.len(), 1000);
        assert!(some.iter().all(|id| id.len() == 16));
    }

    #[test]
    fn errors_carry_id_resource_and_message() {
        let context = RequestContext::new("ID".to_owned(), None, &Admission::new(1, 1), Origin::default());
        context.update(|notes| {
            notes.bucket = Some("b".into());
            notes.key = Some("<k>".into());
        });
        let document = "<Error><Code>MalformedXML</Code></Error>";
        let mut response = Response::new(Body::from(document.to_owned()));
        finish_error(&mut response, &context);
        let text = String::from_utf8(response.body().bytes().unwrap().to_vec()).unwrap();
        assert!(
            text.contains("<Resource>/b/&lt;k&gt;</Resource><RequestId>ID</RequestId></Error>"),
            "{text}"
        );
        assert!(text.contains("<Message>the XML body"), "{text}");
    }

    #[test]
    fn unreadable_bodies_are_not_internal_errors() {
        let code = |notes: &RequestNotes| {
            body_refusal(StatusCode::INTERNAL_SERVER_ERROR, notes).map(|refusal| refusal.code)
        };
        assert_eq!(code(&RequestNotes::default()), Some("BadDigest"));
        assert_eq!(
            code(&RequestNotes {
                body_fault: Some(BodyFault::Stalled),
                ..RequestNotes::default()
            }),
            Some("RequestTimeout")
        );
        assert_eq!(
            code(&RequestNotes {
                own_error: true,
                ..RequestNotes::default()
            }),
            None
        );
    }
}
