//! Replays the corpus of every fuzz target of this crate, and some mutations of it, with the ordinary
//! compiler.

use forebay_testkit::replay_corpus;

use crate::fuzzing;

#[test]
fn a_manifest_that_is_accepted_can_be_planned_for_and_reads_back() {
    replay_corpus("checkpoint_manifest", fuzzing::checkpoint_manifest);
}

#[test]
fn no_frame_makes_more_than_it_stands_for_and_frames_come_out_again() {
    replay_corpus("checkpoint_delta", fuzzing::checkpoint_delta);
}
