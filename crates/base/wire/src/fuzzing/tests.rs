//! Replays the corpus of the fuzz target, and some mutations of it, with the ordinary compiler.

use forebay_testkit::replay_corpus;

use crate::fuzzing;

#[test]
fn frames_of_the_wire_come_back_as_they_were() {
    replay_corpus("wire_frame", fuzzing::wire_frame);
}
