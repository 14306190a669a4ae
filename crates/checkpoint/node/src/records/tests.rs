//! Ranks whose nodes die after they have written their records: what is committed is whole, or nothing is.

use bytes::Bytes;
use forebay_wire::saves::SaveState;

use super::*;
use crate::testing::{LONG, Rank, World, durable, eventually};

/// More than what is written again rather than reused.
const FROZEN_BYTES: usize = 128 << 10;

fn with_frozen(rank: Rank) -> Rank {
    Rank {
        frozen_bytes: FROZEN_BYTES,
        ..rank
    }
}

/// Saves step 1 by two ranks, so that step 2 reuses what does not change.
async fn save_parent(world: &World) {
    let saves = world.node("first");
    let mut both = Vec::new();
    for rank in [0, 1] {
        both.push(with_frozen(Rank::of(1, rank, 2)).staged(world, &saves).await);
    }
    for save in both {
        durable(&save).await;
    }
}

/// Removes a step and its files, as a pruning does after the lease of what was under way has ended.
async fn prune(world: &World, step: u64) {
    let lake = world.lake();
    let manifest = world.whole_step(step).await;
    lake.delete(&names::manifest(step, manifest.generation))
        .await
        .unwrap();
    let tables = manifest.content.tables.into_iter().map(|table| table.path);
    let files = manifest.content.files.into_iter().map(|file| file.path);
    for path in files.chain(tables) {
        lake.delete(&path).await.unwrap();
    }
}

fn data_file(rank: &Rank) -> String {
    rank.path(&names::data_file(rank.rank, 0))
}

/// Damage of a file.
#[derive(Clone, Copy)]
enum Lost {
    Gone,
    CutOff,
}

/// Takes the data file of a rank from the lake.
async fn lose(world: &World, rank: &Rank, how: Lost) {
    let (lake, path) = (world.lake(), data_file(rank));
    let lost = match how {
        Lost::Gone => lake.delete(&path).await,
        Lost::CutOff => lake.put(&path, &[Bytes::from_static(b"short")]).await,
    };
    lost.unwrap();
}

async fn failed(save: &Save) -> SaveState {
    let state = save.wait(LONG).await;
    assert_eq!(state.phase, SavePhase::Failed, "{state:?}");
    state
}

#[tokio::test]
async fn a_resumed_save_whose_record_is_whole_goes_straight_on_to_the_commit() {
    let world = World::new().await;
    let (zero, one) = (Rank::of(2, 0, 2), Rank::of(2, 1, 2));
    one.recorded_and_dead(&world, "b").await;
    // What lies on disk is not needed any more, so it does not matter that it is damaged.
    let folder = world.folder("b").join(format!("saves/{}.1", one.attempt()));
    std::fs::write(folder.join("piece-00000"), b"damaged").unwrap();
    let resumed = world.restarted("b").await;
    zero.staged(&world, &world.node("a")).await;
    let state = durable(&resumed.all()[0]).await;
    assert_eq!(
        (state.files, state.written_bytes),
        (0, 0),
        "nothing was written again"
    );
    assert_eq!(world.whole_step(2).await.content.tensors.len(), 2);
    assert!(!folder.exists());
}

#[tokio::test]
async fn a_resumed_save_writes_again_what_its_record_names_and_the_lake_lost() {
    for how in [Lost::Gone, Lost::CutOff] {
        let world = World::new().await;
        let (zero, one) = (Rank::of(2, 0, 2), Rank::of(2, 1, 2));
        one.recorded_and_dead(&world, "b").await;
        lose(&world, &one, how).await;
        let resumed = world.restarted("b").await;
        zero.staged(&world, &world.node("a")).await;
        assert!(durable(&resumed.all()[0]).await.files > 0);
        world.whole_step(2).await;
    }
}

#[tokio::test]
async fn a_resumed_save_does_without_a_parent_that_was_pruned() {
    let world = World::new().await;
    save_parent(&world).await;
    let (zero, one) = (with_frozen(Rank::of(2, 0, 2)), with_frozen(Rank::of(2, 1, 2)));
    one.recorded_and_dead(&world, "b").await;
    prune(&world, 1).await;
    let resumed = world.restarted("b").await;
    let committer = zero.staged(&world, &world.node("a")).await;
    durable(&resumed.all()[0]).await;
    durable(&committer).await;
    let manifest = world.whole_step(2).await;
    assert_eq!(manifest.parent, None);
}

