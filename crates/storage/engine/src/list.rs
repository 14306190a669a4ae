//! Listings: always from the lake, complete or an error, without our own documents. Only places of computed
//! objects are listed by whoever computes them (`derived.rs`).

use forebay_core::{BucketName, RESERVED_PREFIX, Result};
use forebay_lake::{ListOptions, ListPage};

use crate::bucket::Bucket;
use crate::{Engine, ObjectInfo};

impl Engine {
    /// One page of keys in byte order. Pages are filled up to `limit` (0 = the lake's own page size).
    pub async fn list(&self, bucket: &BucketName, options: ListOptions) -> Result<ListPage> {
        let bucket = self.buckets.open(bucket)?;
        for derived in bucket.derived() {
            if let Some(page) = derived.list(&bucket.shared, &options).await? {
                return Ok(page);
            }
        }
        let limit = options.limit;
        let mut ask = options;
        let mut found = ListPage::default();
        loop {
            let listing = self.freshness.begin_list();
            let page = bucket.lake.list(ask.clone()).await?;
            for object in page.objects.iter().filter(|object| !object.key.is_reserved()) {
                listing.found(ObjectInfo::listed(&bucket, object));
            }
            let nothing_there = page.objects.is_empty() && page.prefixes.is_empty() && page.next.is_none();
            found.objects.extend(
                page.objects
                    .into_iter()
                    .filter(|object| !object.key.is_reserved()),
            );
            for prefix in page.prefixes {
                if shows(&bucket, &prefix).await? {
                    found.prefixes.push(prefix);
                }
            }
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

/// Returns whether there is more under a common prefix than our own documents. Only an odd delimiter (`.`,
/// `y`) makes it worth asking.
async fn shows(bucket: &Bucket, prefix: &str) -> Result<bool> {
    if prefix.starts_with(RESERVED_PREFIX) {
        return Ok(false);
    }
    if !RESERVED_PREFIX.starts_with(prefix) {
        return Ok(true);
    }
    let mut ask = ListOptions {
        prefix: prefix.into(),
        ..ListOptions::default()
    };
    loop {
        let page = bucket.lake.list(ask.clone()).await?;
        if page.objects.iter().any(|object| !object.key.is_reserved()) {
            return Ok(true);
        }
        let Some(next) = page.next else { return Ok(false) };
        ask.start_after = Some(skip_reserved(next));
    }
}

/// Returns where to go on: behind all our own documents if the page ended among them. Never further back than
/// the page did.
fn skip_reserved(next: String) -> String {
    if next.starts_with(RESERVED_PREFIX) {
        return next.max(format!("{RESERVED_PREFIX}{}", char::MAX));
    }
    next
}
