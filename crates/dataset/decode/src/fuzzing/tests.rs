//! Replays the corpus of the fuzz target of this crate, and some mutations of it, with the ordinary compiler.

use forebay_testkit::replay_corpus;

use crate::fuzzing;

#[test]
fn no_bytes_of_a_field_make_a_decoder_panic_or_lie_about_its_size() {
    replay_corpus("decode", fuzzing::decode);
}
