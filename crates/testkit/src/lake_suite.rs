//! The behaviour that every lake shares, as small named checks.
//!
//! Each check has a key prefix of its own, so a suite can run on a store that holds other things, and twice.
//! All checks run even if some fail; the suite then panics with the names of those that did (their messages
//! are printed as they happen). Where stores differ, [`LakeTraits`] says what to expect.

mod conditions;
mod copies;
mod listing;
mod paging;
mod reads;
mod uploads;
mod writes;

use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use bytes::Bytes;
use forebay_core::{Error, Kind, ObjectKey, Result};
use forebay_lake::{Attributes, GetOptions, GetRange, Lake, ListOptions, ListPage, PutOptions, PutReceipt};
use futures::FutureExt;
use futures::future::BoxFuture;

use crate::read_all;

/// Promises of a lake beyond the common ground.
#[derive(Debug, Clone, Copy)]
pub struct LakeTraits {
    /// ETags are MD5 (of the bytes, or of the parts' MD5s), as on S3.
    pub exact_etags: bool,
    /// `PutMode::Create` holds, also in a race.
    pub conditional_create: bool,
    /// `PutMode::Update` holds, also in a race.
    pub conditional_update: bool,
    /// `delete_if` holds, also in a race.
    pub conditional_delete: bool,
    /// Content type, encoding, language, disposition, cache control and user metadata come back.
    pub attributes: bool,
    /// `copy` can replace attributes and pin the version of the source.
    pub copy_options: bool,
    /// A key may end with `/`.
    pub marker_keys: bool,
    /// Keys are names, not paths: `a\\b` is not `a/b`, a folder is nothing that a read or listing can find.
    pub plain_keys: bool,
    /// Groups at delimiters other than `/`.
    pub any_delimiter: bool,
    /// Parts before the last may be smaller than 5 MiB.
    pub any_part_size: bool,
    /// A wrong part ETag at completion, and an unknown upload, are refused as such.
    pub strict_uploads: bool,
    /// `complete_upload` honours `PutMode`.
    pub conditional_complete: bool,
}

impl LakeTraits {
    /// Everything, as our own lakes have it.
    #[must_use]
    pub const fn exact() -> Self {
        Self {
            exact_etags: true,
            conditional_create: true,
            conditional_update: true,
            conditional_delete: true,
            attributes: true,
            copy_options: true,
            marker_keys: true,
            plain_keys: true,
            any_delimiter: true,
            any_part_size: true,
            strict_uploads: true,
            conditional_complete: true,
        }
    }
}

/// Runs all checks on a lake.
pub async fn lake_suite(lake: Arc<dyn Lake>, traits: LakeTraits) {
    let run = format!("suite-{:08x}", fastrand::u32(..));
    let mut failed = Vec::new();
    for (name, check) in CHECKS {
        let fixture = LakeFixture {
            lake: Arc::clone(&lake),
            traits,
            prefix: format!("{run}/{name}/"),
        };
        if AssertUnwindSafe(check(fixture)).catch_unwind().await.is_err() {
            failed.push(*name);
        }
    }
    assert!(
        failed.is_empty(),
        "{} of {} checks failed on {}: {failed:?}",
        failed.len(),
        CHECKS.len(),
        lake.url()
    );
}

type Check = fn(LakeFixture) -> BoxFuture<'static, ()>;

macro_rules! checks {
    ($($module:ident: $($name:ident)+;)+) => {
        &[$($((stringify!($name), |fixture| $module::$name(fixture).boxed())),+),+]
    };
}

const CHECKS: &[(&str, Check)] = checks! {
    reads: get_returns_what_was_put head_and_get_agree missing_object_is_not_found empty_object_reads_as_nothing
        large_object_reads_whole range_in_the_middle_is_exact range_end_is_cut_at_the_object_end
        range_past_end_is_out_of_range range_of_an_empty_object_is_out_of_range range_from_an_offset
        range_of_the_last_bytes range_across_a_large_object matching_version_reads other_version_is_changed
        replaced_object_is_never_mixed;
    writes: overwrite_replaces_bytes_and_version etag_is_the_md5 wrong_md5_leaves_nothing right_md5_is_accepted
        attributes_come_back overwrite_replaces_all_attributes attributes_may_be_given_at_finish
        writer_shows_nothing_before_finish dropped_writer_leaves_nothing aborted_writer_leaves_nothing
        writer_takes_pieces_of_any_size odd_keys_are_kept_apart long_key_is_kept delete_removes
        delete_of_nothing_is_fine delete_leaves_neighbours marker_keys_are_objects parallel_overwrites_leave_one_whole;
    conditions: create_makes_an_object create_refuses_an_existing_one create_works_again_after_delete
        racing_creates_have_one_winner update_with_the_current_token_replaces update_with_an_old_token_is_refused
        update_of_nothing_is_refused racing_updates_have_one_winner token_of_a_put_serves_the_next_update
        delete_with_the_current_token_removes delete_with_an_old_token_is_refused racing_deletes_have_one_winner;
    copies: copy_keeps_bytes_and_attributes copy_replaces_attributes copy_onto_itself_changes_attributes
        copy_of_nothing_is_not_found copy_of_another_version_is_changed copy_overwrites;
    listing: keys_come_in_byte_order listed_object_equals_its_head nothing_lists_as_nothing
        prefix_may_end_inside_a_name delimiter_groups_below_the_prefix delimiter_at_the_end_of_the_prefix
        other_delimiters_group start_after_is_exclusive start_after_a_common_prefix_skips_it
        deleted_objects_leave_the_listing;
    paging: pages_of_every_size_add_up pages_with_a_delimiter_add_up last_page_has_no_next;
    uploads: upload_joins_its_parts upload_takes_numbers_with_gaps part_again_replaces_it
        nothing_is_visible_before_completion upload_attributes_are_kept aborted_upload_is_gone
        abort_of_nothing_is_fine completion_names_only_some_parts wrong_part_etag_is_refused
        parts_out_of_order_are_refused wrong_part_size_is_refused uploads_of_one_key_are_apart
        completion_may_be_conditional;
};

