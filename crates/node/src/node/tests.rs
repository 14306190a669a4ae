use super::*;
use crate::config::Config;
use crate::machine::Machine;
use forebay_core::{BucketName, ObjectKey};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

const LONG: Duration = Duration::from_secs(30);

fn options(dir: &Path, more: &str) -> NodeOptions {
    let text = format!(
        "data = '{}'\nram = '64MiB'\nnvme = 0\ns3 = '127.0.0.1:0'\nadmin = '127.0.0.1:0'\nsocket = 'off'\n{more}",
        dir.join("data").display()
    );
    let machine = Machine {
        memory_bytes: 1 << 30,
        disk_bytes: 1 << 30,
    };
    NodeOptions::resolve_on(Config::parse(&text).unwrap(), &machine).unwrap()
}

async fn answer_of(url: &str) -> String {
    let mut stream = tokio::net::TcpStream::connect(url.trim_start_matches("http://"))
        .await
        .unwrap();
    stream
        .write_all(b"GET / HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n\r\n")
        .await
        .unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).await.unwrap();
    text
}

#[tokio::test]
async fn a_folder_node_gets_ready_serves_and_stops() {
    let dir = tempfile::tempdir().unwrap();
    let node = Node::start(options(dir.path(), "")).await.unwrap();
    tokio::time::timeout(LONG, node.wait_ready()).await.unwrap();
    assert!(node.engine().unwrap().list_buckets().await.unwrap().is_empty());
    assert!(
        answer_of(&node.s3_url().unwrap())
            .await
            .starts_with("HTTP/1.1 403"),
        "no key, no entry"
    );
    let url = node.s3_url().unwrap();
    tokio::time::timeout(LONG, node.shutdown(LONG)).await.unwrap();
    assert!(
        tokio::net::TcpStream::connect(url.trim_start_matches("http://"))
            .await
            .is_err()
    );
}

/// The URL of a lake at a port that was free a moment ago and has no listener.
fn silent_lake() -> String {
    let free = std::net::TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    format!("s3://box?endpoint=http://{free}&style=path&anonymous=true")
}

#[tokio::test]
async fn a_silent_lake_leaves_the_node_up_but_not_ready() {
    let dir = tempfile::tempdir().unwrap();
    let node = Node::start(options(dir.path(), &format!("lake = '{}'", silent_lake())))
        .await
        .unwrap();
    assert!(node.why_not_ready().unwrap().contains("s3://box"));
    assert!(node.engine().is_ok(), "what is cached is served");
    tokio::time::timeout(LONG, node.shutdown(LONG)).await.unwrap();
}

#[tokio::test]
async fn a_silent_lake_of_one_bucket_leaves_the_others_alone() {
    let dir = tempfile::tempdir().unwrap();
    let more = format!(
        "[limits]\nlake_patience = '1s'\n[[bucket]]\nname = 'far'\nlake = '{}'",
        silent_lake()
    );
    let node = Node::start(options(dir.path(), &more)).await.unwrap();
    tokio::time::timeout(LONG, node.wait_ready()).await.unwrap();
    assert_eq!(node.why_not_ready(), None);
    assert!(node.lake_trouble().unwrap().contains("s3://box"));
    let engine = node.engine().unwrap();
    let (near, far) = (BucketName::new("near").unwrap(), BucketName::new("far").unwrap());
    engine.create_bucket(&near).await.unwrap();
    assert!(engine.head_bucket(&near).await.is_ok());
    let error = engine
        .head(&far, &ObjectKey::new("k").unwrap())
        .await
        .unwrap_err();
    assert_eq!(error.kind(), Kind::Unavailable, "{error}");
    tokio::time::timeout(LONG, node.shutdown(LONG)).await.unwrap();
}

#[tokio::test]
async fn a_taken_port_is_named_with_its_setting() {
    let dir = tempfile::tempdir().unwrap();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let mut options = options(dir.path(), "");
    options.admin_addr = taken.local_addr().ok();
    let error = Node::start(options).await.unwrap_err();
    assert!(
        error.to_string().contains("is taken by another program"),
        "{error}"
    );
    assert!(error.to_string().contains("--admin"), "{error}");
}

#[tokio::test]
async fn a_chosen_lake_folder_must_be_there() {
    let dir = tempfile::tempdir().unwrap();
    let more = format!("lake = '{}'", dir.path().join("typo").display());
    let error = Node::start(options(dir.path(), &more)).await.unwrap_err();
    assert!(error.to_string().contains("is not there"), "{error}");
    assert!(!dir.path().join("typo").exists());
}

#[tokio::test]
async fn a_lake_around_the_data_folder_is_refused_because_it_would_serve_the_keys() {
    let dir = tempfile::tempdir().unwrap();
    let around = [
        format!("lake = '{}'", dir.path().display()),
        format!("lake = '{}'", dir.path().join("data").display()),
        format!("[[bucket]]\nname = 'all'\nlake = '{}'", dir.path().display()),
    ];
    for more in around {
        let error = Node::start(options(dir.path(), &more)).await.unwrap_err();
        assert_eq!(error.kind(), Kind::InvalidInput, "{more}");
        assert!(error.to_string().contains("--data"), "{error}");
        assert!(!KeyFile::path(&dir.path().join("data")).exists(), "{more}");
    }
}

#[test]
fn the_key_file_counts_only_while_no_key_is_configured() {
    let file = KeyFile {
        access_key_id: Some("fromfile".into()),
        secret_access_key: Some(forebay_core::Secret::new("s3cretfile")),
        admin_token: None,
    };
    assert!(format!("{:?}", access_keys(&[], &file)).contains("fromfile"));
    let configured = KeySettings {
        id: "fromconfig".into(),
        secret: forebay_core::Secret::new("s3cretconfig"),
        access: KeyAccess::ReadWrite,
        buckets: None,
    };
    let shown = format!("{:?}", access_keys(&[configured], &file));
    assert!(
        shown.contains("fromconfig") && !shown.contains("fromfile") && !shown.contains("s3cret"),
        "{shown}"
    );
}
