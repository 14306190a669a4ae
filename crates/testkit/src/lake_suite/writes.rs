//! Writes, attributes, keys, deletes.

use bytes::Bytes;
use forebay_core::Kind;
use forebay_lake::{Attributes, ListOptions, PutOptions};
use futures::future::join_all;

use super::{LakeFixture, full_attributes, kind_of};
use crate::patterned;

const MD5_OF_HELLO: &str = "5d41402abc4b2a76b9719d911017c592";
const MD5_OF_HELLO_BYTES: [u8; 16] = [
    0x5d, 0x41, 0x40, 0x2a, 0xbc, 0x4b, 0x2a, 0x76, 0xb9, 0x71, 0x9d, 0x91, 0x10, 0x17, 0xc5, 0x92,
];

pub(super) async fn overwrite_replaces_bytes_and_version(fixture: LakeFixture) {
    let old = fixture.put("k", "old").await;
    let new = fixture.put("k", "new and longer").await;
    assert_ne!(old.version, new.version);
    assert_eq!(fixture.read("k").await, "new and longer");
    assert_eq!(
        fixture.lake.head(&fixture.key("k")).await.unwrap().version,
        new.version
    );
}

pub(super) async fn etag_is_the_md5(fixture: LakeFixture) {
    if fixture.traits.exact_etags {
        assert_eq!(fixture.put("k", "hello").await.version.as_str(), MD5_OF_HELLO);
        assert_eq!(
            fixture.put("empty", "").await.version.as_str(),
            "d41d8cd98f00b204e9800998ecf8427e"
        );
    }
}

pub(super) async fn wrong_md5_leaves_nothing(fixture: LakeFixture) {
    let options = PutOptions {
        md5: Some(MD5_OF_HELLO_BYTES),
        ..PutOptions::default()
    };
    let put = fixture
        .lake
        .put(&fixture.key("new"), Bytes::from_static(b"other"), options.clone())
        .await;
    assert_eq!(kind_of(put), Some(Kind::Checksum));
    assert!(
        fixture.is_absent("new").await,
        "a refused write must not be visible"
    );

    fixture.put("k", "before").await;
    let put = fixture
        .lake
        .put(&fixture.key("k"), Bytes::from_static(b"other"), options)
        .await;
    assert_eq!(kind_of(put), Some(Kind::Checksum));
    assert_eq!(
        fixture.read("k").await,
        "before",
        "a refused overwrite must leave the old object"
    );
}

pub(super) async fn right_md5_is_accepted(fixture: LakeFixture) {
    let options = PutOptions {
        md5: Some(MD5_OF_HELLO_BYTES),
        ..PutOptions::default()
    };
    fixture
        .lake
        .put(&fixture.key("k"), Bytes::from_static(b"hello"), options)
        .await
        .unwrap();
    assert_eq!(fixture.read("k").await, "hello");
}

pub(super) async fn attributes_come_back(fixture: LakeFixture) {
    if !fixture.traits.attributes {
        return;
    }
    let options = PutOptions {
        attributes: full_attributes(),
        ..PutOptions::default()
    };
    fixture
        .lake
        .put(&fixture.key("k"), Bytes::from_static(b"x"), options)
        .await
        .unwrap();
    assert_eq!(
        fixture.lake.head(&fixture.key("k")).await.unwrap().attributes,
        full_attributes()
    );
}

pub(super) async fn overwrite_replaces_all_attributes(fixture: LakeFixture) {
    if !fixture.traits.attributes {
        return;
    }
    let options = PutOptions {
        attributes: full_attributes(),
        ..PutOptions::default()
    };
    fixture
        .lake
        .put(&fixture.key("k"), Bytes::from_static(b"x"), options)
        .await
        .unwrap();
    let attributes = Attributes {
        content_type: Some("text/plain".to_owned()),
        ..Attributes::default()
    };
    let options = PutOptions {
        attributes: attributes.clone(),
        ..PutOptions::default()
    };
    fixture
        .lake
        .put(&fixture.key("k"), Bytes::from_static(b"x"), options)
        .await
        .unwrap();
    assert_eq!(
        fixture.lake.head(&fixture.key("k")).await.unwrap().attributes,
        attributes
    );
}

pub(super) async fn attributes_may_be_given_at_finish(fixture: LakeFixture) {
    let mut writer = fixture
        .lake
        .writer(&fixture.key("k"), PutOptions::default(), None)
        .await
        .unwrap();
    writer.write(Bytes::from_static(b"x")).await.unwrap();
    if !fixture.traits.attributes || !writer.takes_attributes_at_finish() {
        return;
    }
    let options = PutOptions {
        attributes: full_attributes(),
        ..PutOptions::default()
    };
    writer.finish(options).await.unwrap();
    assert_eq!(
        fixture.lake.head(&fixture.key("k")).await.unwrap().attributes,
        full_attributes()
    );
}

pub(super) async fn writer_shows_nothing_before_finish(fixture: LakeFixture) {
    let mut writer = fixture
        .lake
        .writer(&fixture.key("k"), PutOptions::default(), None)
        .await
        .unwrap();
    writer.write(patterned(3 << 20, 1)).await.unwrap();
    assert!(fixture.is_absent("k").await);
    assert!(fixture.list(ListOptions::default()).await.objects.is_empty());
    writer.finish(PutOptions::default()).await.unwrap();
    assert!(fixture.read("k").await == patterned(3 << 20, 1));
}

