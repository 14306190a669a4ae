//! Listings: always from the lake, complete or an error, without our own documents.

use forebay_core::{BucketName, RESERVED_PREFIX, Result};
use forebay_lake::{ListOptions, ListPage};

use crate::Engine;

impl Engine {
    /// One page of keys in byte order. Pages are filled up to `limit` (0 = the lake's own page size).
    pub async fn list(&self, bucket: &BucketName, options: ListOptions) -> Result<ListPage> {
        let bucket = self.buckets.open(bucket)?;
        let limit = options.limit;
        let mut ask = options;
        let mut found = ListPage::default();
        loop {
            let page = bucket.lake.list(ask.clone()).await?;
            let nothing_there = page.objects.is_empty() && page.prefixes.is_empty() && page.next.is_none();
            found.objects.extend(
                page.objects
                    .into_iter()
                    .filter(|object| !object.key.is_reserved()),
            );
            found.prefixes.extend(
                page.prefixes
                    .into_iter()
                    .filter(|prefix| !prefix.starts_with(RESERVED_PREFIX)),
            );
            found.next = page.next.map(skip_reserved);
            if nothing_there && found.objects.is_empty() && found.prefixes.is_empty() {
                self.buckets.check_exists(&bucket).await?;
            }
            let count = found.objects.len() + found.prefixes.len();
            let Some(next) = found.next.clone() else {
                return Ok(found);
            };
            if (limit == 0 && count > 0) || (limit > 0 && count >= limit) {
                return Ok(found);
            }
            ask.start_after = Some(next);
            ask.limit = limit.saturating_sub(count);
        }
    }
}

/// Where to go on: behind all our own documents if the page ended among them.
fn skip_reserved(next: String) -> String {
    if next.starts_with(RESERVED_PREFIX) {
        return format!("{RESERVED_PREFIX}{}", char::MAX);
    }
    next
}
