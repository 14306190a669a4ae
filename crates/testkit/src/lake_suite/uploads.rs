//! Multipart uploads.

use bytes::Bytes;
use forebay_core::{Kind, Result};
use forebay_lake::{Attributes, ListOptions, PartReceipt, PutMode, PutOptions, UploadId};
use futures::StreamExt;
use futures::stream::iter;

use super::{Bench, full_attributes, kind_of};
use crate::patterned;

async fn start(bench: &Bench) -> UploadId {
    bench
        .lake
        .start_upload(&bench.key("k"), Attributes::default())
        .await
        .unwrap()
}

async fn try_part(bench: &Bench, upload: &UploadId, number: u16, body: &Bytes) -> Result<PartReceipt> {
    let pieces: Vec<Result<Bytes>> = body
        .chunks(700_001)
        .map(|piece| Ok(body.slice_ref(piece)))
        .collect();
    let stream = iter(pieces).boxed();
    bench
        .lake
        .upload_part(&bench.key("k"), upload, number, body.len() as u64, stream)
        .await
}

async fn part(bench: &Bench, upload: &UploadId, number: u16, body: &Bytes) -> PartReceipt {
    let receipt = try_part(bench, upload, number, body).await;
    let receipt = receipt.unwrap_or_else(|error| panic!("part {number}: {error:?}"));
    assert_eq!((receipt.number, receipt.bytes), (number, body.len() as u64));
    receipt
}

async fn complete(bench: &Bench, upload: &UploadId, parts: &[PartReceipt]) {
    let result = bench
        .lake
        .complete_upload(&bench.key("k"), upload, parts, PutOptions::default())
        .await;
    let receipt = result.unwrap_or_else(|error| panic!("complete: {error:?}"));
    assert_eq!(
        bench.lake.head(&bench.key("k")).await.unwrap().version,
        receipt.version
    );
}

pub(super) async fn upload_joins_its_parts(bench: Bench) {
    let upload = start(&bench).await;
    let bodies = [
        patterned(bench.part_bytes(), 1),
        patterned(bench.part_bytes(), 2),
        patterned(100, 3),
    ];
    // Out of order, as parallel uploads come in.
    let third = part(&bench, &upload, 3, &bodies[2]).await;
    let first = part(&bench, &upload, 1, &bodies[0]).await;
    let second = part(&bench, &upload, 2, &bodies[1]).await;
    complete(&bench, &upload, &[first, second, third]).await;
    assert!(bench.read("k").await == bodies.concat());
    if bench.traits.exact_etags {
        let version = bench.lake.head(&bench.key("k")).await.unwrap().version;
        assert!(
            version.as_str().len() == 34 && version.as_str().ends_with("-3"),
            "{version} is a multipart etag"
        );
    }
}

pub(super) async fn upload_takes_numbers_with_gaps(bench: Bench) {
    let upload = start(&bench).await;
    let bodies = [patterned(bench.part_bytes(), 1), patterned(10, 2)];
    let parts = [
        part(&bench, &upload, 7, &bodies[0]).await,
        part(&bench, &upload, 10_000, &bodies[1]).await,
    ];
    complete(&bench, &upload, &parts).await;
    assert!(bench.read("k").await == bodies.concat());
}

pub(super) async fn part_again_replaces_it(bench: Bench) {
    let upload = start(&bench).await;
    part(&bench, &upload, 1, &patterned(bench.part_bytes() + 1000, 1)).await;
    let body = patterned(bench.part_bytes(), 2);
    let again = part(&bench, &upload, 1, &body).await;
    complete(&bench, &upload, &[again]).await;
    assert!(bench.read("k").await == body);
}

pub(super) async fn nothing_is_visible_before_completion(bench: Bench) {
    let upload = start(&bench).await;
    let receipt = part(&bench, &upload, 1, &patterned(1000, 1)).await;
    assert!(bench.is_absent("k").await);
    assert!(bench.list(ListOptions::default()).await.objects.is_empty());
    complete(&bench, &upload, &[receipt]).await;
    assert_eq!(bench.list(ListOptions::default()).await.objects, ["k"]);
}

pub(super) async fn upload_attributes_are_kept(bench: Bench) {
    if !bench.traits.attributes {
        return;
    }
    let upload = bench
        .lake
        .start_upload(&bench.key("k"), full_attributes())
        .await
        .unwrap();
    let receipt = part(&bench, &upload, 1, &patterned(1000, 1)).await;
    complete(&bench, &upload, &[receipt]).await;
    assert_eq!(
        bench.lake.head(&bench.key("k")).await.unwrap().attributes,
        full_attributes()
    );
}

pub(super) async fn aborted_upload_is_gone(bench: Bench) {
    let upload = start(&bench).await;
    let receipt = part(&bench, &upload, 1, &patterned(1000, 1)).await;
    bench.lake.abort_upload(&bench.key("k"), &upload).await.unwrap();
    if bench.traits.strict_uploads {
        let result = bench
            .lake
            .complete_upload(&bench.key("k"), &upload, &[receipt], PutOptions::default())
            .await;
        assert_eq!(kind_of(result), Some(Kind::NotFound));
        let late = try_part(&bench, &upload, 2, &patterned(10, 2)).await;
        assert_eq!(kind_of(late), Some(Kind::NotFound));
    }
    assert!(bench.is_absent("k").await);
}

