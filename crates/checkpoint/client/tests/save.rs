//! From a process through the node into the lake and back: what was saved is what is loaded, whole or not at
//! all.
#![allow(clippy::unwrap_used, reason = "a failure here is the failure of a test")]

mod fixture;

use std::time::Duration;

use fixture::{TestNode, pattern};
use forebay_checkpoint::manifest::ObjectKind;
use forebay_checkpoint::{Dtype, TensorBox, names};
use forebay_client::{AlarmPolicy, Client, Save, SaveOptions, SavePhase, SaveState, TensorPart};
use forebay_core::Kind;

const ROOT: &str = "forebay://lake/run";
/// Long enough for any machine; a test that waits so long has failed.
const LONG: Duration = Duration::from_secs(120);

fn options(step: u64) -> SaveOptions {
    SaveOptions {
        deadline: LONG,
        ..SaveOptions::new(ROOT, step)
    }
}

/// One of several ranks.
fn rank(step: u64, attempt: u64, rank: u32, world_size: u32) -> SaveOptions {
    SaveOptions {
        attempt: Some(names::attempt(attempt)),
        rank,
        world_size,
        ..options(step)
    }
}

/// A matrix of bytes, and rows of it.
struct Rows {
    name: &'static str,
    shape: [u64; 2],
    bytes: Vec<u8>,
}

impl Rows {
    fn new(name: &'static str, rows: u64, columns: u64, seed: u64) -> Self {
        Self {
            name,
            shape: [rows, columns],
            bytes: pattern(seed, rows * columns),
        }
    }

    fn part(&self, first: u64, rows: u64) -> TensorPart<'_> {
        let columns = self.shape[1];
        let range = (first * columns) as usize..((first + rows) * columns) as usize;
        TensorPart {
            name: self.name,
            dtype: Dtype::U8,
            global_shape: &self.shape,
            at: TensorBox {
                offset: vec![first, 0],
                shape: vec![rows, columns],
            },
            bytes: &self.bytes[range],
        }
    }

    fn whole(&self) -> TensorPart<'_> {
        self.part(0, self.shape[0])
    }
}

fn commit(client: &Client, save: Save) -> SaveState {
    let staged = save.stage().unwrap();
    client.wait_save(&staged.id, LONG).unwrap()
}

/// The tensor as a reader gets it.
fn loaded(node: &TestNode, step: u64, name: &str) -> Vec<u8> {
    let step = node.root().step(step).unwrap();
    step.whole_tensor(name, 2).unwrap()
}

/// Every byte of the step is proved.
fn verify(node: &TestNode, step: u64) {
    let verified = node.root().step(step).unwrap().verify(2, &|_| {}).unwrap();
    assert!(verified.is_ok(), "{verified:?}");
}

