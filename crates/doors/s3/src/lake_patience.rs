//! The patience of a client of the S3 endpoint with a lake that throttles or is away.
//!
//! Requests to the lake wait long, because loaders and jobs want them to. A person, or a tool with retries of its
//! own, wants an answer within seconds: `503` with `Retry-After`, at once if the lake has been away for longer than
//! that already. What the cache can answer is answered before this is asked. A write to a lake that merely throttles
//! goes on, because it makes progress.

use std::sync::Arc;
use std::time::Duration;

use forebay_core::BucketName;
use forebay_engine::{Engine, LakeCondition};
use http::{Method, StatusCode};
use tokio::time::Instant;

use crate::context::RequestContext;
use crate::refusal::Refusal;

/// Period at which the lake is looked at; a warm read is done before the first look.
const LOOK_PERIOD: Duration = Duration::from_millis(100);

/// Waits until the client's patience ends, and says why. Cancel-safe; never ends while the lake is well.
pub(crate) async fn ended(
    engine: &Engine,
    context: &Arc<RequestContext>,
    method: &Method,
    patience: Duration,
) -> Refusal {
    let began = Instant::now();
    loop {
        tokio::time::sleep(LOOK_PERIOD).await;
        let bucket = context.read(|notes| notes.bucket.clone());
        let Some(condition) = bucket
            .and_then(|name| BucketName::new(&name).ok())
            .and_then(|name| engine.lake_condition(&name).ok())
        else {
            continue;
        };
        let has_ended = match condition {
            LakeCondition::Well => false,
            LakeCondition::Throttled { .. } => is_read(method) && began.elapsed() >= patience,
            LakeCondition::Away { elapsed } => elapsed.max(began.elapsed()) >= patience,
        };
        if has_ended {
            context.update(|notes| notes.own_error = true);
            return refusal(condition);
        }
    }
}

fn is_read(method: &Method) -> bool {
    matches!(*method, Method::GET | Method::HEAD)
}

fn refusal(condition: LakeCondition) -> Refusal {
    let code = match condition {
        LakeCondition::Away { .. } => "ServiceUnavailable",
        LakeCondition::Well | LakeCondition::Throttled { .. } => "SlowDown",
    };
    let message = format!("the lake behind this bucket {condition}; try again later");
    Refusal::new(StatusCode::SERVICE_UNAVAILABLE, code, message)
}
