//! One page of a listing: the walk in key order, grouped at the delimiter, cut at the limit.
//!
//! With the delimiter `/` a folder is a common prefix as soon as one object is found below it, and is not
//! walked. Any other delimiter walks all keys, but skips what falls under a common prefix that is already on
//! the page. A file that vanishes while the page is made is left out; a folder that cannot be read is an
//! error.

use forebay_core::{Kind, ObjectKey, Result};

use super::lookup::{FileLocation, head_at};
use super::sidecar::Sidecars;
use super::tree::Tree;
use super::walk::{Bounds, Step, Walk, has_object};
use crate::{ListOptions, ListPage, ListedObject};

/// Page size when the caller names no limit.
const LIST_LIMIT_DEFAULT: usize = 1000;

/// The most that a page holds, whatever the caller asks for.
const LIST_LIMIT_MAX: usize = 10_000;

/// Makes one page.
pub(super) fn page(tree: &Tree, options: &ListOptions) -> Result<ListPage> {
    let bounds = Bounds {
        prefix: &options.prefix,
        start_after: options.start_after.as_deref(),
    };
    let mut lister = Lister::new(tree, options)?;
    let mut walk = Walk::start(tree, bounds)?;
    while let Some(step) = walk.next() {
        let is_full = match step {
            Step::File { key, name } => lister.file(&walk, &key, &name)?,
            Step::Folder { prefix, name } => lister.folder(&mut walk, prefix, &name)?,
        };
        if is_full {
            break;
        }
    }
    Ok(lister.page)
}

struct Lister<'a> {
    tree: &'a Tree,
    sidecars: Sidecars,
    options: &'a ListOptions,
    delimiter: Option<&'a str>,
    limit: usize,
    page: ListPage,
    /// The greatest name on the page.
    last: Option<String>,
}

impl<'a> Lister<'a> {
    fn new(tree: &'a Tree, options: &'a ListOptions) -> Result<Self> {
        let limit = if options.limit == 0 {
            LIST_LIMIT_DEFAULT
        } else {
            options.limit.min(LIST_LIMIT_MAX)
        };
        let delimiter = options
            .delimiter
            .as_deref()
            .filter(|delimiter| !delimiter.is_empty());
        let sidecars = Sidecars::open(tree)?;
        Ok(Self {
            tree,
            sidecars,
            options,
            delimiter,
            limit,
            page: ListPage::default(),
            last: None,
        })
    }

    /// Lists a file or its group. Says whether the page is full and there is more.
    fn file(&mut self, walk: &Walk<'_>, key: &str, name: &str) -> Result<bool> {
        if self.is_grouped(key) {
            return Ok(false);
        }
        // The name may be one that no key can have: then no request could ask for it either.
        let (Some(object_key), Some(parent)) = (ObjectKey::new(key).ok(), walk.folder()) else {
            return Ok(false);
        };
        let meta = match head_at(
            self.tree,
            &self.sidecars,
            FileLocation {
                parent,
                name,
                key: &object_key,
            },
        ) {
            Ok(meta) => meta,
            Err(error) if error.kind() == Kind::NotFound => return Ok(false),
            Err(error) => return Err(error.with("key", key)),
        };
        if let Some(group) = self.group_of(key) {
            let group = group.to_owned();
            return Ok(self.add_prefix(group));
        }
        if self.is_full() {
            return Ok(true);
        }
        self.last = Some(key.to_owned());
        let (bytes, version, modified) = (meta.bytes, meta.version, meta.modified);
        self.page.objects.push(ListedObject {
            key: object_key,
            bytes,
            version,
            modified,
        });
        Ok(false)
    }

    /// Lists a folder as a common prefix, or goes into it.
    fn folder(&mut self, walk: &mut Walk<'_>, prefix: String, name: &str) -> Result<bool> {
        if self.is_grouped(&prefix) {
            return Ok(false);
        }
        let is_prefix = self.delimiter == Some("/") && self.group_of(&prefix) == Some(&prefix);
        if !is_prefix {
            walk.descend(name, prefix)?;
            return Ok(false);
        }
        let Some(parent) = walk.folder() else {
            return Ok(false);
        };
        if !self.is_past_start(&prefix) || !has_object(parent, name, &prefix)? {
            return Ok(false);
        }
        Ok(self.add_prefix(prefix))
    }

    fn add_prefix(&mut self, group: String) -> bool {
        if !self.is_past_start(&group) {
            return false;
        }
        if self.is_full() {
            return true;
        }
        self.last = Some(group.clone());
        self.page.prefixes.push(group);
        false
    }

    /// Returns whether nothing more fits. Only asked when there is more, so the page also learns where to go
    /// on.
    fn is_full(&mut self) -> bool {
        let is_full = self.page.objects.len() + self.page.prefixes.len() >= self.limit;
        if is_full {
            self.page.next.clone_from(&self.last);
        }
        is_full
    }

    fn is_past_start(&self, name: &str) -> bool {
        self.options
            .start_after
            .as_deref()
            .is_none_or(|start| name > start)
    }

    /// Returns whether a key or folder falls under the common prefix listed last.
    fn is_grouped(&self, key: &str) -> bool {
        self.page
            .prefixes
            .last()
            .is_some_and(|group| key.starts_with(group.as_str()))
    }

    /// The common prefix that a key falls under.
    fn group_of<'k>(&self, key: &'k str) -> Option<&'k str> {
        let delimiter = self.delimiter?;
        let rest = key.strip_prefix(&self.options.prefix)?;
        let end = self.options.prefix.len() + rest.find(delimiter)? + delimiter.len();
        Some(&key[..end])
    }
}
