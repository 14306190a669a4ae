//! Lakes that URLs become.

use super::*;

fn no_env(_: &str) -> Option<String> {
    None
}

fn keys() -> OpenOptions {
    OpenOptions {
        access_key_id: Some("id".into()),
        secret_access_key: Some("hunter2".into()),
        ..OpenOptions::default()
    }
}

fn location(rest: &str, options: &OpenOptions, env: &impl Fn(&str) -> Option<String>) -> BucketLocation {
    location_of(&CloudUrl::parse(rest).unwrap(), options, &Profile::default(), env).unwrap()
}

#[tokio::test]
async fn a_wrong_url_says_what_is_accepted() {
    for url in [
        "http://host/x",
        "s3://",
        "s3://a b/x",
        "file://host/x",
        "",
        "s3://id:key@bucket",
    ] {
        let error = open_with(url, &keys(), &no_env).await.unwrap_err();
        assert_eq!(error.kind(), Kind::InvalidInput, "{url}: {error}");
        assert!(error.to_string().contains("s3://bucket"), "{url}: {error}");
    }
    let error = open_with("s3://b?secret=x", &keys(), &no_env).await.unwrap_err();
    assert!(error.to_string().contains("endpoint, region"), "{error}");
}

#[test]
fn a_url_says_how_slow_a_lake_is() {
    let (url, slow) = split_throttle("file:///lake?latency_ms=20&bytes_per_s=1000").unwrap();
    let slow = slow.unwrap();
    assert_eq!(url, "file:///lake");
    assert_eq!(
        (slow.latency, slow.bytes_per_s),
        (Duration::from_millis(20), Some(1000))
    );
    let (url, slow) = split_throttle("s3://b/p?endpoint=http%3A%2F%2Fh%3A1&style=path").unwrap();
    assert_eq!(url, "s3://b/p?endpoint=http%3A%2F%2Fh%3A1&style=path");
    assert!(slow.is_none());
    for wrong in ["file:///lake?latency_ms=soon", "file:///lake?bytes_per_s=0"] {
        assert_eq!(split_throttle(wrong).unwrap_err().kind(), Kind::InvalidInput);
    }
}

#[tokio::test]
async fn keys_show_neither_in_the_url_nor_in_debug_output() {
    let options = keys();
    let lake = open_with(
        "s3://bucket/some/prefix?endpoint=http://127.0.0.1:1",
        &options,
        &no_env,
    )
    .await
    .unwrap();
    assert_eq!(lake.url(), "s3://bucket/some/prefix/");
    for text in [format!("{lake:?}"), format!("{options:?}")] {
        assert!(!text.contains("hunter2"), "{text}");
    }
}

#[test]
fn amazon_is_addressed_by_host_and_others_by_path() {
    let amazon = location("bucket?region=eu-west-1", &keys(), &no_env);
    assert_eq!(amazon.endpoint.to_string(), "https://s3.eu-west-1.amazonaws.com/");
    assert_eq!(amazon.style, AddressStyle::Virtual);
    assert_eq!(location("my.bucket", &keys(), &no_env).style, AddressStyle::Path);
    let other = location("bucket?endpoint=http://127.0.0.1:8333", &keys(), &no_env);
    assert_eq!(
        (other.style, other.region.as_str()),
        (AddressStyle::Path, "us-east-1")
    );
    let chosen = location("bucket?endpoint=http://h&style=virtual", &keys(), &no_env);
    assert_eq!(chosen.style, AddressStyle::Virtual);
}

#[test]
fn options_rank_before_the_url_and_the_url_before_the_environment() {
    let env = |name: &str| (name == "AWS_REGION").then(|| "from-env".to_owned());
    let options = OpenOptions {
        region: Some("from-options".into()),
        ..keys()
    };
    assert_eq!(
        location("b?region=from-url", &options, &env).region,
        "from-options"
    );
    assert_eq!(location("b?region=from-url", &keys(), &env).region, "from-url");
    assert_eq!(location("b", &keys(), &env).region, "from-env");
}

#[test]
fn an_endpoint_with_a_path_or_keys_is_refused() {
    for text in ["ftp://h", "http://id:key@h", "http://h/path", "h:80", "http://"] {
        assert_eq!(
            endpoint_of(text).unwrap_err().kind(),
            Kind::InvalidInput,
            "{text}"
        );
    }
    assert!(endpoint_of("http://127.0.0.1:8333/").is_ok());
}

#[tokio::test]
async fn half_a_key_is_refused() {
    let options = OpenOptions {
        access_key_id: Some("id".into()),
        ..OpenOptions::default()
    };
    let error = open_with("s3://bucket", &options, &no_env).await.unwrap_err();
    assert!(error.to_string().contains("go together"), "{error}");
}

#[tokio::test]
async fn folders_are_opened_by_path_and_by_url() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("a b")).unwrap();
    let path = folder.path().join("a b").display().to_string();
    for url in [path.clone(), format!("file://{}", path.replace(' ', "%20"))] {
        let lake = open_with(&url, &OpenOptions::default(), &no_env).await.unwrap();
        assert!(lake.url().ends_with("a b"), "{}", lake.url());
    }
    let missing = open_with("/no/such/folder", &OpenOptions::default(), &no_env)
        .await
        .unwrap_err();
    assert_eq!(missing.kind(), Kind::NotFound);
}