pub(super) async fn dropped_writer_leaves_nothing(fixture: LakeFixture) {
    fixture.put("k", "before").await;
    let mut writer = fixture
        .lake
        .writer(&fixture.key("k"), PutOptions::default(), None)
        .await
        .unwrap();
    writer.write(patterned(3 << 20, 1)).await.unwrap();
    drop(writer);
    assert_eq!(fixture.read("k").await, "before");
}

pub(super) async fn aborted_writer_leaves_nothing(fixture: LakeFixture) {
    let mut writer = fixture
        .lake
        .writer(&fixture.key("k"), PutOptions::default(), None)
        .await
        .unwrap();
    writer.write(Bytes::from_static(b"half")).await.unwrap();
    writer.abort().await.unwrap();
    assert!(fixture.is_absent("k").await);
}

pub(super) async fn writer_takes_pieces_of_any_size(fixture: LakeFixture) {
    let body = patterned((6 << 20) + 11, 2);
    let mut writer = fixture
        .lake
        .writer(&fixture.key("k"), PutOptions::default(), None)
        .await
        .unwrap();
    let mut rest = body.clone();
    for bytes in [0, 1, 17, 70_000, 3 << 20, 1 << 20].into_iter().cycle() {
        if rest.is_empty() {
            break;
        }
        writer.write(rest.split_to(rest.len().min(bytes))).await.unwrap();
    }
    let receipt = writer.finish(PutOptions::default()).await.unwrap();
    assert!(fixture.read("k").await == body);
    assert_eq!(
        fixture.lake.head(&fixture.key("k")).await.unwrap().version,
        receipt.version
    );
}

pub(super) async fn odd_keys_are_kept_apart(fixture: LakeFixture) {
    let mut names = vec![
        "with space",
        "with%20escape",
        "plus+plus",
        "ünïcödé/☂",
        "quote\"'",
        "a..b",
        "...",
        "tilde~",
        "#hash?query",
        "semi;colon=1&2",
        "-dash",
        ".hidden",
        "UPPER",
        "upper",
        "new\tline",
        "a/b/c/d/e/f/g",
    ];
    if fixture.traits.plain_keys {
        names.push("back\\slash");
    }
    for (index, name) in names.iter().enumerate() {
        fixture.put(name, format!("body {index}")).await;
    }
    for (index, name) in names.iter().enumerate() {
        assert_eq!(fixture.read(name).await, format!("body {index}"), "{name}");
    }
    names.sort_unstable();
    assert_eq!(fixture.list(ListOptions::default()).await.objects, names);
}

pub(super) async fn long_key_is_kept(fixture: LakeFixture) {
    let room = 1000 - fixture.prefix.len();
    let name: String = "0123456789/".chars().cycle().take(room - room % 11 - 1).collect();
    fixture.put(&name, "far down").await;
    assert_eq!(fixture.read(&name).await, "far down");
    assert_eq!(fixture.list(ListOptions::default()).await.objects, [name]);
}

pub(super) async fn delete_removes(fixture: LakeFixture) {
    fixture.put("k", "x").await;
    fixture.lake.delete(&fixture.key("k")).await.unwrap();
    assert!(fixture.is_absent("k").await);
}

pub(super) async fn delete_of_nothing_is_fine(fixture: LakeFixture) {
    fixture.put("k/below", "x").await;
    for name in ["absent", "deep/absent", "k"] {
        let result = fixture.lake.delete(&fixture.key(name)).await;
        assert!(result.is_ok(), "delete of {name}: {result:?}");
    }
    assert_eq!(fixture.read("k/below").await, "x");
}

pub(super) async fn delete_leaves_neighbours(fixture: LakeFixture) {
    for name in ["dir/a", "dir/b", "dir-c"] {
        fixture.put(name, name).await;
    }
    fixture.lake.delete(&fixture.key("dir/a")).await.unwrap();
    assert_eq!(
        fixture.list(ListOptions::default()).await.objects,
        ["dir-c", "dir/b"]
    );
    fixture.lake.delete(&fixture.key("dir/b")).await.unwrap();
    fixture.put("dir", "a key where a folder was").await;
    assert_eq!(
        fixture.list(ListOptions::default()).await.objects,
        ["dir", "dir-c"]
    );
}

pub(super) async fn marker_keys_are_objects(fixture: LakeFixture) {
    if !fixture.traits.marker_keys {
        return;
    }
    fixture.put("dir/", Bytes::new()).await;
    fixture.put("dir/a", "x").await;
    assert_eq!(fixture.lake.head(&fixture.key("dir/")).await.unwrap().bytes, 0);
    assert_eq!(
        fixture.list(ListOptions::default()).await.objects,
        ["dir/", "dir/a"]
    );
    fixture.lake.delete(&fixture.key("dir/a")).await.unwrap();
    assert_eq!(
        fixture.list(ListOptions::default()).await.objects,
        ["dir/"],
        "a marker outlives its neighbours"
    );
    fixture.lake.delete(&fixture.key("dir/")).await.unwrap();
    assert_eq!(fixture.list(ListOptions::default()).await.objects, [""; 0]);
}

pub(super) async fn parallel_overwrites_leave_one_whole(fixture: LakeFixture) {
    let bodies: Vec<Bytes> = (0..8).map(|seed| patterned(300_000, seed)).collect();
    let receipts = join_all(bodies.iter().map(|body| fixture.put("k", body.clone()))).await;
    let head = fixture.lake.head(&fixture.key("k")).await.unwrap();
    let winner = fixture.read("k").await;
    let index = bodies
        .iter()
        .position(|body| *body == winner)
        .expect("one of the bodies, whole");
    assert_eq!(
        head.version, receipts[index].version,
        "the version belongs to the bytes"
    );
}
