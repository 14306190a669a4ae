//! Replays the corpus of every fuzz target of this crate, and some mutations of it, with the ordinary
//! compiler.

use forebay_testkit::replay_corpus;

use crate::fuzzing;

#[test]
fn no_archive_is_read_past_its_end_or_differently_in_pieces() {
    replay_corpus("tar", fuzzing::tar);
}

#[test]
fn no_sample_of_an_archive_lies_outside_of_it_or_depends_on_pieces() {
    replay_corpus("tar_samples", fuzzing::tar_samples);
}

#[test]
fn no_record_lies_outside_of_its_file_or_depends_on_pieces() {
    replay_corpus("tfrecord", fuzzing::tfrecord);
}

#[test]
fn no_mds_column_lies_outside_of_its_shard_or_depends_on_pieces() {
    replay_corpus("mds", fuzzing::mds);
}

#[test]
fn no_window_or_line_lies_outside_of_its_file_or_depends_on_pieces() {
    replay_corpus("tokens", fuzzing::tokens);
}

#[test]
fn an_index_that_opens_can_be_taken_apart_and_joined() {
    replay_corpus("dataset_index", fuzzing::dataset_index);
}

#[test]
fn hostile_documents_beside_data_are_refused() {
    replay_corpus("dataset_documents", fuzzing::dataset_documents);
}

#[test]
fn a_parquet_footer_is_read_the_same_in_both_ways() {
    replay_corpus("parquet_footer", fuzzing::parquet_footer);
}

#[test]
fn a_compressed_stream_does_not_depend_on_pieces() {
    replay_corpus("shard_codec", fuzzing::shard_codec);
}
