//! Multipart uploads.

use bytes::Bytes;
use forebay_core::{Kind, Result};
use forebay_lake::{Attributes, ListOptions, PartReceipt, PutMode, PutOptions, UploadId};
use futures::StreamExt;
use futures::stream::iter;

use super::{LakeFixture, full_attributes, kind_of};
use crate::patterned;

async fn start(fixture: &LakeFixture) -> UploadId {
    fixture
        .lake
        .start_upload(&fixture.key("k"), Attributes::default())
        .await
        .unwrap()
}

async fn try_part(
    fixture: &LakeFixture,
    upload: &UploadId,
    number: u16,
    body: &Bytes,
) -> Result<PartReceipt> {
    let pieces: Vec<Result<Bytes>> = body
        .chunks(700_001)
        .map(|piece| Ok(body.slice_ref(piece)))
        .collect();
    let stream = iter(pieces).boxed();
    fixture
        .lake
        .upload_part(&fixture.key("k"), upload, number, body.len() as u64, stream)
        .await
}

async fn part(fixture: &LakeFixture, upload: &UploadId, number: u16, body: &Bytes) -> PartReceipt {
    let receipt = try_part(fixture, upload, number, body).await;
    let receipt = receipt.unwrap_or_else(|error| panic!("part {number}: {error:?}"));
    assert_eq!((receipt.number, receipt.bytes), (number, body.len() as u64));
    receipt
}

async fn complete(fixture: &LakeFixture, upload: &UploadId, parts: &[PartReceipt]) {
    let result = fixture
        .lake
        .complete_upload(&fixture.key("k"), upload, parts, PutOptions::default())
        .await;
    let receipt = result.unwrap_or_else(|error| panic!("complete: {error:?}"));
    assert_eq!(
        fixture.lake.head(&fixture.key("k")).await.unwrap().version,
        receipt.version
    );
}

pub(super) async fn upload_joins_its_parts(fixture: LakeFixture) {
    let upload = start(&fixture).await;
    let bodies = [
        patterned(fixture.part_bytes(), 1),
        patterned(fixture.part_bytes(), 2),
        patterned(100, 3),
    ];
    // Out of order, as parallel uploads come in.
    let third = part(&fixture, &upload, 3, &bodies[2]).await;
    let first = part(&fixture, &upload, 1, &bodies[0]).await;
    let second = part(&fixture, &upload, 2, &bodies[1]).await;
    complete(&fixture, &upload, &[first, second, third]).await;
    assert!(fixture.read("k").await == bodies.concat());
    if fixture.traits.exact_etags {
        let version = fixture.lake.head(&fixture.key("k")).await.unwrap().version;
        assert!(
            version.as_str().len() == 34 && version.as_str().ends_with("-3"),
            "{version} is a multipart etag"
        );
    }
}

pub(super) async fn upload_takes_numbers_with_gaps(fixture: LakeFixture) {
    let upload = start(&fixture).await;
    let bodies = [patterned(fixture.part_bytes(), 1), patterned(10, 2)];
    let parts = [
        part(&fixture, &upload, 7, &bodies[0]).await,
        part(&fixture, &upload, 10_000, &bodies[1]).await,
    ];
    complete(&fixture, &upload, &parts).await;
    assert!(fixture.read("k").await == bodies.concat());
}

pub(super) async fn part_again_replaces_it(fixture: LakeFixture) {
    let upload = start(&fixture).await;
    part(&fixture, &upload, 1, &patterned(fixture.part_bytes() + 1000, 1)).await;
    let body = patterned(fixture.part_bytes(), 2);
    let again = part(&fixture, &upload, 1, &body).await;
    complete(&fixture, &upload, &[again]).await;
    assert!(fixture.read("k").await == body);
}

pub(super) async fn nothing_is_visible_before_completion(fixture: LakeFixture) {
    let upload = start(&fixture).await;
    let receipt = part(&fixture, &upload, 1, &patterned(1000, 1)).await;
    assert!(fixture.is_absent("k").await);
    assert!(fixture.list(ListOptions::default()).await.objects.is_empty());
    complete(&fixture, &upload, &[receipt]).await;
    assert_eq!(fixture.list(ListOptions::default()).await.objects, ["k"]);
}

pub(super) async fn upload_attributes_are_kept(fixture: LakeFixture) {
    if !fixture.traits.attributes {
        return;
    }
    let upload = fixture
        .lake
        .start_upload(&fixture.key("k"), full_attributes())
        .await
        .unwrap();
    let receipt = part(&fixture, &upload, 1, &patterned(1000, 1)).await;
    complete(&fixture, &upload, &[receipt]).await;
    assert_eq!(
        fixture.lake.head(&fixture.key("k")).await.unwrap().attributes,
        full_attributes()
    );
}

pub(super) async fn aborted_upload_is_gone(fixture: LakeFixture) {
    let upload = start(&fixture).await;
    let receipt = part(&fixture, &upload, 1, &patterned(1000, 1)).await;
    fixture
        .lake
        .abort_upload(&fixture.key("k"), &upload)
        .await
        .unwrap();
    if fixture.traits.strict_uploads {
        let result = fixture
            .lake
            .complete_upload(&fixture.key("k"), &upload, &[receipt], PutOptions::default())
            .await;
        assert_eq!(kind_of(result), Some(Kind::NotFound));
        let late = try_part(&fixture, &upload, 2, &patterned(10, 2)).await;
        assert_eq!(kind_of(late), Some(Kind::NotFound));
    }
    assert!(fixture.is_absent("k").await);
}