#[tokio::test]
async fn all_ranks_of_a_node_that_is_started_again_do_without_a_parent_that_was_pruned() {
    let world = World::new().await;
    save_parent(&world).await;
    let saves = world.node("b");
    for rank in [1, 2] {
        with_frozen(Rank::of(2, rank, 3)).staged(&world, &saves).await;
    }
    let zero = with_frozen(Rank::of(2, 0, 3)).filled(&world, &saves).await;
    let lake = world.lake();
    let paths = [1, 2].map(|rank| Rank::of(2, rank, 3).path(&names::record_file(rank)));
    eventually("the records are written", async || {
        let mut there = 0;
        for path in &paths {
            there += usize::from(lake.head(path).await.unwrap().is_some());
        }
        there == 2
    })
    .await;
    // The promise is made, and the node dies before the record of rank 0 is there.
    world
        .faulty
        .random(forebay_lake::Operation::Put, 1.0, forebay_lake::Fault::Stall);
    zero.stage().await.unwrap();
    saves.die().await;
    world.faulty.heal();
    prune(&world, 1).await;
    let resumed = world.restarted("b").await;
    for save in resumed.all() {
        durable(&save).await;
    }
    assert_eq!(world.whole_step(2).await.content.tensors.len(), 6);
}

#[tokio::test]
async fn a_record_that_is_replaced_while_rank_0_waits_for_others_is_read_again() {
    let world = World::new().await;
    save_parent(&world).await;
    let mut ranks = [0, 1, 2].map(|rank| Rank::of(2, rank, 3));
    ranks[1].frozen_bytes = FROZEN_BYTES;
    ranks[1].recorded_and_dead(&world, "b").await;
    let committer = ranks[0].staged(&world, &world.node("a")).await;
    eventually("rank 0 has read the record of rank 1", async || {
        committer.overdue().to_string().contains("ranks: 2")
    })
    .await;
    prune(&world, 1).await;
    let resumed = world.restarted("b").await;
    let path = ranks[1].path(&names::record_file(1));
    let lake = world.lake();
    eventually("rank 1 has written without its parent", async || {
        let Some(bytes) = lake.read(&path).await.unwrap() else {
            return false;
        };
        let record = Record::decode(&bytes).unwrap();
        files_of(&record).all(|(path, _)| path.starts_with("steps/2/"))
    })
    .await;
    ranks[2].staged(&world, &world.node("c")).await;
    durable(&committer).await;
    durable(&resumed.all()[0]).await;
    world.whole_step(2).await;
}

#[tokio::test]
async fn a_file_that_is_gone_fails_the_save_and_is_named_with_its_rank() {
    for how in [Lost::Gone, Lost::CutOff] {
        let world = World::new().await;
        let (zero, one) = (Rank::of(2, 0, 2), Rank::of(2, 1, 2));
        one.recorded_and_dead(&world, "b").await;
        lose(&world, &one, how).await;
        let committer = zero.staged(&world, &world.node("a")).await;
        let last_error = failed(&committer).await.last_error.unwrap();
        assert_eq!(last_error.kind, "corrupt", "{last_error:?}");
        for wanted in [("rank", "1"), ("file", &data_file(&one))] {
            let wanted = (wanted.0.to_owned(), wanted.1.to_owned());
            assert!(last_error.context.contains(&wanted), "{last_error:?}");
        }
        assert!(!world.is_visible(2).await);
    }
}

#[tokio::test]
async fn a_side_table_that_is_gone_fails_the_save() {
    let world = World::new().await;
    let (zero, one) = (Rank::of(2, 0, 2), Rank::of(2, 1, 2));
    one.recorded_and_dead(&world, "b").await;
    let table = one.path(&names::table_file(1));
    world.lake().delete(&table).await.unwrap();
    let committer = zero.staged(&world, &world.node("a")).await;
    let last_error = failed(&committer).await.last_error.unwrap();
    assert!(
        last_error.context.contains(&("file".into(), table)),
        "{last_error:?}"
    );
    assert!(!world.is_visible(2).await);
}

#[tokio::test]
async fn a_resumed_rank_0_waits_for_a_rank_that_has_to_write_again() {
    let world = World::new().await;
    let (zero, one) = (Rank::of(2, 0, 2), Rank::of(2, 1, 2));
    zero.recorded_and_dead(&world, "a").await;
    one.recorded_and_dead(&world, "b").await;
    world.lake().delete(&data_file(&one)).await.unwrap();
    let first = world.restarted("a").await;
    let committer = &first.all()[0];
    eventually("rank 0 names whom it waits for, and why", async || {
        committer.overdue().to_string().contains(&data_file(&one))
    })
    .await;
    assert!(!world.is_visible(2).await);
    let second = world.restarted("b").await;
    durable(&second.all()[0]).await;
    durable(committer).await;
    world.whole_step(2).await;
}
