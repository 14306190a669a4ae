//! Conditional create, update and delete.

use bytes::Bytes;
use forebay_core::{Kind, Result};
use forebay_lake::{PutMode, PutOptions, PutReceipt, UpdateToken};
use futures::future::join_all;

use super::{LakeFixture, kind_of};

const RACERS: usize = 8;

async fn put_if(fixture: &LakeFixture, name: &str, body: &str, mode: PutMode) -> Result<PutReceipt> {
    let options = PutOptions {
        mode,
        ..PutOptions::default()
    };
    fixture
        .lake
        .put(&fixture.key(name), Bytes::from(body.to_owned()), options)
        .await
}

pub(super) async fn create_makes_an_object(fixture: LakeFixture) {
    if fixture.traits.conditional_create {
        put_if(&fixture, "deep/k", "new", PutMode::Create).await.unwrap();
        assert_eq!(fixture.read("deep/k").await, "new");
    }
}

pub(super) async fn create_refuses_an_existing_one(fixture: LakeFixture) {
    if !fixture.traits.conditional_create {
        return;
    }
    fixture.put("k", "old").await;
    assert_eq!(
        kind_of(put_if(&fixture, "k", "new", PutMode::Create).await),
        Some(Kind::AlreadyExists)
    );
    assert_eq!(fixture.read("k").await, "old");
}

pub(super) async fn create_works_again_after_delete(fixture: LakeFixture) {
    if !fixture.traits.conditional_create {
        return;
    }
    put_if(&fixture, "k", "first", PutMode::Create).await.unwrap();
    fixture.lake.delete(&fixture.key("k")).await.unwrap();
    put_if(&fixture, "k", "second", PutMode::Create).await.unwrap();
    assert_eq!(fixture.read("k").await, "second");
}

/// Races writers and returns the body of the one that won; exactly one must.
async fn race(fixture: &LakeFixture, mode: &PutMode, refusal: Kind) -> String {
    let racers = (0..RACERS).map(|racer| {
        let (fixture, mode) = (fixture.clone(), mode.clone());
        tokio::spawn(async move { put_if(&fixture, "k", &format!("racer {racer}"), mode).await })
    });
    let mut winners = Vec::new();
    for (racer, result) in join_all(racers).await.into_iter().enumerate() {
        match result.expect("a racer panicked") {
            Ok(_) => winners.push(format!("racer {racer}")),
            Err(error) => assert_eq!(error.kind(), refusal, "{error:?}"),
        }
    }
    assert_eq!(winners.len(), 1, "exactly one racer wins: {winners:?}");
    winners.remove(0)
}

pub(super) async fn racing_creates_have_one_winner(fixture: LakeFixture) {
    if fixture.traits.conditional_create {
        let winner = race(&fixture, &PutMode::Create, Kind::AlreadyExists).await;
        assert_eq!(fixture.read("k").await, winner);
    }
}

pub(super) async fn update_with_the_current_token_replaces(fixture: LakeFixture) {
    if !fixture.traits.conditional_update {
        return;
    }
    fixture.put("k", "old").await;
    let token = fixture.lake.head(&fixture.key("k")).await.unwrap().token;
    put_if(&fixture, "k", "new", PutMode::Update(token))
        .await
        .unwrap();
    assert_eq!(fixture.read("k").await, "new");
}

pub(super) async fn update_with_an_old_token_is_refused(fixture: LakeFixture) {
    if !fixture.traits.conditional_update {
        return;
    }
    let old = fixture.put("k", "old").await.token;
    fixture.put("k", "newer").await;
    let wrong = UpdateToken {
        etag: Some("00000000000000000000000000000000".to_owned()),
        version: None,
    };
    for token in [old, wrong] {
        let result = put_if(&fixture, "k", "newest", PutMode::Update(token)).await;
        assert_eq!(kind_of(result), Some(Kind::PreconditionFailed));
    }
    assert_eq!(fixture.read("k").await, "newer");
}

