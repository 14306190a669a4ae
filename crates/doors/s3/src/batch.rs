//! A batch: many items in one request, `POST /.forebay/v1/batch`, the way in for clients on other hosts.
//!
//! The request takes the same way as any other: guard, signature by `s3s`, which then calls this route. It
//! needs a key; what the key may read is asked for every item. The body is one frame of `forebay_wire`,
//! the answer a stream of frames, described in docs/formats/batch.md. `batch/item.rs` finds and fetches one
//! item, `batch/ahead.rs` keeps several on their way within a limit of bytes, `batch/answer.rs` writes them
//! out in order. Nothing is spawned: a client that goes away ends its batch.

mod ahead;
mod answer;
mod item;

use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use forebay_core::{Error, Kind, Result};
use forebay_engine::Engine;
use forebay_wire::batch::{BATCH_CONTENT_TYPE, BATCH_PATH, BatchRequest};
use forebay_wire::{
    self as wire, BATCH_ITEMS_MAX, FRAME_BYTES_MAX, FrameHeader, HEADER_BYTES, Item, READ_TIMEOUT_DEFAULT,
};
use futures::StreamExt;
use http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use http::{Extensions, HeaderMap, HeaderValue, Method, Uri};
use s3s::route::S3Route;
use s3s::validation::NameValidation;
use s3s::{Body, S3ErrorCode, S3Request, S3Response, S3Result, s3_error};

use crate::access::AccessRules;
use crate::context::RequestContext;
use crate::limits::Load;
use crate::map;
use crate::members::MemberIndex;

pub(crate) use ahead::AHEAD_BYTES_MAX;

/// The name of the operation in logs and metrics.
const OPERATION: &str = "Batch";

/// Returns whether a request is a batch.
pub(crate) fn is_batch(method: &Method, uri: &Uri) -> bool {
    method == Method::POST && uri.path() == BATCH_PATH
}

/// The route. It has a service of its own, which sees batches only.
pub(crate) struct BatchRoute {
    pub(crate) engine: Arc<Engine>,
    pub(crate) rules: AccessRules,
    pub(crate) members: Option<Arc<dyn MemberIndex>>,
}

/// `s3s` takes the first part of a path for a bucket and would refuse ours by its name.
pub(crate) struct AnyName;

impl NameValidation for AnyName {
    fn validate_bucket_name(&self, _: &str) -> bool {
        true
    }
}

#[async_trait::async_trait]
impl S3Route for BatchRoute {
    fn is_match(&self, _: &Method, _: &Uri, _: &HeaderMap, _: &mut Extensions) -> bool {
        true
    }

    async fn check_access(&self, request: &mut S3Request<Body>) -> S3Result<()> {
        let who = request
            .credentials
            .as_ref()
            .map(|credentials| credentials.access_key.clone());
        let is_signed = who.is_some();
        let context = RequestContext::of(&request.extensions);
        if let Some(context) = context {
            context.update(|notes| {
                notes.op = Some(OPERATION);
                notes.who = who;
            });
        }
        if !is_signed {
            return Err(s3_error!(AccessDenied, "a batch needs a signed request"));
        }
        // A batch holds what it has fetched ahead.
        let load = Load::Fetched {
            bytes: AHEAD_BYTES_MAX,
        };
        context.map_or(Ok(()), |context| context.admit(load))
    }

    async fn call(&self, request: S3Request<Body>) -> S3Result<S3Response<Body>> {
        let Some(context) = RequestContext::of(&request.extensions).cloned() else {
            return Err(s3_error!(InternalError, "the request has no context"));
        };
        let frame = read_body(request.input, &request.headers).await?;
        let (items, timeout_ms) = parse(&frame)
            .map_err(|error| map::failure_as(&error, S3ErrorCode::InvalidRequest, &request.extensions))?;
        let timeout = match timeout_ms {
            0 => READ_TIMEOUT_DEFAULT,
            ms => Duration::from_millis(u64::from(ms)),
        };
        let batch = Arc::new(item::Batch::new(self, context, timeout));
        let mut response = S3Response::new(answer::body(batch, items));
        let content_type = HeaderValue::from_static(BATCH_CONTENT_TYPE);
        response.headers.insert(CONTENT_TYPE, content_type);
        Ok(response)
    }
}

/// All of the body, which `s3s` checks against the signature on the way. `edge.rs` says what is wrong with
/// one that breaks off.
async fn read_body(mut body: Body, headers: &HeaderMap) -> S3Result<BytesMut> {
    const BODY_BYTES_MAX: usize = HEADER_BYTES + FRAME_BYTES_MAX;
    let too_long = || {
        s3_error!(
            MaxMessageLengthExceeded,
            "a batch is limited to {} bytes; ask for fewer items at once",
            BODY_BYTES_MAX
        )
    };
    let length = headers
        .get(CONTENT_LENGTH)
        .and_then(|length| length.to_str().ok()?.parse::<usize>().ok());
    if length.is_some_and(|length| length > BODY_BYTES_MAX) {
        return Err(too_long());
    }
    let mut whole = BytesMut::new();
    while let Some(piece) = body.next().await {
        let piece = piece.map_err(|why| {
            let mut error = s3_error!(InternalError, "the request body cannot be read");
            error.set_source(why);
            error
        })?;
        if whole.len() + piece.len() > BODY_BYTES_MAX {
            return Err(too_long());
        }
        whole.extend_from_slice(&piece);
    }
    Ok(whole)
}

/// The items of a batch and the time each may take, in milliseconds.
fn parse(body: &[u8]) -> Result<(Vec<Item>, u32)> {
    let invalid = |message: &'static str| Error::new(Kind::InvalidInput, message);
    let (head, message) = body
        .split_first_chunk::<HEADER_BYTES>()
        .ok_or_else(|| invalid("the body of a batch is one frame; this one is too short"))?;
    let header = FrameHeader::parse(head)?;
    if header.length != message.len() {
        return Err(invalid(
            "the body of a batch is one frame; this one has another length",
        ));
    }
    let BatchRequest { items, timeout_ms } = wire::decode(&header, message)?;
    if items.len() > BATCH_ITEMS_MAX {
        let error = invalid("a batch has too many items; split it");
        return Err(error
            .with("items", items.len())
            .with("items_max", BATCH_ITEMS_MAX));
    }
    Ok((items, timeout_ms))
}
