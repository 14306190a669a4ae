//! Listing by looking at every key: slow, and hard to get wrong, because other lakes are compared with it.

use std::collections::{BTreeMap, BTreeSet};

use forebay_core::ObjectKey;

use super::Stored;
use crate::{ListOptions, ListPage, ListedObject};

/// Page size when the caller names no limit.
const LIST_LIMIT_DEFAULT: usize = 1000;

/// One page.
pub(super) fn page_of(objects: &BTreeMap<ObjectKey, Stored>, options: &ListOptions) -> ListPage {
    let limit = if options.limit == 0 {
        LIST_LIMIT_DEFAULT
    } else {
        options.limit
    };
    let mut page = ListPage::default();
    let mut seen = BTreeSet::new();
    let mut last = None;
    for (key, stored) in objects {
        let group = group_of(key.as_str(), options);
        let name = group.unwrap_or(key.as_str());
        let is_past = options.start_after.as_deref().is_none_or(|start| name > start);
        if !key.as_str().starts_with(&options.prefix) || !is_past || seen.contains(name) {
            continue;
        }
        if seen.len() == limit {
            page.next = last;
            break;
        }
        seen.insert(name);
        last = Some(name.to_owned());
        match group {
            Some(group) => page.prefixes.push(group.to_owned()),
            None => page.objects.push(ListedObject {
                key: key.clone(),
                bytes: stored.body.len() as u64,
                version: stored.version.clone(),
                modified: stored.modified,
            }),
        }
    }
    page
}

/// The common prefix that a key falls under, if it has the delimiter after the prefix.
fn group_of<'a>(key: &'a str, options: &ListOptions) -> Option<&'a str> {
    let delimiter = options
        .delimiter
        .as_deref()
        .filter(|delimiter| !delimiter.is_empty())?;
    let rest = key.strip_prefix(&options.prefix)?;
    let end = options.prefix.len() + rest.find(delimiter)? + delimiter.len();
    Some(&key[..end])
}
