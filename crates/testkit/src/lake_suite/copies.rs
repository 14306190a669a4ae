//! Copies inside the lake.

use bytes::Bytes;
use forebay_core::Kind;
use forebay_lake::{Attributes, CopyOptions, PutOptions};

use super::{LakeFixture, full_attributes, kind_of};
use crate::patterned;

async fn put_source(fixture: &LakeFixture) -> Bytes {
    let body = patterned((2 << 20) + 3, 1);
    let options = PutOptions {
        attributes: full_attributes(),
        ..PutOptions::default()
    };
    fixture
        .lake
        .put(&fixture.key("from"), body.clone(), options)
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

pub(super) async fn copy_keeps_bytes_and_attributes(fixture: LakeFixture) {
    let body = put_source(&fixture).await;
    let receipt = fixture
        .lake
        .copy(
            &fixture.key("from"),
            &fixture.key("deep/to"),
            CopyOptions::default(),
        )
        .await
        .unwrap();
    assert!(fixture.read("deep/to").await == body && fixture.read("from").await == body);
    let head = fixture.lake.head(&fixture.key("deep/to")).await.unwrap();
    assert_eq!(head.version, receipt.version);
    if fixture.traits.attributes {
        assert_eq!(head.attributes, full_attributes());
    }
    if fixture.traits.exact_etags {
        assert_eq!(
            head.version,
            fixture.lake.head(&fixture.key("from")).await.unwrap().version
        );
    }
}

pub(super) async fn copy_replaces_attributes(fixture: LakeFixture) {
    if !fixture.traits.copy_options {
        return;
    }
    let body = put_source(&fixture).await;
    let options = CopyOptions {
        attributes: Some(plain_text()),
        ..CopyOptions::default()
    };
    fixture
        .lake
        .copy(&fixture.key("from"), &fixture.key("to"), options)
        .await
        .unwrap();
    assert!(fixture.read("to").await == body);
    assert_eq!(
        fixture.lake.head(&fixture.key("to")).await.unwrap().attributes,
        plain_text()
    );
    assert_eq!(
        fixture.lake.head(&fixture.key("from")).await.unwrap().attributes,
        full_attributes()
    );
}

pub(super) async fn copy_onto_itself_changes_attributes(fixture: LakeFixture) {
    if !fixture.traits.copy_options {
        return;
    }
    let body = put_source(&fixture).await;
    let options = CopyOptions {
        attributes: Some(plain_text()),
        ..CopyOptions::default()
    };
    fixture
        .lake
        .copy(&fixture.key("from"), &fixture.key("from"), options)
        .await
        .unwrap();
    assert!(fixture.read("from").await == body);
    assert_eq!(
        fixture.lake.head(&fixture.key("from")).await.unwrap().attributes,
        plain_text()
    );
}

pub(super) async fn copy_of_nothing_is_not_found(fixture: LakeFixture) {
    let result = fixture
        .lake
        .copy(&fixture.key("absent"), &fixture.key("to"), CopyOptions::default())
        .await;
    assert_eq!(kind_of(result), Some(Kind::NotFound));
    assert!(fixture.is_absent("to").await);
}

pub(super) async fn copy_of_another_version_is_changed(fixture: LakeFixture) {
    if !fixture.traits.copy_options {
        return;
    }
    let old = fixture.put("from", "old").await.version;
    let new = fixture.put("from", "new").await.version;
    let pinned = |version| CopyOptions {
        if_match: Some(version),
        ..CopyOptions::default()
    };
    let result = fixture
        .lake
        .copy(&fixture.key("from"), &fixture.key("to"), pinned(old))
        .await;
    assert_eq!(kind_of(result), Some(Kind::Changed));
    assert!(fixture.is_absent("to").await);
    fixture
        .lake
        .copy(&fixture.key("from"), &fixture.key("to"), pinned(new))
        .await
        .unwrap();
    assert_eq!(fixture.read("to").await, "new");
}

pub(super) async fn copy_overwrites(fixture: LakeFixture) {
    fixture.put("from", "source").await;
    fixture.put("to", "old target").await;
    fixture
        .lake
        .copy(&fixture.key("from"), &fixture.key("to"), CopyOptions::default())
        .await
        .unwrap();
    assert_eq!(fixture.read("to").await, "source");
}