/// The lake that a check works with, and a prefix for keys that are only its own.
#[derive(Clone)]
struct LakeFixture {
    lake: Arc<dyn Lake>,
    traits: LakeTraits,
    prefix: String,
}

impl LakeFixture {
    fn key(&self, name: &str) -> ObjectKey {
        ObjectKey::new(&format!("{}{name}", self.prefix)).unwrap()
    }

    async fn put(&self, name: &str, body: impl Into<Bytes>) -> PutReceipt {
        let result = self
            .lake
            .put(&self.key(name), body.into(), PutOptions::default())
            .await;
        result.unwrap_or_else(|error| panic!("put {name}: {error:?}"))
    }

    /// All bytes of an object.
    async fn read(&self, name: &str) -> Bytes {
        self.try_read(name, GetOptions::default())
            .await
            .unwrap_or_else(|error| panic!("read {name}: {error:?}"))
    }

    async fn read_range(&self, name: &str, range: GetRange) -> Result<Bytes> {
        self.try_read(
            name,
            GetOptions {
                range: Some(range),
                ..GetOptions::default()
            },
        )
        .await
    }

    /// The bytes asked for, after checking that the answer says as many as it has.
    async fn try_read(&self, name: &str, options: GetOptions) -> Result<Bytes> {
        let result = self.lake.get(&self.key(name), options).await?;
        let announced = result.bytes;
        let bytes = read_all(result.body).await?;
        assert_eq!(
            bytes.len() as u64,
            announced,
            "get of {name} announces as many bytes as it gives"
        );
        Ok(bytes)
    }

    async fn is_absent(&self, name: &str) -> bool {
        matches!(self.lake.head(&self.key(name)).await, Err(error) if error.kind() == Kind::NotFound)
    }

    /// One page; `options.prefix` and `start_after` are below the check's prefix, and so is what comes back.
    async fn list(&self, options: ListOptions) -> Listed {
        let below = ListOptions {
            prefix: format!("{}{}", self.prefix, options.prefix),
            start_after: options.start_after.map(|start| format!("{}{start}", self.prefix)),
            ..options
        };
        let page = self
            .lake
            .list(below)
            .await
            .unwrap_or_else(|error| panic!("list: {error:?}"));
        Listed::new(&page, &self.prefix)
    }

    /// The size of parts before the last.
    fn part_bytes(&self) -> usize {
        if self.traits.any_part_size { 3000 } else { 5 << 20 }
    }
}

/// Names on a page, without the check's prefix.
#[derive(Debug, PartialEq, Eq)]
struct Listed {
    objects: Vec<String>,
    prefixes: Vec<String>,
    next: Option<String>,
}

impl Listed {
    fn new(page: &ListPage, prefix: &str) -> Self {
        let strip = |name: &str| {
            name.strip_prefix(prefix)
                .unwrap_or_else(|| panic!("{name} was listed for prefix {prefix}"))
                .to_owned()
        };
        Self {
            objects: page
                .objects
                .iter()
                .map(|object| strip(object.key.as_str()))
                .collect(),
            prefixes: page.prefixes.iter().map(|prefix| strip(prefix)).collect(),
            next: page.next.as_deref().map(strip),
        }
    }
}

fn kind_of<T>(result: Result<T, Error>) -> Option<Kind> {
    result.err().map(|error| error.kind())
}

/// Attributes with every field set.
fn full_attributes() -> Attributes {
    Attributes {
        content_type: Some("application/x-forebay".to_owned()),
        content_encoding: Some("identity".to_owned()),
        content_language: Some("de".to_owned()),
        content_disposition: Some("attachment; filename=\"x\"".to_owned()),
        cache_control: Some("max-age=60".to_owned()),
        user: [
            ("first".to_owned(), "1".to_owned()),
            ("second".to_owned(), "two words".to_owned()),
        ]
        .into(),
    }
}