#[test]
fn a_saved_step_loads_as_it_was_and_verifies() {
    let node = TestNode::start();
    let (large, small) = (Rows::new("large", 300, 100_000, 1), Rows::new("small", 3, 5, 2));
    let scalar = 7u64.to_le_bytes();
    let save = node
        .client
        .begin_save(SaveOptions {
            metadata: r#"{"loss": 0.5}"#.into(),
            tree: r#"{"model": ["large", "small"]}"#.into(),
            digest_sha256: true,
            ..options(1000)
        })
        .unwrap();
    let nothing = TensorPart {
        name: "nothing",
        dtype: Dtype::F32,
        global_shape: &[0, 4],
        at: TensorBox::whole(&[0, 4]),
        bytes: &[],
    };
    let count = TensorPart {
        name: "count",
        dtype: Dtype::U64,
        global_shape: &[],
        at: TensorBox::whole(&[]),
        bytes: &scalar,
    };
    save.write(&[large.whole(), count, nothing], 2).unwrap();
    save.write(&[small.whole()], 1).unwrap();
    save.object("rng", ObjectKind::Bytes, b"state").unwrap();
    save.object("args", ObjectKind::Json, b"{}").unwrap();
    assert!(
        node.root().steps().unwrap().is_empty(),
        "nothing is visible before it is staged"
    );
    let state = commit(&node.client, save);
    assert_eq!(state.phase, SavePhase::Durable, "{state:?}");
    assert_eq!(state.generation, 1);
    let bytes = (large.bytes.len() + small.bytes.len() + scalar.len()) as u64 + 7;
    assert_eq!((state.bytes, state.written_bytes), (bytes, bytes));

    assert_eq!(node.root().latest().unwrap(), Some(1000));
    for rows in [&large, &small] {
        assert_eq!(loaded(&node, 1000, rows.name), rows.bytes, "{}", rows.name);
    }
    assert_eq!(loaded(&node, 1000, "count"), scalar);
    let step = node.root().step(1000).unwrap();
    assert_eq!(
        step.object("rng", None).unwrap(),
        (ObjectKind::Bytes, b"state".to_vec())
    );
    assert_eq!(step.manifest().content.metadata["loss"], 0.5);
    assert_eq!(step.manifest().content.tree.value().unwrap()["model"][1], "small");
    let mut parts = step
        .manifest()
        .content
        .tensors
        .values()
        .flat_map(|tensor| &tensor.parts);
    assert!(parts.all(|part| part.sha256.is_some()));
    let mut files = step
        .manifest()
        .content
        .files
        .iter()
        .filter(|file| file.data_start > 0);
    assert!(files.all(|file| file.data_start % 4096 == 0));
    verify(&node, 1000);
}

#[test]
fn a_state_larger_than_the_staging_memory_is_saved_through_it() {
    let node = TestNode::with("staging = '4MiB'");
    let large = Rows::new("large", 40, 1 << 19, 1);
    let save = node.client.begin_save(options(1)).unwrap();
    save.write(&[large.whole()], 2).unwrap();
    let state = commit(&node.client, save);
    assert_eq!(state.phase, SavePhase::Durable, "{state:?}");
    assert!(state.files > 4, "{state:?}");
    assert_eq!(loaded(&node, 1, "large"), large.bytes);
}

#[test]
fn ranks_save_their_shares_and_one_step_comes_of_it() {
    let node = TestNode::start();
    let rows = Rows::new("w", 8, 1000, 1);
    let replica = Rows::new("b", 1, 100, 2);
    let ids: Vec<String> = (0..4)
        .map(|number| {
            let save = node.client.begin_save(rank(7, 1, number, 4)).unwrap();
            let share = rows.part(u64::from(number) * 2, 2);
            save.write(&[share, replica.whole()], 1).unwrap();
            save.object("rank", ObjectKind::Json, number.to_string().as_bytes())
                .unwrap();
            save.object("same", ObjectKind::Json, b"{}").unwrap();
            save.stage().unwrap().id
        })
        .collect();
    for id in ids {
        let state = node.client.wait_save(&id, LONG).unwrap();
        assert_eq!(state.phase, SavePhase::Durable, "{state:?}");
    }
    assert_eq!(loaded(&node, 7, "w"), rows.bytes);
    assert_eq!(loaded(&node, 7, "b"), replica.bytes);
    let step = node.root().step(7).unwrap();
    assert_eq!(step.object("rank", Some(3)).unwrap().1, b"3");
    assert_eq!(step.manifest().content.objects["same"][0].ranks, [0, 1, 2, 3]);
    verify(&node, 7);
}

#[test]
fn a_missing_rank_is_named_by_all_that_wait_and_nothing_becomes_visible() {
    let node = TestNode::start();
    let rows = Rows::new("w", 4, 1000, 1);
    let ids: Vec<String> = [0, 2]
        .into_iter()
        .map(|number| {
            let save = node
                .client
                .begin_save(SaveOptions {
                    deadline: Duration::from_secs(5),
                    ..rank(7, 1, number, 4)
                })
                .unwrap();
            save.write(&[rows.part(number.into(), 1)], 1).unwrap();
            save.stage().unwrap().id
        })
        .collect();
    for id in ids {
        let state = node.client.wait_save(&id, LONG).unwrap();
        assert_eq!(state.phase, SavePhase::Failed, "{state:?}");
        let last_error = state.last_error.unwrap();
        assert_eq!(last_error.kind, "timeout", "{last_error:?}");
        let ranks = last_error.context.iter().find(|(name, _)| name == "ranks");
        let is_sibling = last_error.context.iter().any(|(name, _)| name == "failed_rank");
        assert!(
            ranks.is_some_and(|(_, ranks)| ranks == "1, 3") || is_sibling,
            "{last_error:?}"
        );
    }
    assert!(node.root().steps().unwrap().is_empty());
}

