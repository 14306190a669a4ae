//! Replays the corpus of the fuzz targets, and some mutations of it, with the ordinary compiler.

use forebay_s3::fuzzing;
use forebay_testkit::replay_corpus;

#[test]
fn range_headers_are_read_as_they_say() {
    replay_corpus("range_header", fuzzing::range_header);
}

#[test]
fn chunked_bodies_lose_no_byte() {
    replay_corpus("chunked_body", fuzzing::chunked_body);
}

/// Here, because this crate carries the same frames over HTTP and has the test kit.
#[test]
fn frames_of_the_wire_come_back_as_they_were() {
    replay_corpus("wire_frame", forebay_core::fuzzing::wire_frame);
}
