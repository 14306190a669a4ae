//! Replays the corpus of the fuzz targets, and some mutations of it, with the ordinary compiler.

use forebay_testkit::replay_corpus;

use crate::fuzzing;

#[test]
fn range_headers_are_read_as_they_say() {
    replay_corpus("range_header", fuzzing::range_header);
}

#[test]
fn chunked_bodies_lose_no_byte() {
    replay_corpus("chunked_body", fuzzing::chunked_body);
}
