//! Replays the corpus of the fuzz target, and some mutations of it, with the ordinary compiler.

use forebay_testkit::replay_corpus;

use crate::fuzzing;

#[test]
fn keys_never_leave_the_folder() {
    replay_corpus("key_path", fuzzing::key_path);
}
