//! Several ranks on one or two nodes, one of which is killed at a labelled point, with or without its trainer
//! and the other node; then all are started again. A reader sees the old step or the new one, whole; what was
//! acknowledged as durable is there, and what all ranks had staged on disk is finished, also if the step
//! whose files it reuses is gone by then.
#![allow(clippy::unwrap_used, reason = "a failure here is the failure of a test")]

#[path = "../fixture/mod.rs"]
mod fixture;
mod job;
mod stage;
mod story;

use fixture::process::all_points;
use stage::play;
use story::{AGAIN, LATER_MS, Story};

/// Number of seeds that are tried (more take longer), or their range, as in `40..60`.
const SEEDS: &str = "FOREBAY_CRASH_SEEDS";
const SEEDS_BY_DEFAULT: u64 = 12;

#[test]
#[ignore = "a process that other tests start and kill"]
fn node_process() {
    fixture::process::run_node();
}

#[test]
#[ignore = "a process that other tests start and kill"]
fn trainer_process() {
    stage::run_trainer();
}

#[test]
fn ranks_of_one_node_that_dies_anywhere_leave_the_old_step_or_the_new_one() {
    for label in all_points() {
        play(&Story::plain(&[0, 0], 0, label));
    }
}

#[test]
fn ranks_of_two_nodes_of_which_one_dies_anywhere_leave_the_old_step_or_the_new_one() {
    for (number, label) in all_points().enumerate() {
        play(&Story::plain(&[0, 1], number % 2, label));
        play(&Story::plain(&[0, 1], 1 - number % 2, label));
    }
}

#[test]
fn a_trainer_that_dies_with_its_node_leaves_the_old_step_or_the_new_one() {
    for label in all_points() {
        let story = Story {
            trainer_dies: true,
            ..Story::plain(&[0, 0], 0, label)
        };
        play(&story);
    }
}

#[test]
fn ranks_whose_parent_is_pruned_while_they_are_dead_are_finished_without_it() {
    for (number, again) in AGAIN.into_iter().enumerate() {
        let nodes: &[usize] = if number % 2 == 0 { &[0, 0] } else { &[0, 1] };
        for age in [0, LATER_MS] {
            let story = Story {
                others_die: true,
                pruned: Some(age),
                again: Some(again),
                ..Story::plain(nodes, 0, "before-commit")
            };
            play(&story);
        }
    }
}

#[test]
fn whoever_dies_where_and_how_often_a_step_is_whole_or_absent() {
    for seed in seeds() {
        let story = Story::by_seed(seed);
        println!("seed {seed}: {story:?}");
        play(&story);
    }
}

fn seeds() -> std::ops::Range<u64> {
    let Ok(text) = std::env::var(SEEDS) else {
        return 0..SEEDS_BY_DEFAULT;
    };
    let (first, end) = text.split_once("..").unwrap_or(("0", &text));
    first.parse().unwrap()..end.parse().unwrap()
}
