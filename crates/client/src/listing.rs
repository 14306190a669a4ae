//! A listing: pages of the node, given out one entry at a time.

use std::collections::VecDeque;

use forebay_core::Result;
use forebay_wire::objects::{ListRequest, ListedObject};

use crate::Client;

/// Options of a listing.
#[derive(Debug, Clone, Default)]
pub struct ListOptions {
    /// Keys start with this.
    pub prefix: String,
    /// Keys that have this behind the prefix are given as one [`Entry::Prefix`].
    pub delimiter: Option<String>,
    /// Objects and prefixes of one page; 0 is the node's choice.
    pub page_entries: u32,
}

/// One line of a listing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Entry {
    /// An object.
    Object(ListedObject),
    /// All keys that start with this.
    Prefix(String),
}

/// An iterator over a listing. Pages are asked for as it goes; it ends after an error.
pub struct Listing {
    client: Client,
    request: Option<ListRequest>,
    entries: VecDeque<Entry>,
}

impl Listing {
    pub(crate) fn new(client: Client, bucket: &str, options: ListOptions) -> Self {
        Self {
            client,
            request: Some(ListRequest {
                bucket: bucket.into(),
                prefix: options.prefix,
                delimiter: options.delimiter,
                after: None,
                limit: options.page_entries,
            }),
            entries: VecDeque::new(),
        }
    }

    fn next_page(&mut self, request: ListRequest) -> Result<()> {
        let listed = self.client.list_page(request.clone())?;
        self.entries.extend(listed.objects.into_iter().map(Entry::Object));
        self.entries
            .extend(listed.prefixes.into_iter().map(Entry::Prefix));
        // A place that does not move would be an endless loop.
        let next = listed.next.filter(|next| Some(next) != request.after.as_ref());
        self.request = next.map(|next| ListRequest {
            after: Some(next),
            ..request
        });
        Ok(())
    }
}

impl Iterator for Listing {
    type Item = Result<Entry>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(entry) = self.entries.pop_front() {
                return Some(Ok(entry));
            }
            let request = self.request.take()?;
            if let Err(error) = self.next_page(request) {
                return Some(Err(error));
            }
        }
    }
}
