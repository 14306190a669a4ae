//! One page of a listing, from as many ListObjectsV2 requests as it takes.
//!
//! A page goes on after a name, not after a token, so that any node can serve the next one. S3's
//! `start-after` names a key: given a common prefix it lists that prefix again, so names up to `start_after`
//! are dropped here, and the next request follows the server's token until the page has something or the
//! listing is over.
//!
//! Some servers (SeaweedFS) list folder by folder instead of in byte order: `a/x` before `a-b`. Going on
//! after a name would lose keys there. Such a server is known by its `Server` header or found out by its
//! answers; from then on pages come from [`super::walk`], which puts the folders back in order.

use std::sync::atomic::{AtomicBool, Ordering};

use async_trait::async_trait;
use forebay_core::{Error, Kind, Result};
use http::Method;

use super::client::{Call, S3Client};
use super::walk::{Level, Levels, walk};
use super::xml::{self, ListBody};
use crate::backend::s3::http::answer_text;
use crate::layer::clean_keys::is_clean_path;
use crate::{ListOptions, ListPage, ListedObject};

/// The largest page that S3 gives.
const LIMIT_MAX: usize = 1000;
/// A page of 1000 keys of 1 KiB, each byte escaped, and what surrounds them.
const PAGE_BYTES_MAX: usize = 16 << 20;

/// An object or a common prefix.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Entry {
    Object(ListedObject),
    Prefix(String),
}

impl Entry {
    pub(crate) fn name(&self) -> &str {
        match self {
            Self::Object(object) => object.key.as_str(),
            Self::Prefix(prefix) => prefix,
        }
    }
}

/// Lists a bucket and remembers in which order its server does.
#[derive(Debug, Default)]
pub(crate) struct Lister {
    by_folder: AtomicBool,
}

impl Lister {
    /// One page in byte order.
    pub(crate) async fn list(&self, client: &S3Client, options: &ListOptions) -> Result<ListPage> {
        let limit = if options.limit == 0 {
            LIMIT_MAX
        } else {
            options.limit.min(LIMIT_MAX)
        };
        if !self.is_by_folder(client) {
            let page = self.list_in_byte_order(client, options, limit).await?;
            if !self.is_by_folder(client) {
                return Ok(page);
            }
        }
        if client.normalizes_keys() && !is_clean_path(&options.prefix) {
            return Ok(ListPage::default());
        }
        walk(&Folders { client, lister: self }, options, limit).await
    }

    fn is_by_folder(&self, client: &S3Client) -> bool {
        self.by_folder.load(Ordering::Relaxed) || client.normalizes_keys()
    }

    async fn list_in_byte_order(
        &self,
        client: &S3Client,
        options: &ListOptions,
        limit: usize,
    ) -> Result<ListPage> {
        let mut entries: Vec<Entry> = Vec::new();
        let mut token = None;
        loop {
            // One more, because the name that we go on after may be listed again.
            let ask = (limit - entries.len() + usize::from(options.delimiter.is_some())).min(LIMIT_MAX);
            let request = Request {
                prefix: &options.prefix,
                delimiter: options.delimiter.as_deref(),
                start_after: options.start_after.as_deref(),
                token: token.as_deref(),
                limit: ask,
            };
            let body = self.request(client, &request).await?;
            let fresh = entries_of(&body, &options.prefix)?;
            if self.is_by_folder(client) {
                return Ok(ListPage::default());
            }
            self.check_order(&entries, &fresh, options)?;
            entries.extend(fresh.into_iter().filter(|entry| is_after(entry, options)));
            token = body.next_continuation_token;
            if token.is_none() || entries.len() >= limit {
                break;
            }
        }
        Ok(page_of(entries, limit, token.is_some()))
    }

    /// A server that proves not to list in byte order is listed folder by folder from now on.
    fn check_order(&self, entries: &[Entry], fresh: &[Entry], options: &ListOptions) -> Result<()> {
        let follows = entries
            .last()
            .zip(fresh.first())
            .is_none_or(|(last, first)| last.name() < first.name());
        let after = options.start_after.as_deref().unwrap_or_default();
        let is_behind = |entry: &Entry| entry.name() <= after && !after.starts_with(entry.name());
        if follows && !fresh.iter().any(is_behind) {
            return Ok(());
        }
        self.by_folder.store(true, Ordering::Relaxed);
        tracing::warn!("the lake does not list keys in byte order; listing it folder by folder from now on");
        if options.start_after.is_none() {
            return Ok(());
        }
        // Pages that went out before may lack keys.
        Err(Error::new(
            Kind::Unsupported,
            "the lake does not list keys in byte order; start this listing again",
        ))
    }