#[test]
fn a_share_that_nobody_saved_is_an_error_that_names_the_tensor() {
    let node = TestNode::start();
    let rows = Rows::new("w", 4, 1000, 1);
    let save = node.client.begin_save(options(1)).unwrap();
    save.write(&[rows.part(0, 3)], 1).unwrap();
    let state = commit(&node.client, save);
    assert_eq!(state.phase, SavePhase::Failed);
    let last_error = state.last_error.unwrap();
    assert!(
        last_error.context.contains(&("tensor".into(), "w".into())),
        "{last_error:?}"
    );
    assert!(node.root().steps().unwrap().is_empty());
}

#[test]
fn of_two_committers_one_wins_and_the_other_is_told_who() {
    let node = TestNode::start();
    let (mine, other) = (Rows::new("w", 4, 1000, 1), Rows::new("w", 4, 1000, 2));
    let slow = node.client.begin_save(options(1)).unwrap();
    slow.write(&[mine.whole()], 1).unwrap();
    let fast = node.client.begin_save(options(1)).unwrap();
    fast.write(&[other.whole()], 1).unwrap();
    let winner = fast.attempt().to_owned();
    assert_eq!(commit(&node.client, fast).phase, SavePhase::Durable);
    let state = commit(&node.client, slow);
    assert_eq!(state.phase, SavePhase::Failed);
    let last_error = state.last_error.unwrap();
    assert_eq!(last_error.kind, "conflict");
    assert!(
        last_error.context.contains(&("attempt".into(), winner)),
        "{last_error:?}"
    );
    assert_eq!(loaded(&node, 1, "w"), other.bytes);
    // Whether the step is there is looked up beside the copy, and said when all is copied.
    let late = node.client.begin_save(options(1)).unwrap();
    let error = late.stage().unwrap_err();
    assert_eq!(error.kind(), Kind::AlreadyExists, "{error}");
}

#[test]
fn a_superseded_step_gets_the_next_generation_and_the_old_one_stays() {
    let node = TestNode::start();
    let (old, new) = (Rows::new("w", 4, 1000, 1), Rows::new("w", 4, 1000, 2));
    for (rows, generation) in [(&old, 1), (&new, 2)] {
        let save = node
            .client
            .begin_save(SaveOptions {
                supersede: true,
                ..options(1)
            })
            .unwrap();
        save.write(&[rows.whole()], 1).unwrap();
        assert_eq!(commit(&node.client, save).generation, generation);
    }
    assert_eq!(loaded(&node, 1, "w"), new.bytes);
    let first = node.root().manifest_of(1, 1).unwrap();
    let step = forebay_checkpoint_client::Step::new(node.root(), first);
    assert_eq!(step.whole_tensor("w", 1).unwrap(), old.bytes);
}

#[test]
fn a_save_that_was_given_up_leaves_nothing_visible_and_frees_the_memory() {
    let node = TestNode::with("staging = '4MiB'");
    let rows = Rows::new("w", 4, 1000, 1);
    let save = node.client.begin_save(options(1)).unwrap();
    save.write(&[rows.whole()], 1).unwrap();
    let id = save.id().to_owned();
    drop(save);
    let state = node.client.wait_save(&id, LONG).unwrap();
    assert_eq!(state.phase, SavePhase::Failed);
    assert_eq!(state.last_error.unwrap().kind, "cancelled");
    let staged = node.client.begin_save(rank(1, 5, 0, 2)).unwrap();
    staged.write(&[rows.whole()], 1).unwrap();
    let id = staged.stage().unwrap().id;
    node.client.abort_save(&id).unwrap();
    assert_eq!(node.client.save_state(&id).unwrap().phase, SavePhase::Failed);
    assert!(node.root().steps().unwrap().is_empty());
    let again = node.client.begin_save(options(1)).unwrap();
    again.write(&[rows.whole()], 1).unwrap();
    assert_eq!(commit(&node.client, again).phase, SavePhase::Durable);
    assert_eq!(node.client.saves(ROOT).unwrap().len(), 3);
}