pub(super) async fn update_of_nothing_is_refused(fixture: LakeFixture) {
    if !fixture.traits.conditional_update {
        return;
    }
    let token = fixture.put("other", "x").await.token;
    let result = put_if(&fixture, "deep/absent", "x", PutMode::Update(token)).await;
    assert_eq!(kind_of(result), Some(Kind::PreconditionFailed));
    assert!(fixture.is_absent("deep/absent").await);
}

pub(super) async fn racing_updates_have_one_winner(fixture: LakeFixture) {
    if !fixture.traits.conditional_update {
        return;
    }
    for round in 0..3 {
        let token = fixture.put("k", format!("round {round}")).await.token;
        let winner = race(&fixture, &PutMode::Update(token), Kind::PreconditionFailed).await;
        assert_eq!(fixture.read("k").await, winner);
    }
}

pub(super) async fn token_of_a_put_serves_the_next_update(fixture: LakeFixture) {
    if !fixture.traits.conditional_update {
        return;
    }
    let mut token = fixture.put("k", "0").await.token;
    for body in ["1", "2", "3"] {
        token = put_if(&fixture, "k", body, PutMode::Update(token))
            .await
            .unwrap()
            .token;
    }
    assert_eq!(fixture.read("k").await, "3");
}

pub(super) async fn delete_with_the_current_token_removes(fixture: LakeFixture) {
    if !fixture.traits.conditional_delete {
        return;
    }
    let token = fixture.put("deep/k", "old").await.token;
    fixture
        .lake
        .delete_if(&fixture.key("deep/k"), &token)
        .await
        .unwrap();
    assert!(fixture.is_absent("deep/k").await);
    let again = fixture.lake.delete_if(&fixture.key("deep/k"), &token).await;
    // Servers differ in which of the two they say.
    assert!(matches!(
        kind_of(again),
        Some(Kind::NotFound | Kind::PreconditionFailed)
    ));
}

pub(super) async fn delete_with_an_old_token_is_refused(fixture: LakeFixture) {
    if !fixture.traits.conditional_delete {
        return;
    }
    let old = fixture.put("k", "old").await.token;
    fixture.put("k", "newer").await;
    let refused = fixture.lake.delete_if(&fixture.key("k"), &old).await;
    assert_eq!(kind_of(refused), Some(Kind::PreconditionFailed));
    assert_eq!(fixture.read("k").await, "newer");
}

/// A removal and updates of the same object: whoever wins, the others find that it is not theirs any more.
pub(super) async fn racing_deletes_have_one_winner(fixture: LakeFixture) {
    if !fixture.traits.conditional_delete || !fixture.traits.conditional_update {
        return;
    }
    for round in 0..3 {
        let token = fixture.put("k", format!("round {round}")).await.token;
        let racers = (0..RACERS).map(|racer| {
            let (fixture, token) = (fixture.clone(), token.clone());
            tokio::spawn(async move {
                if racer % 2 == 0 {
                    return fixture
                        .lake
                        .delete_if(&fixture.key("k"), &token)
                        .await
                        .map(|()| None);
                }
                let body = format!("racer {racer}");
                let update = put_if(&fixture, "k", &body, PutMode::Update(token)).await;
                update.map(|_| Some(body))
            })
        });
        let mut winners = Vec::new();
        for result in join_all(racers).await {
            match result.expect("a racer panicked") {
                Ok(left) => winners.push(left),
                Err(error) => assert!(
                    matches!(error.kind(), Kind::PreconditionFailed | Kind::NotFound),
                    "{error:?}"
                ),
            }
        }
        assert_eq!(winners.len(), 1, "exactly one racer wins: {winners:?}");
        match winners.remove(0) {
            None => assert!(fixture.is_absent("k").await),
            Some(body) => assert_eq!(fixture.read("k").await, body),
        }
    }
}