    async fn request(&self, client: &S3Client, request: &Request<'_>) -> Result<ListBody> {
        let response = client.call(&request.call()).await?;
        let mut body: ListBody = xml::parse(&answer_text(response.into_body(), PAGE_BYTES_MAX).await?)?;
        if body.is_truncated && body.next_continuation_token.is_none() {
            return Err(Error::new(
                Kind::Unavailable,
                "the lake cut a listing short and did not say how to go on",
            ));
        }
        if !body.is_truncated {
            body.next_continuation_token = None;
        }
        Ok(body)
    }
}

fn is_after(entry: &Entry, options: &ListOptions) -> bool {
    options
        .start_after
        .as_deref()
        .is_none_or(|after| entry.name() > after)
}

/// Objects and prefixes of one answer, sorted by name. A server that takes keys for paths may find `a/b`
/// under `a//`.
fn entries_of(body: &ListBody, prefix: &str) -> Result<Vec<Entry>> {
    let mut entries: Vec<Entry> = body.objects()?.into_iter().map(Entry::Object).collect();
    entries.extend(body.prefixes()?.into_iter().map(Entry::Prefix));
    entries.retain(|entry| entry.name().starts_with(prefix));
    entries.sort_by(|a, b| a.name().cmp(b.name()));
    Ok(entries)
}

/// The first `limit` entries as a page.
pub(crate) fn page_of(mut entries: Vec<Entry>, limit: usize, has_more: bool) -> ListPage {
    let is_last = !has_more && entries.len() <= limit;
    entries.truncate(limit);
    let mut page = ListPage::default();
    if !is_last {
        page.next = entries.last().map(|entry| entry.name().to_owned());
    }
    for entry in entries {
        match entry {
            Entry::Object(object) => page.objects.push(object),
            Entry::Prefix(prefix) => page.prefixes.push(prefix),
        }
    }
    page
}

struct Request<'a> {
    prefix: &'a str,
    delimiter: Option<&'a str>,
    start_after: Option<&'a str>,
    token: Option<&'a str>,
    limit: usize,
}

impl Request<'_> {
    fn call(&self) -> Call<'static> {
        let mut call = Call::new(Method::GET, None)
            .query("list-type", "2")
            .query("encoding-type", "url")
            .query("max-keys", self.limit.to_string());
        if !self.prefix.is_empty() {
            call = call.query("prefix", self.prefix);
        }
        if let Some(delimiter) = self.delimiter {
            call = call.query("delimiter", delimiter);
        }
        if let Some(after) = self.start_after.filter(|after| !after.is_empty()) {
            call = call.query("start-after", after);
        }
        if let Some(token) = self.token {
            call = call.query("continuation-token", token);
        }
        call
    }
}

/// One folder at a time, for [`walk`].
struct Folders<'a> {
    client: &'a S3Client,
    lister: &'a Lister,
}

#[async_trait]
impl Levels for Folders<'_> {
    async fn level(&self, prefix: &str, start_after: Option<&str>, token: Option<&str>) -> Result<Level> {
        let request = Request {
            prefix,
            delimiter: Some("/"),
            start_after,
            token,
            limit: LIMIT_MAX,
        };
        let body = self.lister.request(self.client, &request).await?;
        Ok(Level {
            entries: entries_of(&body, prefix)?,
            token: body.next_continuation_token,
        })
    }

    async fn has_objects(&self, prefix: &str) -> Result<bool> {
        let mut token = None;
        loop {
            let request = Request {
                prefix,
                delimiter: None,
                start_after: None,
                token: token.as_deref(),
                limit: 1,
            };
            let body = self.lister.request(self.client, &request).await?;
            if !entries_of(&body, prefix)?.is_empty() {
                return Ok(true);
            }
            token = body.next_continuation_token;
            if token.is_none() {
                return Ok(false);
            }
        }
    }
}
