//! Commits that others make meanwhile.

use std::sync::Arc;

use forebay_lake::{Fault, Operation};
use forebay_wire::saves::SavePhase;

use super::*;
use crate::testing::{LONG, Rank, World, durable, eventually};

/// Commit of others as this generation: what is in it does not matter to who comes later.
async fn put_commit(world: &World, step: u64, generation: u32) {
    let pieces = [Bytes::from_static(b"{}")];
    let path = names::manifest(step, generation);
    world.lake().put(&path, &pieces).await.unwrap();
}

async fn generations(world: &World, step: u64) -> Vec<u32> {
    world
        .lake()
        .generations(step)
        .await
        .unwrap()
        .into_iter()
        .collect()
}

#[tokio::test]
async fn a_save_below_a_generation_that_others_committed_is_a_conflict() {
    let world = World::new().await;
    let save = Rank::alone(1).filled(&world, &world.node("a")).await;
    eventually("the step was looked for", async || save.base().is_some()).await;
    // Generations 1 and 2 came meanwhile, and 1 was pruned.
    put_commit(&world, 1, 2).await;
    save.stage().await.unwrap();
    let state = save.wait(LONG).await;
    assert_eq!(state.phase, SavePhase::Failed);
    assert_eq!(state.last_error.unwrap().kind, "conflict");
    assert_eq!(generations(&world, 1).await, [2]);
}

#[tokio::test]
async fn a_commit_below_one_that_came_in_the_same_moment_is_taken_back() {
    let world = World::new().await;
    let save = Rank::alone(1).filled(&world, &world.node("a")).await;
    let commit = Commit {
        generation: 1,
        bytes: Bytes::from_static(b"{}"),
    };
    let lake = world.lake();
    eventually("the save is at rest", async || {
        lake.head(&Rank::alone(1).path(&names::data_file(0, 0)))
            .await
            .unwrap()
            .is_some()
    })
    .await;
    world.faulty.script(Operation::Put, Fault::Stall);
    let making = {
        let save = Arc::clone(&save);
        tokio::spawn(async move { commit.make(&save).await })
    };
    eventually("it is about to be created", async || world.faulty.stalled() > 0).await;
    put_commit(&world, 1, 2).await;
    world.faulty.release();
    let error = making.await.unwrap().unwrap_err();
    assert_eq!(error.kind(), Kind::Conflict, "{error}");
    assert!(error.to_string().contains("generation: 2"), "{error}");
    assert_eq!(generations(&world, 1).await, [2]);
}

#[tokio::test]
async fn a_resumed_save_that_supersedes_still_knows_what() {
    let world = World::new().await;
    let earlier = Rank::alone(1).staged(&world, &world.node("first")).await;
    durable(&earlier).await;
    let again = Rank {
        supersede: true,
        attempt: 1,
        ..Rank::of(1, 0, 1)
    };
    // The lake does not say what is there until the save is staged.
    world.faulty.random(Operation::List, 1.0, Fault::Stall);
    let saves = world.node("a");
    let save = again.staged(&world, &saves).await;
    assert_eq!(save.base(), None);
    let promise = world
        .folder("a")
        .join(format!("saves/{}.0/staged.json", again.attempt()));
    assert!(
        std::fs::read_to_string(&promise)
            .unwrap()
            .contains("\"base\":null")
    );
    world.faulty.heal();
    world.faulty.random(Operation::Put, 1.0, Fault::Stall);
    world.faulty.release();
    eventually("it is written down", async || {
        std::fs::read_to_string(&promise).is_ok_and(|text| text.contains("\"base\":1"))
    })
    .await;
    saves.die().await;
    world.faulty.heal();
    let resumed = world.restarted("a").await;
    assert_eq!(durable(&resumed.all()[0]).await.generation, 2);
}