#[test]
fn a_failing_rank_ends_its_siblings_at_once() {
    let node = TestNode::start();
    let rows = Rows::new("w", 4, 1000, 1);
    let first = node.client.begin_save(rank(1, 5, 0, 2)).unwrap();
    first.write(&[rows.part(0, 2)], 1).unwrap();
    let second = node.client.begin_save(rank(1, 5, 1, 2)).unwrap();
    let id = first.stage().unwrap().id;
    second.abort().unwrap();
    let state = node.client.wait_save(&id, LONG).unwrap();
    let last_error = state.last_error.unwrap();
    assert!(
        last_error.context.contains(&("failed_rank".into(), "1".into())),
        "{last_error:?}"
    );
    let late = node.client.begin_save(rank(1, 5, 1, 2)).unwrap_err();
    assert_eq!(late.kind(), Kind::Conflict, "{late}");
}

#[test]
fn ranks_gather_what_each_has_and_a_missing_one_is_named() {
    let node = TestNode::start();
    let gathered: Vec<Vec<Vec<u8>>> = std::thread::scope(|scope| {
        let ask = |number: u32| {
            let client = node.client.clone();
            scope.spawn(move || {
                client
                    .all_gather("one", number, 3, vec![number as u8], LONG)
                    .unwrap()
            })
        };
        let asked: Vec<_> = (0..3).map(ask).collect();
        asked.into_iter().map(|one| one.join().unwrap()).collect()
    });
    for payloads in gathered {
        assert_eq!(payloads, [[0], [1], [2]]);
    }
    let short = Duration::from_millis(50);
    let error = node.client.all_gather("two", 1, 3, vec![], short).unwrap_err();
    assert_eq!(error.kind(), Kind::Timeout);
    assert!(error.to_string().contains("ranks: 0, 2"), "{error}");
}

/// Saves a step of these tensors.
fn save(
    node: &TestNode,
    step: u64,
    tensors: &[&Rows],
    more: impl FnOnce(SaveOptions) -> SaveOptions,
) -> SaveState {
    let save = node.client.begin_save(more(options(step))).unwrap();
    let parts: Vec<TensorPart<'_>> = tensors.iter().map(|rows| rows.whole()).collect();
    save.write(&parts, 2).unwrap();
    commit(&node.client, save)
}

#[test]
fn what_the_parent_has_is_not_written_again_and_reads_the_same() {
    let node = TestNode::start();
    let frozen = Rows::new("frozen", 100, 10_000, 1);
    let small = Rows::new("small", 1, 100, 2);
    let trained = |seed| Rows::new("trained", 10, 10_000, seed);
    save(&node, 1, &[&frozen, &small, &trained(3)], |options| options);
    let second = save(&node, 2, &[&frozen, &small, &trained(4)], |options| options);
    assert_eq!(second.parent, Some((1, 1)));
    assert_eq!(second.reused_bytes, frozen.bytes.len() as u64);
    assert_eq!(
        second.written_bytes, 100_100,
        "small parts do not hold on to files of the parent"
    );
    // The third finds what the second has from the first.
    let third = save(&node, 3, &[&frozen, &small, &trained(5)], |options| options);
    assert_eq!(
        (third.parent, third.reused_bytes),
        (Some((2, 1)), frozen.bytes.len() as u64)
    );
    for step in [2, 3] {
        assert_eq!(loaded(&node, step, "frozen"), frozen.bytes);
        assert_eq!(loaded(&node, step, "trained"), trained(step + 2).bytes);
        verify(&node, step);
    }
    let off = save(&node, 4, &[&frozen], |options| SaveOptions {
        reuse: false,
        ..options
    });
    assert_eq!(off.reused_bytes, 0);
    assert_eq!(node.root().manifest(4).unwrap().parent, None);
}

