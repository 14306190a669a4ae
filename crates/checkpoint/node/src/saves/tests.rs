//! Saves over a lake that fails on purpose, without a socket.

use forebay_lake::{Fault, Operation};
use forebay_wire::saves::Survives;

use super::*;
use crate::testing::{FRESH_BYTES, LONG, Rank, World, until};

impl Saves {
    /// Drops all tasks where they are, as kill -9 does.
    pub(crate) async fn die(&self) {
        let mut running = std::mem::take(&mut self.state.lock().running);
        running.shutdown().await;
    }
}

#[tokio::test]
async fn a_lake_that_is_down_for_a_while_is_waited_for() {
    let world = World::new().await;
    let saves = world.node("a");
    world
        .faulty
        .random(Operation::Put, 1.0, Fault::Error(Kind::Unavailable));
    let save = Rank::alone(1).staged(&world, &saves).await;
    let state = until(&save, "the last_error is seen", |state| {
        state.last_error.is_some()
    })
    .await;
    assert_eq!(state.phase, SavePhase::Staged);
    assert_eq!(saves.stats().staged_bytes, FRESH_BYTES as u64);
    world.faulty.heal();
    let state = save.wait(LONG).await;
    assert_eq!(state.phase, SavePhase::Durable, "{state:?}");
    assert_eq!(state.last_error, None);
    assert_eq!(saves.stats().durable, 1);
}

#[tokio::test]
async fn an_error_that_cannot_get_better_ends_the_save() {
    let world = World::new().await;
    let saves = world.node("a");
    world
        .faulty
        .random(Operation::Put, 1.0, Fault::Error(Kind::Denied));
    let save = Rank::alone(1).staged(&world, &saves).await;
    let state = save.wait(LONG).await;
    assert_eq!(state.phase, SavePhase::Failed);
    assert_eq!(state.last_error.unwrap().kind, "denied");
    assert!(world.lake().generations(1).await.unwrap().is_empty());
    assert_eq!(saves.stats().failed, 1);
}

#[tokio::test]
async fn a_commit_whose_answer_is_lost_is_found_to_be_ones_own() {
    let world = World::new().await;
    let saves = world.node("a");
    // Every put is done and then said to have failed: also that of the manifest.
    for _ in 0..8 {
        world
            .faulty
            .script(Operation::Put, Fault::ErrorAfter(Kind::Unavailable));
    }
    let save = Rank::alone(1).staged(&world, &saves).await;
    let state = save.wait(LONG).await;
    assert_eq!(
        (state.phase, state.generation),
        (SavePhase::Durable, 1),
        "{state:?}"
    );
    assert!(world.faulty.hits() > 0);
}

#[tokio::test]
async fn no_save_is_taken_while_an_older_one_is_overdue() {
    let world = World::new().await;
    let saves = world.node_with("a", Duration::from_millis(1));
    world
        .faulty
        .random(Operation::Put, 1.0, Fault::Error(Kind::Unavailable));
    let save = Rank::alone(1).staged(&world, &saves).await;
    until(&save, "it is old", |state| {
        state.age_ms > state.staged_ms.unwrap_or(0) + 1
    })
    .await;
    let error = saves.begin(Rank::alone(2).new_save(&world)).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Busy, "{error}");
    assert_eq!(saves.stats().refusals, 1);
    world.faulty.heal();
    assert_eq!(save.wait(LONG).await.phase, SavePhase::Durable);
    assert!(saves.begin(Rank::alone(2).new_save(&world)).await.is_ok());
}

#[tokio::test]
async fn a_stopping_node_finishes_what_is_staged_and_takes_nothing_more() {
    let world = World::new().await;
    let saves = world.node("a");
    let save = Rank::alone(1).staged(&world, &saves).await;
    saves.finish().await;
    assert_eq!(save.state().phase, SavePhase::Durable);
    let error = saves.begin(Rank::alone(2).new_save(&world)).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Unavailable);
}

#[tokio::test]
async fn a_save_that_a_client_began_is_not_taken_up_again() {
    let world = World::new().await;
    let former = world.node("a");
    let rank = Rank::of(1, 1, 2);
    rank.staged(&world, &former).await;
    former.die().await;
    let left_behind = || StagedSave::replay(&world.staging_log("a", u64::MAX)).unwrap();
    let promised = left_behind().pop().unwrap();
    // The same rank and attempt, in memory.
    let saves = world.node("a");
    let in_memory = Rank {
        staged: StagedIn::Ram,
        ..rank
    };
    let began = in_memory.filled(&world, &saves).await;
    let taken = saves.take_up(promised, world.lake(), |_, _, _| async {
        panic!("nobody feeds it");
    });
    assert_eq!(taken.unwrap_err().kind(), Kind::Conflict);
    assert_eq!(began.state().phase, SavePhase::Open);
    assert_eq!(saves.all().len(), 1);
    assert_eq!(left_behind().len(), 1, "the promise stays");
}

#[tokio::test]
async fn files_wait_until_nobody_copies_any_more() {
    let world = World::new().await;
    let saves = world.node("a");
    let trainer = saves.opened(Rank::alone(1).filled(&world, &saves).await);
    // Another save is handed over meanwhile; its files wait as well.
    let save = Rank::alone(2).staged(&world, &saves).await;
    for _ in 0..1000 {
        tokio::task::yield_now().await;
    }
    assert_eq!((trainer.save.state().files, save.state().files), (0, 0));
    trainer.save.stage().await.unwrap();
    let first = Arc::clone(&trainer.save);
    drop(trainer);
    assert_eq!(save.wait(LONG).await.phase, SavePhase::Durable);
    assert_eq!(first.wait(LONG).await.phase, SavePhase::Durable);
}

#[tokio::test]
async fn files_of_an_open_save_leave_a_full_arena() {
    let world = World::new().await;
    let saves = world.node("a");
    let trainer = saves.opened(Rank::alone(1).filled(&world, &saves).await);
    saves.open_early();
    let state = until(&trainer.save, "the file is in the lake", |state| state.files == 1).await;
    assert_eq!(state.phase, SavePhase::Open);
}

#[tokio::test]
async fn a_save_says_what_it_survives_and_never_more() {
    let world = World::new().await;
    let saves = world.node("a");
    world
        .faulty
        .random(Operation::Put, 1.0, Fault::Error(Kind::Unavailable));
    let in_memory = Rank::alone(1).filled(&world, &saves).await;
    assert_eq!(in_memory.state().survives, Survives::Nothing, "it is not staged");
    assert_eq!(in_memory.stage().await.unwrap().survives, Survives::Writer);
    let on_disk = Rank::of(2, 0, 1).filled(&world, &saves).await;
    assert_eq!(on_disk.stage().await.unwrap().survives, Survives::Node);
    let embedded = NewSave {
        writer: Writer::ThisProcess,
        ..Rank::alone(3).new_save(&world)
    };
    let embedded = saves.begin(embedded).await.unwrap();
    assert_eq!(embedded.stage().await.unwrap().survives, Survives::Nothing);
    world.faulty.heal();
    for save in [&in_memory, &on_disk, &embedded] {
        assert_eq!(save.wait(LONG).await.survives, Survives::Everything);
    }
    let lost = Rank::alone(4).filled(&world, &saves).await;
    lost.give_up(Error::new(Kind::Cancelled, "enough"));
    assert_eq!(lost.wait(LONG).await.survives, Survives::Nothing);
}