pub(super) async fn abort_of_nothing_is_fine(fixture: LakeFixture) {
    let upload = start(&fixture).await;
    for _ in 0..2 {
        fixture
            .lake
            .abort_upload(&fixture.key("k"), &upload)
            .await
            .unwrap();
    }
    if fixture.traits.strict_uploads {
        fixture
            .lake
            .abort_upload(&fixture.key("k"), &UploadId("../../escape".to_owned()))
            .await
            .unwrap();
    }
}

pub(super) async fn completion_names_only_some_parts(fixture: LakeFixture) {
    let upload = start(&fixture).await;
    let bodies = [patterned(fixture.part_bytes(), 1), patterned(100, 2)];
    let first = part(&fixture, &upload, 1, &bodies[0]).await;
    part(&fixture, &upload, 2, &patterned(fixture.part_bytes(), 9)).await;
    let third = part(&fixture, &upload, 3, &bodies[1]).await;
    complete(&fixture, &upload, &[first, third]).await;
    assert!(fixture.read("k").await == bodies.concat());
}

pub(super) async fn wrong_part_etag_is_refused(fixture: LakeFixture) {
    if !fixture.traits.strict_uploads {
        return;
    }
    let upload = start(&fixture).await;
    let right = part(&fixture, &upload, 1, &patterned(1000, 1)).await;
    let wrong = PartReceipt {
        etag: "00000000000000000000000000000000".to_owned(),
        ..right.clone()
    };
    let absent = PartReceipt {
        number: 2,
        ..right.clone()
    };
    for parts in [vec![wrong], vec![right.clone(), absent]] {
        let result = fixture
            .lake
            .complete_upload(&fixture.key("k"), &upload, &parts, PutOptions::default())
            .await;
        assert_eq!(kind_of(result), Some(Kind::InvalidInput));
    }
    assert!(fixture.is_absent("k").await);
    complete(&fixture, &upload, &[right]).await;
}

pub(super) async fn parts_out_of_order_are_refused(fixture: LakeFixture) {
    if !fixture.traits.strict_uploads {
        return;
    }
    let upload = start(&fixture).await;
    let first = part(&fixture, &upload, 1, &patterned(fixture.part_bytes(), 1)).await;
    let second = part(&fixture, &upload, 2, &patterned(fixture.part_bytes(), 2)).await;
    for parts in [vec![second, first.clone()], vec![first.clone(), first], vec![]] {
        let result = fixture
            .lake
            .complete_upload(&fixture.key("k"), &upload, &parts, PutOptions::default())
            .await;
        assert_eq!(kind_of(result), Some(Kind::InvalidInput));
    }
}

pub(super) async fn wrong_part_size_is_refused(fixture: LakeFixture) {
    if !fixture.traits.strict_uploads {
        return;
    }
    let upload = start(&fixture).await;
    for announced in [5, 15] {
        let stream = iter([Ok(Bytes::from_static(b"ten bytes!"))]).boxed();
        let result = fixture
            .lake
            .upload_part(&fixture.key("k"), &upload, 1, announced, stream)
            .await;
        assert_eq!(kind_of(result), Some(Kind::InvalidInput), "announced {announced}");
    }
    for number in [0, 10_001] {
        let result = try_part(&fixture, &upload, number, &Bytes::from_static(b"x")).await;
        assert_eq!(kind_of(result), Some(Kind::InvalidInput), "part {number}");
    }
}

pub(super) async fn uploads_of_one_key_are_apart(fixture: LakeFixture) {
    let (one, two) = (start(&fixture).await, start(&fixture).await);
    assert_ne!(one, two);
    let first = part(&fixture, &one, 1, &Bytes::from_static(b"one")).await;
    let second = part(&fixture, &two, 1, &Bytes::from_static(b"two")).await;
    complete(&fixture, &two, &[second]).await;
    assert_eq!(fixture.read("k").await, "two");
    complete(&fixture, &one, &[first]).await;
    assert_eq!(fixture.read("k").await, "one");
}

pub(super) async fn completion_may_be_conditional(fixture: LakeFixture) {
    if !fixture.traits.conditional_complete {
        return;
    }
    let upload = start(&fixture).await;
    let parts = [part(&fixture, &upload, 1, &Bytes::from_static(b"joined")).await];
    fixture.put("k", "already here").await;
    let create = PutOptions {
        mode: PutMode::Create,
        ..PutOptions::default()
    };
    let refused = fixture
        .lake
        .complete_upload(&fixture.key("k"), &upload, &parts, create.clone())
        .await;
    assert_eq!(kind_of(refused), Some(Kind::AlreadyExists));
    assert_eq!(fixture.read("k").await, "already here");
    fixture.lake.delete(&fixture.key("k")).await.unwrap();
    fixture
        .lake
        .complete_upload(&fixture.key("k"), &upload, &parts, create)
        .await
        .unwrap();
    assert_eq!(fixture.read("k").await, "joined");
}