#[test]
fn equal_tensors_of_the_parent_are_reused_and_verify() {
    let node = TestNode::start();
    let [m, v] = ["m", "v"].map(|name| Rows::new(name, 100, 10_000, 1));
    save(&node, 1, &[&m, &v], |options| options);
    let second = save(&node, 2, &[&m, &v], |options| options);
    assert_eq!(second.reused_bytes, 2_000_000);
    verify(&node, 2);
}

#[test]
fn all_of_a_step_may_be_the_parents_and_pruning_keeps_what_it_needs() {
    let node = TestNode::start();
    let frozen = Rows::new("frozen", 100, 10_000, 1);
    save(&node, 1, &[&frozen], |options| options);
    let second = save(&node, 2, &[&frozen], |options| options);
    assert_eq!((second.files, second.written_bytes), (0, 0));
    let options = forebay_checkpoint_client::PruneOptions {
        selection: forebay_checkpoint_client::PruneSelection::Steps([1].into()),
        age_ms_min: 0,
        // Long after every lease.
        now_ms: 4_000_000_000_000,
        is_dry_run: false,
    };
    node.root().prune(&options).unwrap();
    assert_eq!(loaded(&node, 2, "frozen"), frozen.bytes);
    verify(&node, 2);
}

fn kinds(state: &SaveState) -> Vec<(&str, &str)> {
    state
        .alarms
        .iter()
        .map(|(kind, name, _)| (kind.as_str(), name.as_str()))
        .collect()
}

#[test]
fn what_looks_wrong_raises_an_alarm_and_is_refused_where_asked() {
    let node = TestNode::start();
    let good = Rows::new("w", 10, 10_000, 1);
    let other = Rows::new("v", 10, 10_000, 2);
    let mut zeroed = Rows::new("w", 10, 10_000, 1);
    zeroed.bytes.fill(0);
    assert!(
        save(&node, 1, &[&good, &other], |options| options)
            .alarms
            .is_empty()
    );

    let stale = save(&node, 2, &[&good, &other], |options| options);
    assert_eq!(kinds(&stale), [("stale", "")]);
    let hole = save(&node, 3, &[&zeroed, &other], |options| options);
    assert_eq!(kinds(&hole), [("zeroed", "w")]);
    assert_eq!(node.root().manifest(3).unwrap().content.alarms.len(), 1);

    // It was all zeros before: nothing new. But nothing is new at all.
    let again = save(&node, 4, &[&zeroed, &other], |options| options);
    assert_eq!(kinds(&again), [("stale", "")]);
    let refused = save(&node, 5, &[&zeroed, &other], |options| SaveOptions {
        alarms: AlarmPolicy::Refuse,
        ..options
    });
    assert_eq!(refused.phase, SavePhase::Failed);
    assert_eq!(refused.last_error.unwrap().kind, "precondition_failed");
    assert_eq!(node.root().latest().unwrap(), Some(4));
    let quiet = save(&node, 5, &[&zeroed, &other], |options| SaveOptions {
        alarms: AlarmPolicy::Off,
        ..options
    });
    assert!(quiet.alarms.is_empty());
}

#[test]
fn numbers_that_are_none_are_counted() {
    let node = TestNode::start();
    let numbers = [1.0f32, f32::NAN, f32::INFINITY, 2.0];
    let bytes: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
    let part = TensorPart {
        name: "loss",
        dtype: Dtype::F32,
        global_shape: &[4],
        at: TensorBox::whole(&[4]),
        bytes: &bytes,
    };
    let save = node.client.begin_save(options(1)).unwrap();
    save.write(&[part], 1).unwrap();
    let state = commit(&node.client, save);
    assert_eq!(kinds(&state), [("not_finite", "loss")]);
    let said = &state.alarms[0].2;
    assert!(said.contains("2 NaN or infinite values of 4"), "{said}");
}
