//! Leases that several ranks renew.

use std::time::Duration;

use forebay_lake::{Fault, Operation};

use super::*;
use crate::testing::{Rank, World, durable, eventually};

async fn lease(world: &World, rank: &Rank) -> AttemptLease {
    let bytes = world.lake().read(&rank.path(names::OPEN)).await.unwrap();
    AttemptLease::decode(&bytes.unwrap()).unwrap()
}

/// A save that an earlier incarnation staged on disk, and nothing more.
async fn left(world: &World, rank: &Rank, node: &str) {
    world.faulty.random(Operation::Put, 1.0, Fault::Stall);
    let saves = world.node(node);
    rank.staged(world, &saves).await;
    saves.die().await;
    world.faulty.heal();
}

#[tokio::test]
async fn a_renewed_lease_keeps_its_parent_and_the_longer_deadline() {
    let world = World::new().await;
    let earlier = Rank::alone(1).staged(&world, &world.node("first")).await;
    durable(&earlier).await;
    let one = Rank::of(3, 1, 2);
    one.recorded_and_dead(&world, "b").await;
    let mut long = lease(&world, &one).await;
    assert_eq!(long.parent.map(|parent| parent.step), Some(1));
    long.deadline_ms += 1_000_000;
    let pieces = [Bytes::from(long.encode().unwrap())];
    world.lake().put(&one.path(names::OPEN), &pieces).await.unwrap();
    // A newer step is not what the save was made on.
    let earlier = Rank::alone(2).staged(&world, &world.node("first")).await;
    durable(&earlier).await;
    let resumed = world.restarted("b").await;
    Rank::of(3, 0, 2).staged(&world, &world.node("a")).await;
    durable(&resumed.all()[0]).await;
    assert_eq!(lease(&world, &one).await, long);
}

#[tokio::test]
async fn two_ranks_that_renew_at_once_leave_the_longer_deadline() {
    let world = World::new().await;
    let short = Rank {
        deadline: Duration::from_secs(100),
        ..Rank::of(2, 1, 2)
    };
    let long = Rank {
        deadline: Duration::from_secs(10_000),
        ..Rank::of(2, 0, 2)
    };
    left(&world, &short, "b").await;
    left(&world, &long, "a").await;
    let mut old = AttemptLease::new(2, &short.attempt(), None, 1, 2);
    old.writer = "the earlier incarnation".into();
    let pieces = [Bytes::from(old.encode().unwrap())];
    world.lake().put(&short.path(names::OPEN), &pieces).await.unwrap();
    // One has read the old lease and is about to write its own …
    world.faulty.script(Operation::Put, Fault::Stall);
    let slow = world.restarted("b").await;
    eventually("it is held", async || world.faulty.stalled() > 0).await;
    // … when the other one writes the longer one.
    let fast = world.restarted("a").await;
    eventually("the longer one is there", async || {
        lease(&world, &short).await.deadline_ms > old.deadline_ms
    })
    .await;
    let longer = lease(&world, &short).await.deadline_ms;
    world.faulty.release();
    for saves in [&slow, &fast] {
        durable(&saves.all()[0]).await;
    }
    assert_eq!(lease(&world, &short).await.deadline_ms, longer);
}
