//! Copies inside the lake.

use bytes::Bytes;
use forebay_core::Kind;
use forebay_lake::{Attributes, CopyOptions, PutOptions};

use super::{Bench, full_attributes, kind_of};
use crate::patterned;

async fn put_source(bench: &Bench) -> Bytes {
    let body = patterned((2 << 20) + 3, 1);
    let options = PutOptions {
        attributes: full_attributes(),
        ..PutOptions::default()
    };
    bench
        .lake
        .put(&bench.key("from"), body.clone(), options)
        .await
        .unwrap();
    body
}

fn plain_text() -> Attributes {
    Attributes {
        content_type: Some("text/plain".to_owned()),
        ..Attributes::default()
    }
}

pub(super) async fn copy_keeps_bytes_and_attributes(bench: Bench) {
    let body = put_source(&bench).await;
    let receipt = bench
        .lake
        .copy(&bench.key("from"), &bench.key("deep/to"), CopyOptions::default())
        .await
        .unwrap();
    assert!(bench.read("deep/to").await == body && bench.read("from").await == body);
    let head = bench.lake.head(&bench.key("deep/to")).await.unwrap();
    assert_eq!(head.version, receipt.version);
    if bench.traits.attributes {
        assert_eq!(head.attributes, full_attributes());
    }
    if bench.traits.exact_etags {
        assert_eq!(
            head.version,
            bench.lake.head(&bench.key("from")).await.unwrap().version
        );
    }
}

pub(super) async fn copy_replaces_attributes(bench: Bench) {
    if !bench.traits.copy_options {
        return;
    }
    let body = put_source(&bench).await;
    let options = CopyOptions {
        attributes: Some(plain_text()),
        ..CopyOptions::default()
    };
    bench
        .lake
        .copy(&bench.key("from"), &bench.key("to"), options)
        .await
        .unwrap();
    assert!(bench.read("to").await == body);
    assert_eq!(
        bench.lake.head(&bench.key("to")).await.unwrap().attributes,
        plain_text()
    );
    assert_eq!(
        bench.lake.head(&bench.key("from")).await.unwrap().attributes,
        full_attributes()
    );
}

pub(super) async fn copy_onto_itself_changes_attributes(bench: Bench) {
    if !bench.traits.copy_options {
        return;
    }
    let body = put_source(&bench).await;
    let options = CopyOptions {
        attributes: Some(plain_text()),
        ..CopyOptions::default()
    };
    bench
        .lake
        .copy(&bench.key("from"), &bench.key("from"), options)
        .await
        .unwrap();
    assert!(bench.read("from").await == body);
    assert_eq!(
        bench.lake.head(&bench.key("from")).await.unwrap().attributes,
        plain_text()
    );
}

pub(super) async fn copy_of_nothing_is_not_found(bench: Bench) {
    let result = bench
        .lake
        .copy(&bench.key("absent"), &bench.key("to"), CopyOptions::default())
        .await;
    assert_eq!(kind_of(result), Some(Kind::NotFound));
    assert!(bench.is_absent("to").await);
}

pub(super) async fn copy_of_another_version_is_changed(bench: Bench) {
    if !bench.traits.copy_options {
        return;
    }
    let old = bench.put("from", "old").await.version;
    let new = bench.put("from", "new").await.version;
    let pinned = |version| CopyOptions {
        if_match: Some(version),
        ..CopyOptions::default()
    };
    let result = bench
        .lake
        .copy(&bench.key("from"), &bench.key("to"), pinned(old))
        .await;
    assert_eq!(kind_of(result), Some(Kind::Changed));
    assert!(bench.is_absent("to").await);
    bench
        .lake
        .copy(&bench.key("from"), &bench.key("to"), pinned(new))
        .await
        .unwrap();
    assert_eq!(bench.read("to").await, "new");
}

pub(super) async fn copy_overwrites(bench: Bench) {
    bench.put("from", "source").await;
    bench.put("to", "old target").await;
    bench
        .lake
        .copy(&bench.key("from"), &bench.key("to"), CopyOptions::default())
        .await
        .unwrap();
    assert_eq!(bench.read("to").await, "source");
}
