//! One page of a listing from a store that lists in byte order.

use forebay_core::{Error, Kind, ObjectKey, Result};
use object_store::ListResult;
use object_store::list::PaginatedListOptions;

use super::CloudStore;
use super::convert::{error_from, version_of};
use crate::{ListOptions, ListPage, ListedObject};

const LIMIT_MAX: usize = 1000;

/// One page. Names up to `start_after` may come again (a common prefix does, and Azure starts at the name
/// itself), so they are dropped here.
pub(super) async fn list(store: &dyn CloudStore, options: &ListOptions) -> Result<ListPage> {
    if options
        .delimiter
        .as_deref()
        .is_some_and(|delimiter| delimiter != "/")
    {
        return Err(Error::new(
            Kind::Unsupported,
            "this lake groups listings only at `/`",
        ));
    }
    let limit = if options.limit == 0 {
        LIMIT_MAX
    } else {
        options.limit.min(LIMIT_MAX)
    };
    let mut page = ListPage::default();
    let mut token: Option<String> = None;
    loop {
        let asked = PaginatedListOptions {
            offset: options.start_after.clone().filter(|after| !after.is_empty()),
            delimiter: options.delimiter.clone().map(Into::into),
            max_keys: Some(limit + 1),
            page_token: token.take(),
            ..PaginatedListOptions::default()
        };
        let prefix = Some(options.prefix.as_str()).filter(|prefix| !prefix.is_empty());
        let answer = store
            .list_paginated(prefix, asked)
            .await
            .map_err(|error| error_from(error, Kind::Changed))?;
        add(&mut page, answer.result, options)?;
        token = answer.page_token;
        if token.is_none() || page.objects.len() + page.prefixes.len() >= limit {
            break;
        }
    }
    Ok(cut(page, limit, token.is_some()))
}

fn add(page: &mut ListPage, result: ListResult, options: &ListOptions) -> Result<()> {
    let after = options.start_after.as_deref().unwrap_or_default();
    for object in result.objects {
        let key = object.location.as_ref();
        if key > after && key.starts_with(&options.prefix) {
            let (key, version) = (ObjectKey::new(key)?, version_of(&object)?);
            let modified = object.last_modified.into();
            page.objects.push(ListedObject {
                key,
                bytes: object.size,
                version,
                modified,
            });
        }
    }
    let prefixes = result.common_prefixes.iter().map(|prefix| format!("{prefix}/"));
    page.prefixes
        .extend(prefixes.filter(|prefix| prefix.as_str() > after));
    Ok(())
}

/// Keeps the first `limit` names of both kinds together.
fn cut(mut page: ListPage, limit: usize, has_more: bool) -> ListPage {
    page.objects.sort_by(|a, b| a.key.cmp(&b.key));
    page.prefixes.sort();
    page.prefixes.dedup();
    let mut names: Vec<&str> = page.objects.iter().map(|object| object.key.as_str()).collect();
    names.extend(page.prefixes.iter().map(String::as_str));
    names.sort_unstable();
    if !has_more && names.len() <= limit {
        return page;
    }
    let Some(last) = names
        .get(limit.min(names.len()).saturating_sub(1))
        .map(|name| (*name).to_owned())
    else {
        return page;
    };
    page.objects.retain(|object| object.key.as_str() <= last.as_str());
    page.prefixes.retain(|prefix| *prefix <= last);
    page.next = Some(last);
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_cut_in_the_order_of_objects_and_prefixes_together() {
        let object = |key: &str| ListedObject {
            key: ObjectKey::new(key).unwrap(),
            bytes: 0,
            version: forebay_core::Version::new("v"),
            modified: std::time::SystemTime::UNIX_EPOCH,
        };
        let page = ListPage {
            objects: vec![object("a"), object("c")],
            prefixes: vec!["b/".into(), "d/".into()],
            next: None,
        };
        let first = cut(page.clone(), 2, false);
        assert_eq!(
            (first.objects.len(), first.prefixes.len(), first.next.as_deref()),
            (1, 1, Some("b/"))
        );
        assert_eq!(cut(page.clone(), 4, false).next, None);
        assert_eq!(cut(page, 4, true).next.as_deref(), Some("d/"));
    }
}
