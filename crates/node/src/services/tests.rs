use std::path::Path;
use std::sync::Arc;

use axum::body::{Body, to_bytes};
use axum::http::{Request, StatusCode};
use forebay_core::SystemClock;
use serde_json::{Value, json};
use tower::ServiceExt;

use forebay_admin::{Protection, router};
use forebay_core::Secret;

use super::*;
use crate::config::Config;
use crate::machine::Machine;

/// Services of a node whose lake has not answered.
async fn services(dir: &Path) -> Arc<Services> {
    let text = format!(
        "data = '{}'\nram = '64MiB'\nnvme = 0\n[[key]]\nid = 'reader'\nsecret = 'hunter2hunter2'",
        dir.display()
    );
    let machine = Machine {
        memory_bytes: 1 << 30,
        disk_bytes: 1 << 30,
    };
    let options = NodeOptions::resolve_on(Config::parse(&text).unwrap(), &machine).unwrap();
    let foundations = Foundations {
        clock: Arc::new(SystemClock::new()),
        lakes: Vec::new(),
        access: socket::access(&options),
        s3_url: Some("http://127.0.0.1:1".into()),
        socket: None,
    };
    Arc::new(Services::compose(options, foundations).await.unwrap())
}

async fn ask(protection: Protection, request: Request<Body>) -> (StatusCode, Value) {
    let dir = tempfile::tempdir().unwrap();
    let answer = router(services(dir.path()).await, protection)
        .oneshot(request)
        .await
        .unwrap();
    let status = answer.status();
    let body = to_bytes(answer.into_body(), 1 << 20).await.unwrap();
    (
        status,
        serde_json::from_slice(&body).unwrap_or_else(|_| json!(String::from_utf8_lossy(&body))),
    )
}

fn get(path: &str) -> Request<Body> {
    Request::get(path)
        .header("host", "127.0.0.1:9001")
        .body(Body::empty())
        .unwrap()
}

fn post(path: &str, headers: &[(&str, &str)]) -> Request<Body> {
    let request = Request::post(path).header("host", "127.0.0.1:9001");
    let request = headers
        .iter()
        .fold(request, |request, (name, value)| request.header(*name, *value));
    request.body(Body::from("{\"bucket\":\"demo\"}")).unwrap()
}

const JSON: (&str, &str) = ("content-type", "application/json");
const TOKEN: (&str, &str) = ("authorization", "Bearer let-me-in");

fn loopback() -> Protection {
    Protection::Loopback(Secret::new("let-me-in"))
}

#[tokio::test]
async fn on_loopback_what_changes_something_needs_the_token() {
    let changes = [
        "/v1/buckets",
        "/v1/cache/evict",
        "/v1/cache/warm",
        "/v1/jobs/x/stop",
        "/v1/saves/x/abort",
        "/v1/nothing",
    ];
    for path in changes {
        for headers in [vec![JSON], vec![JSON, ("authorization", "Bearer let-me-i")]] {
            let (status, body) = ask(loopback(), post(path, &headers)).await;
            assert_eq!(status, StatusCode::UNAUTHORIZED, "{path} {body}");
        }
        let (status, body) = ask(loopback(), post(path, &[JSON, TOKEN])).await;
        assert_ne!(status, StatusCode::UNAUTHORIZED, "{path} {body}");
    }
    for method in ["PUT", "DELETE", "PATCH"] {
        let request = Request::builder().method(method).uri("/v1/jobs/x");
        let request = request.header("host", "localhost").header(JSON.0, JSON.1);
        let (status, _) = ask(loopback(), request.body(Body::empty()).unwrap()).await;
        assert_eq!(status, StatusCode::UNAUTHORIZED, "{method}");
    }
    for path in ["/v1/status", "/v1/jobs", "/metrics"] {
        assert_eq!(ask(loopback(), get(path)).await.0, StatusCode::OK, "{path}");
    }
}

#[tokio::test]
async fn a_node_whose_lake_is_silent_is_healthy_but_not_ready() {
    assert_eq!(ask(loopback(), get("/healthz")).await.0, StatusCode::OK);
    let (status, body) = ask(loopback(), get("/readyz")).await;
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(body["ok"], false);
    let (status, body) = ask(loopback(), post("/v1/cache/warm", &[JSON, TOKEN])).await;
    assert_eq!(
        (status, &body["kind"]),
        (StatusCode::SERVICE_UNAVAILABLE, &json!("unavailable"))
    );
}

