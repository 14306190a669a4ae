//! Writes, attributes, keys, deletes.

use bytes::Bytes;
use forebay_core::Kind;
use forebay_lake::{Attributes, ListOptions, PutOptions};
use futures::future::join_all;

use super::{Bench, full_attributes, kind_of};
use crate::patterned;

const MD5_OF_HELLO: &str = "5d41402abc4b2a76b9719d911017c592";
const MD5_OF_HELLO_BYTES: [u8; 16] = [
    0x5d, 0x41, 0x40, 0x2a, 0xbc, 0x4b, 0x2a, 0x76, 0xb9, 0x71, 0x9d, 0x91, 0x10, 0x17, 0xc5, 0x92,
];

pub(super) async fn overwrite_replaces_bytes_and_version(bench: Bench) {
    let old = bench.put("k", "old").await;
    let new = bench.put("k", "new and longer").await;
    assert_ne!(old.version, new.version);
    assert_eq!(bench.read("k").await, "new and longer");
    assert_eq!(
        bench.lake.head(&bench.key("k")).await.unwrap().version,
        new.version
    );
}

pub(super) async fn etag_is_the_md5(bench: Bench) {
    if bench.traits.exact_etags {
        assert_eq!(bench.put("k", "hello").await.version.as_str(), MD5_OF_HELLO);
        assert_eq!(
            bench.put("empty", "").await.version.as_str(),
            "d41d8cd98f00b204e9800998ecf8427e"
        );
    }
}

pub(super) async fn wrong_md5_leaves_nothing(bench: Bench) {
    let options = PutOptions {
        md5: Some(MD5_OF_HELLO_BYTES),
        ..PutOptions::default()
    };
    let put = bench
        .lake
        .put(&bench.key("new"), Bytes::from_static(b"other"), options.clone())
        .await;
    assert_eq!(kind_of(put), Some(Kind::Checksum));
    assert!(
        bench.is_absent("new").await,
        "a refused write must not be visible"
    );

    bench.put("k", "before").await;
    let put = bench
        .lake
        .put(&bench.key("k"), Bytes::from_static(b"other"), options)
        .await;
    assert_eq!(kind_of(put), Some(Kind::Checksum));
    assert_eq!(
        bench.read("k").await,
        "before",
        "a refused overwrite must leave the old object"
    );
}

pub(super) async fn right_md5_is_accepted(bench: Bench) {
    let options = PutOptions {
        md5: Some(MD5_OF_HELLO_BYTES),
        ..PutOptions::default()
    };
    bench
        .lake
        .put(&bench.key("k"), Bytes::from_static(b"hello"), options)
        .await
        .unwrap();
    assert_eq!(bench.read("k").await, "hello");
}

pub(super) async fn attributes_come_back(bench: Bench) {
    if !bench.traits.attributes {
        return;
    }
    let options = PutOptions {
        attributes: full_attributes(),
        ..PutOptions::default()
    };
    bench
        .lake
        .put(&bench.key("k"), Bytes::from_static(b"x"), options)
        .await
        .unwrap();
    assert_eq!(
        bench.lake.head(&bench.key("k")).await.unwrap().attributes,
        full_attributes()
    );
}

pub(super) async fn overwrite_replaces_all_attributes(bench: Bench) {
    if !bench.traits.attributes {
        return;
    }
    let options = PutOptions {
        attributes: full_attributes(),
        ..PutOptions::default()
    };
    bench
        .lake
        .put(&bench.key("k"), Bytes::from_static(b"x"), options)
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
    bench
        .lake
        .put(&bench.key("k"), Bytes::from_static(b"x"), options)
        .await
        .unwrap();
    assert_eq!(
        bench.lake.head(&bench.key("k")).await.unwrap().attributes,
        attributes
    );
}

pub(super) async fn attributes_may_be_given_at_finish(bench: Bench) {
    let mut writer = bench
        .lake
        .writer(&bench.key("k"), PutOptions::default(), None)
        .await
        .unwrap();
    writer.write(Bytes::from_static(b"x")).await.unwrap();
    if !bench.traits.attributes || !writer.takes_attributes_at_finish() {
        return;
    }
    let options = PutOptions {
        attributes: full_attributes(),
        ..PutOptions::default()
    };
    writer.finish(options).await.unwrap();
    assert_eq!(
        bench.lake.head(&bench.key("k")).await.unwrap().attributes,
        full_attributes()
    );
}

pub(super) async fn writer_shows_nothing_before_finish(bench: Bench) {
    let mut writer = bench
        .lake
        .writer(&bench.key("k"), PutOptions::default(), None)
        .await
        .unwrap();
    writer.write(patterned(3 << 20, 1)).await.unwrap();
    assert!(bench.is_absent("k").await);
    assert!(bench.list(ListOptions::default()).await.objects.is_empty());
    writer.finish(PutOptions::default()).await.unwrap();
    assert!(bench.read("k").await == patterned(3 << 20, 1));
}