pub(super) async fn abort_of_nothing_is_fine(bench: Bench) {
    let upload = start(&bench).await;
    for _ in 0..2 {
        bench.lake.abort_upload(&bench.key("k"), &upload).await.unwrap();
    }
    if bench.traits.strict_uploads {
        bench
            .lake
            .abort_upload(&bench.key("k"), &UploadId("../../escape".to_owned()))
            .await
            .unwrap();
    }
}

pub(super) async fn completion_names_only_some_parts(bench: Bench) {
    let upload = start(&bench).await;
    let bodies = [patterned(bench.part_bytes(), 1), patterned(100, 2)];
    let first = part(&bench, &upload, 1, &bodies[0]).await;
    part(&bench, &upload, 2, &patterned(bench.part_bytes(), 9)).await;
    let third = part(&bench, &upload, 3, &bodies[1]).await;
    complete(&bench, &upload, &[first, third]).await;
    assert!(bench.read("k").await == bodies.concat());
}

pub(super) async fn wrong_part_etag_is_refused(bench: Bench) {
    if !bench.traits.strict_uploads {
        return;
    }
    let upload = start(&bench).await;
    let right = part(&bench, &upload, 1, &patterned(1000, 1)).await;
    let wrong = PartReceipt {
        etag: "00000000000000000000000000000000".to_owned(),
        ..right.clone()
    };
    let absent = PartReceipt {
        number: 2,
        ..right.clone()
    };
    for parts in [vec![wrong], vec![right.clone(), absent]] {
        let result = bench
            .lake
            .complete_upload(&bench.key("k"), &upload, &parts, PutOptions::default())
            .await;
        assert_eq!(kind_of(result), Some(Kind::InvalidInput));
    }
    assert!(bench.is_absent("k").await);
    complete(&bench, &upload, &[right]).await;
}

pub(super) async fn parts_out_of_order_are_refused(bench: Bench) {
    if !bench.traits.strict_uploads {
        return;
    }
    let upload = start(&bench).await;
    let first = part(&bench, &upload, 1, &patterned(bench.part_bytes(), 1)).await;
    let second = part(&bench, &upload, 2, &patterned(bench.part_bytes(), 2)).await;
    for parts in [vec![second, first.clone()], vec![first.clone(), first], vec![]] {
        let result = bench
            .lake
            .complete_upload(&bench.key("k"), &upload, &parts, PutOptions::default())
            .await;
        assert_eq!(kind_of(result), Some(Kind::InvalidInput));
    }
}

pub(super) async fn wrong_part_size_is_refused(bench: Bench) {
    if !bench.traits.strict_uploads {
        return;
    }
    let upload = start(&bench).await;
    for announced in [5, 15] {
        let stream = iter([Ok(Bytes::from_static(b"ten bytes!"))]).boxed();
        let result = bench
            .lake
            .upload_part(&bench.key("k"), &upload, 1, announced, stream)
            .await;
        assert_eq!(kind_of(result), Some(Kind::InvalidInput), "announced {announced}");
    }
    for number in [0, 10_001] {
        let result = try_part(&bench, &upload, number, &Bytes::from_static(b"x")).await;
        assert_eq!(kind_of(result), Some(Kind::InvalidInput), "part {number}");
    }
}

pub(super) async fn uploads_of_one_key_are_apart(bench: Bench) {
    let (one, two) = (start(&bench).await, start(&bench).await);
    assert_ne!(one, two);
    let first = part(&bench, &one, 1, &Bytes::from_static(b"one")).await;
    let second = part(&bench, &two, 1, &Bytes::from_static(b"two")).await;
    complete(&bench, &two, &[second]).await;
    assert_eq!(bench.read("k").await, "two");
    complete(&bench, &one, &[first]).await;
    assert_eq!(bench.read("k").await, "one");
}

pub(super) async fn completion_may_be_conditional(bench: Bench) {
    if !bench.traits.conditional_complete {
        return;
    }
    let upload = start(&bench).await;
    let parts = [part(&bench, &upload, 1, &Bytes::from_static(b"joined")).await];
    bench.put("k", "already here").await;
    let create = PutOptions {
        mode: PutMode::Create,
        ..PutOptions::default()
    };
    let refused = bench
        .lake
        .complete_upload(&bench.key("k"), &upload, &parts, create.clone())
        .await;
    assert_eq!(kind_of(refused), Some(Kind::AlreadyExists));
    assert_eq!(bench.read("k").await, "already here");
    bench.lake.delete(&bench.key("k")).await.unwrap();
    bench
        .lake
        .complete_upload(&bench.key("k"), &upload, &parts, create)
        .await
        .unwrap();
    assert_eq!(bench.read("k").await, "joined");
}