#[tokio::test]
async fn a_web_page_cannot_change_anything() {
    let plain = [("content-type", "text/plain")];
    assert_eq!(
        ask(loopback(), post("/v1/cache/evict", &plain)).await.0,
        StatusCode::BAD_REQUEST
    );
    assert_eq!(
        ask(loopback(), post("/v1/jobs/x/stop", &[])).await.0,
        StatusCode::BAD_REQUEST
    );
    let foreign = [JSON, ("origin", "https://evil.example")];
    assert_eq!(
        ask(loopback(), post("/v1/cache/evict", &foreign)).await.0,
        StatusCode::FORBIDDEN
    );
    let opaque = [JSON, ("origin", "null")];
    assert_eq!(
        ask(loopback(), post("/v1/cache/evict", &opaque)).await.0,
        StatusCode::FORBIDDEN
    );
    let rebound = Request::get("/v1/status")
        .header("host", "evil.example:9001")
        .body(Body::empty())
        .unwrap();
    assert_eq!(ask(loopback(), rebound).await.0, StatusCode::FORBIDDEN);
}

#[tokio::test]
async fn away_from_loopback_only_the_token_opens() {
    let token = || Protection::Everywhere(Secret::new("let-me-in"));
    let with = |value: &str| {
        Request::get("/v1/status")
            .header("authorization", value)
            .body(Body::empty())
            .unwrap()
    };
    assert_eq!(ask(token(), get("/v1/status")).await.0, StatusCode::UNAUTHORIZED);
    assert_eq!(ask(token(), get("/metrics")).await.0, StatusCode::UNAUTHORIZED);
    assert_eq!(
        ask(token(), with("Bearer let-me-i")).await.0,
        StatusCode::UNAUTHORIZED
    );
    assert_eq!(
        ask(token(), with("Basic let-me-in")).await.0,
        StatusCode::UNAUTHORIZED
    );
    assert_eq!(ask(token(), with("Bearer let-me-in")).await.0, StatusCode::OK);
    assert_eq!(ask(token(), get("/healthz")).await.0, StatusCode::OK);
}

#[tokio::test]
async fn the_shown_configuration_holds_no_secret() {
    let (status, body) = ask(loopback(), get("/v1/config")).await;
    assert_eq!(status, StatusCode::OK);
    assert_eq!(body["key"][0]["id"], "reader");
    assert!(!body.to_string().contains("hunter2"), "{body}");
}

#[tokio::test]
async fn mistakes_are_answered_as_json_with_a_kind() {
    for (request, status, kind) in [
        (get("/v1/nothing"), StatusCode::NOT_FOUND, "not_found"),
        (get("/v1/jobs/nope"), StatusCode::NOT_FOUND, "not_found"),
        (
            get("/v1/jobs/nope?wait=soon"),
            StatusCode::BAD_REQUEST,
            "invalid_input",
        ),
        (
            get("/v1/jobs/nope?weit=1s"),
            StatusCode::BAD_REQUEST,
            "invalid_input",
        ),
        (
            get("/v1/cache/warm"),
            StatusCode::METHOD_NOT_ALLOWED,
            "invalid_input",
        ),
        (
            post("/v1/cache/boil", &[JSON, TOKEN]),
            StatusCode::NOT_FOUND,
            "not_found",
        ),
        (
            post("/v1/buckets", &[JSON, TOKEN]),
            StatusCode::BAD_REQUEST,
            "invalid_input",
        ),
    ] {
        let path = request.uri().to_string();
        let (found, body) = ask(loopback(), request).await;
        assert_eq!(
            (found, body["kind"].as_str()),
            (status, Some(kind)),
            "{path}: {body}"
        );
    }
}

/// Every route of the router is described, and nothing else.
#[tokio::test]
async fn the_openapi_document_describes_the_routes() {
    let (status, document) = ask(loopback(), get("/openapi.json")).await;
    assert_eq!(status, StatusCode::OK);
    for (path, methods) in document["paths"].as_object().unwrap() {
        for method in methods.as_object().unwrap().keys() {
            let request = Request::builder()
                .method(method.to_uppercase().as_str())
                .uri(path.replace("{verb}", "warm").replace("{id}", "x"))
                .header("host", "localhost")
                .header(JSON.0, JSON.1)
                .header(TOKEN.0, TOKEN.1)
                .body(Body::from("{}"))
                .unwrap();
            let (found, body) = ask(loopback(), request).await;
            assert_ne!(found, StatusCode::METHOD_NOT_ALLOWED, "{method} {path}");
            assert!(!body.to_string().contains("no such page"), "{method} {path}");
        }
    }
}
