//! A disk with little room for saves, over a lake that fails on purpose.

use std::time::Duration;

use forebay_lake::{Fault, Operation};
use forebay_reservoir::Staging;
use forebay_wire::saves::SavePhase;

use super::*;
use crate::saves::Saves;
use crate::testing::{LONG, Rank, World, durable, eventually};

/// Bytes that the smallest piece takes on disk.
const BLOCK_BYTES: u64 = 4096;

/// A world whose lake takes nothing.
async fn without_lake() -> World {
    let world = World::new().await;
    world
        .faulty
        .random(Operation::Put, 1.0, Fault::Error(Kind::Unavailable));
    world
}

/// One rank, on disk; its tensor takes a block there.
fn alone(step: u64) -> Rank {
    Rank::of(step, 0, 1)
}

/// The newest save waits for room.
async fn newest_waits(saves: &Saves) {
    eventually("the newest save waits for room", async || {
        let newest = saves.all().pop();
        let last_error = newest.and_then(|save| save.state().last_error);
        last_error.is_some_and(|last_error| last_error.message.contains("limits.save_disk"))
    })
    .await;
}

#[tokio::test]
async fn a_save_that_finds_the_disk_full_waits_until_older_ones_are_durable() {
    let world = without_lake().await;
    let saves = world.node_with_disk("a", 2 * BLOCK_BYTES);
    let first = alone(1).staged(&world, &saves).await;
    let second = alone(2).staged(&world, &saves).await;
    let third = alone(3);
    let (third, ()) = tokio::join!(third.filled(&world, &saves), async {
        newest_waits(&saves).await;
        assert_eq!(saves.stats().disk_bytes, 2 * BLOCK_BYTES);
        world.faulty.heal();
    });
    third.stage().await.unwrap();
    for (step, save) in (1..).zip([first, second, third]) {
        durable(&save).await;
        world.whole_step(step).await;
    }
    assert_eq!(saves.stats().disk_bytes, 0);
}

#[tokio::test]
async fn a_save_that_finds_no_room_until_its_deadline_is_busy_and_what_is_staged_stays() {
    let world = without_lake().await;
    let saves = world.node_with_disk("a", BLOCK_BYTES);
    let first = alone(1).staged(&world, &saves).await;
    let hasty = Rank {
        deadline: Duration::from_millis(50),
        ..alone(2)
    };
    let error = hasty.try_filled(&world, &saves).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Busy, "{error}");
    assert!(error.to_string().contains("limits.save_disk"), "{error}");
    let second = saves.all().pop().unwrap();
    let state = second.wait(LONG).await;
    assert_eq!(state.phase, SavePhase::Failed);
    let last_error = state.last_error.unwrap();
    assert_eq!(last_error.kind, "timeout", "{last_error:?}");
    assert_eq!(first.state().phase, SavePhase::Staged);
    assert_eq!(saves.stats().disk_bytes, BLOCK_BYTES);
    world.faulty.heal();
    durable(&first).await;
    let third = alone(3).staged(&world, &saves).await;
    durable(&third).await;
    assert!(!world.is_visible(2).await);
}

#[tokio::test]
async fn ranks_that_are_too_large_for_the_disk_together_are_told_at_once() {
    let world = World::new().await;
    let saves = world.node_with_disk("a", BLOCK_BYTES);
    Rank::of(1, 0, 2).filled(&world, &saves).await;
    let error = Rank::of(1, 1, 2).try_filled(&world, &saves).await.unwrap_err();
    assert_eq!(error.kind(), Kind::NoSpace, "{error}");
}

#[tokio::test]
async fn saves_from_before_the_restart_take_room_and_are_finished_although_clients_fill_the_arena() {
    let world = without_lake().await;
    let former = world.node("a");
    for rank in 0..2 {
        Rank::of(1, rank, 2).staged(&world, &former).await;
    }
    former.die().await;
    // More than it may take lies there.
    let saves = world.node_with_disk("a", BLOCK_BYTES);
    let staging = Staging::new(1 << 20);
    let _clients_have_all = staging.allocate(0, 1 << 20).unwrap();
    world.take_up(&saves, &staging).await;
    assert_eq!(saves.stats().disk_bytes, 2 * BLOCK_BYTES);
    let next = alone(2);
    let (next, ()) = tokio::join!(next.filled(&world, &saves), async {
        newest_waits(&saves).await;
        world.faulty.heal();
    });
    next.stage().await.unwrap();
    durable(&next).await;
    world.whole_step(1).await;
    assert_eq!(saves.stats().disk_bytes, 0);
}