pub(super) async fn dropped_writer_leaves_nothing(bench: Bench) {
    bench.put("k", "before").await;
    let mut writer = bench
        .lake
        .writer(&bench.key("k"), PutOptions::default(), None)
        .await
        .unwrap();
    writer.write(patterned(3 << 20, 1)).await.unwrap();
    drop(writer);
    assert_eq!(bench.read("k").await, "before");
}

pub(super) async fn aborted_writer_leaves_nothing(bench: Bench) {
    let mut writer = bench
        .lake
        .writer(&bench.key("k"), PutOptions::default(), None)
        .await
        .unwrap();
    writer.write(Bytes::from_static(b"half")).await.unwrap();
    writer.abort().await.unwrap();
    assert!(bench.is_absent("k").await);
}

pub(super) async fn writer_takes_pieces_of_any_size(bench: Bench) {
    let body = patterned((6 << 20) + 11, 2);
    let mut writer = bench
        .lake
        .writer(&bench.key("k"), PutOptions::default(), None)
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
    assert!(bench.read("k").await == body);
    assert_eq!(
        bench.lake.head(&bench.key("k")).await.unwrap().version,
        receipt.version
    );
}

pub(super) async fn odd_keys_are_kept_apart(bench: Bench) {
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
    if bench.traits.plain_keys {
        names.push("back\\slash");
    }
    for (index, name) in names.iter().enumerate() {
        bench.put(name, format!("body {index}")).await;
    }
    for (index, name) in names.iter().enumerate() {
        assert_eq!(bench.read(name).await, format!("body {index}"), "{name}");
    }
    names.sort_unstable();
    assert_eq!(bench.list(ListOptions::default()).await.objects, names);
}

pub(super) async fn long_key_is_kept(bench: Bench) {
    let room = 1000 - bench.prefix.len();
    let name: String = "0123456789/".chars().cycle().take(room - room % 11 - 1).collect();
    bench.put(&name, "far down").await;
    assert_eq!(bench.read(&name).await, "far down");
    assert_eq!(bench.list(ListOptions::default()).await.objects, [name]);
}

pub(super) async fn delete_removes(bench: Bench) {
    bench.put("k", "x").await;
    bench.lake.delete(&bench.key("k")).await.unwrap();
    assert!(bench.is_absent("k").await);
}

pub(super) async fn delete_of_nothing_is_fine(bench: Bench) {
    bench.put("k/below", "x").await;
    for name in ["absent", "deep/absent", "k"] {
        let result = bench.lake.delete(&bench.key(name)).await;
        assert!(result.is_ok(), "delete of {name}: {result:?}");
    }
    assert_eq!(bench.read("k/below").await, "x");
}

pub(super) async fn delete_leaves_neighbours(bench: Bench) {
    for name in ["dir/a", "dir/b", "dir-c"] {
        bench.put(name, name).await;
    }
    bench.lake.delete(&bench.key("dir/a")).await.unwrap();
    assert_eq!(
        bench.list(ListOptions::default()).await.objects,
        ["dir-c", "dir/b"]
    );
    bench.lake.delete(&bench.key("dir/b")).await.unwrap();
    bench.put("dir", "a key where a folder was").await;
    assert_eq!(bench.list(ListOptions::default()).await.objects, ["dir", "dir-c"]);
}

pub(super) async fn marker_keys_are_objects(bench: Bench) {
    if !bench.traits.marker_keys {
        return;
    }
    bench.put("dir/", Bytes::new()).await;
    bench.put("dir/a", "x").await;
    assert_eq!(bench.lake.head(&bench.key("dir/")).await.unwrap().bytes, 0);
    assert_eq!(
        bench.list(ListOptions::default()).await.objects,
        ["dir/", "dir/a"]
    );
    bench.lake.delete(&bench.key("dir/a")).await.unwrap();
    assert_eq!(
        bench.list(ListOptions::default()).await.objects,
        ["dir/"],
        "a marker outlives its neighbours"
    );
    bench.lake.delete(&bench.key("dir/")).await.unwrap();
    assert_eq!(bench.list(ListOptions::default()).await.objects, [""; 0]);
}

pub(super) async fn parallel_overwrites_leave_one_whole(bench: Bench) {
    let bodies: Vec<Bytes> = (0..8).map(|seed| patterned(300_000, seed)).collect();
    let receipts = join_all(bodies.iter().map(|body| bench.put("k", body.clone()))).await;
    let head = bench.lake.head(&bench.key("k")).await.unwrap();
    let winner = bench.read("k").await;
    let index = bodies
        .iter()
        .position(|body| *body == winner)
        .expect("one of the bodies, whole");
    assert_eq!(
        head.version, receipts[index].version,
        "the version belongs to the bytes"
    );
}
