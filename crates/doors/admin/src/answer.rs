//! Errors on their way out of the admin API: one table from kind to HTTP status.

use axum::Json;
use axum::extract::rejection::JsonRejection;
use axum::extract::{FromRequest, Request};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use forebay_core::{Error, Kind};

use crate::api::Failure;

/// An error on its way out.
#[derive(Debug)]
pub(crate) struct Refusal(pub(crate) Error);

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        Self(error)
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let status = status(self.0.kind());
        if status.is_server_error() && status != StatusCode::SERVICE_UNAVAILABLE {
            tracing::warn!(error = ?self.0, "admin request failed");
        }
        let failure = Failure {
            kind: self.0.kind().as_str().into(),
            message: self.0.to_string(),
        };
        (status, Json(failure)).into_response()
    }
}

/// The HTTP status of each kind.
pub(crate) fn status(kind: Kind) -> StatusCode {
    match kind {
        Kind::NotFound => StatusCode::NOT_FOUND,
        Kind::AlreadyExists | Kind::Conflict | Kind::Changed | Kind::Cancelled => StatusCode::CONFLICT,
        Kind::PreconditionFailed => StatusCode::PRECONDITION_FAILED,
        Kind::InvalidInput | Kind::OutOfRange => StatusCode::BAD_REQUEST,
        Kind::Denied => StatusCode::FORBIDDEN,
        Kind::Unsupported => StatusCode::NOT_IMPLEMENTED,
        Kind::Busy | Kind::Throttled | Kind::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
        Kind::Timeout => StatusCode::GATEWAY_TIMEOUT,
        Kind::NoSpace => StatusCode::INSUFFICIENT_STORAGE,
        _ => StatusCode::INTERNAL_SERVER_ERROR,
    }
}

/// A JSON body whose mistakes are answered like all others.
pub(crate) struct Body<T>(pub(crate) T);

impl<S: Send + Sync, T: serde::de::DeserializeOwned> FromRequest<S> for Body<T> {
    type Rejection = Refusal;

    async fn from_request(request: Request, state: &S) -> Result<Self, Refusal> {
        let parsed: Result<Json<T>, JsonRejection> = Json::from_request(request, state).await;
        parsed
            .map(|Json(body)| Self(body))
            .map_err(|why| Error::new(Kind::InvalidInput, why.body_text()).into())
    }
}

pub(crate) async fn no_such_route() -> Refusal {
    Error::new(Kind::NotFound, "no such page; /openapi.json lists all").into()
}

pub(crate) async fn wrong_method() -> Response {
    let failure = Failure {
        kind: Kind::InvalidInput.as_str().into(),
        message: "this page does not take that method; /openapi.json lists all".into(),
    };
    (StatusCode::METHOD_NOT_ALLOWED, Json(failure)).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_our_own_faults_are_internal_errors() {
        let internal: Vec<_> = Kind::ALL
            .into_iter()
            .filter(|kind| status(*kind) == StatusCode::INTERNAL_SERVER_ERROR)
            .collect();
        assert_eq!(
            internal,
            [Kind::Checksum, Kind::Corrupt, Kind::Io, Kind::Internal]
        );
    }
}
