//! Replays the corpus of the fuzz target, and some mutations of it, with the ordinary compiler.

use forebay_dataset::fuzzing;
use forebay_testkit::replay_corpus;

#[test]
fn no_archive_is_read_past_its_end_or_differently_in_pieces() {
    replay_corpus("tar", fuzzing::tar);
}
