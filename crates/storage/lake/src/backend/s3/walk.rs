//! Byte order from a server that lists folder by folder.
//!
//! Such a server compares names segment by segment: `a/x`, then `a-b`. In byte order `a-b` comes first, since
//! `-` is less than `/`. The walk lists one folder at a time (delimiter `/`), holds a sub-folder back until a
//! name arrives that follows it in byte order too, then enters it. To go on after a name it starts each
//! folder on the way a little before that name and drops what was listed already. Memory: one answer per
//! level of folders; time: at least one request per folder.
//!
//! Such a server keeps a folder after its last object was removed, and lists it. In S3 a common prefix stands
//! for objects, so one that has none is left out; each costs one small request, a few at a time.

use std::collections::VecDeque;

use async_trait::async_trait;
use forebay_core::Result;
use futures::{StreamExt, TryStreamExt, stream};

use super::list::{Entry, page_of};
use crate::{ListOptions, ListPage};

/// A part of one folder, in any order within the part.
pub(crate) struct Level {
    pub(crate) entries: Vec<Entry>,
    /// To go on; `None` is the end.
    pub(crate) token: Option<String>,
}

/// A server that lists folder by folder.
#[async_trait]
pub(crate) trait Levels: Send + Sync {
    /// Returns what lies under `prefix` up to the next `/`, after `start_after` or from `token` on, in the
    /// server's order.
    async fn level(&self, prefix: &str, start_after: Option<&str>, token: Option<&str>) -> Result<Level>;

    /// Returns whether there is an object somewhere under the prefix.
    async fn has_objects(&self, prefix: &str) -> Result<bool>;
}

/// Common prefixes that are looked into at once.
const LOOKS_MAX: usize = 16;

/// One page in byte order.
pub(crate) async fn walk(levels: &dyn Levels, options: &ListOptions, limit: usize) -> Result<ListPage> {
    let after = options.start_after.as_deref().unwrap_or_default();
    let mut walk = Walk {
        levels,
        after,
        stack: vec![Folder::new(options.prefix.clone(), after)],
    };
    let mut entries: Vec<Entry> = Vec::new();
    let enter_folders = options.delimiter.as_deref() != Some("/");
    let mut is_over = false;
    while entries.len() <= limit && !is_over {
        let mut found: Vec<Entry> = Vec::new();
        while entries.len() + found.len() <= limit && !is_over {
            let Some(entry) = walk.next(enter_folders).await? else {
                is_over = true;
                break;
            };
            let entry = group(entry, options);
            let last = found.last().or(entries.last());
            let is_new = last.is_none_or(|last| last.name() != entry.name());
            if entry.name() > after && is_new {
                found.push(entry);
            }
        }
        if enter_folders {
            entries.append(&mut found); // Groups of objects that were seen.
        } else {
            entries.append(&mut with_objects(levels, found).await?);
        }
    }
    Ok(page_of(entries, limit, false))
}

/// The entries without common prefixes that hold no object.
async fn with_objects(levels: &dyn Levels, found: Vec<Entry>) -> Result<Vec<Entry>> {
    let looks = found.into_iter().map(|entry| async move {
        let is_shown = match &entry {
            Entry::Object(_) => true,
            Entry::Prefix(prefix) => levels.has_objects(prefix).await?,
        };
        Ok(is_shown.then_some(entry))
    });
    let shown = stream::iter(looks).buffered(LOOKS_MAX);
    shown
        .try_filter_map(|entry| async { Ok(entry) })
        .try_collect()
        .await
}

/// Groups at a delimiter other than `/`, which the server was not asked to do.
fn group(entry: Entry, options: &ListOptions) -> Entry {
    let Some(delimiter) = options
        .delimiter
        .as_deref()
        .filter(|delimiter| !delimiter.is_empty())
    else {
        return entry;
    };
    let rest = entry.name().strip_prefix(&options.prefix).unwrap_or_default();
    match rest.find(delimiter) {
        Some(at) => Entry::Prefix(entry.name()[..options.prefix.len() + at + delimiter.len()].to_owned()),
        None => entry,
    }
}

struct Walk<'a> {
    levels: &'a dyn Levels,
    after: &'a str,
    stack: Vec<Folder>,
}

/// A folder that is being listed.
struct Folder {
    prefix: String,
    start_after: Option<String>,
    token: Option<String>,
    is_begun: bool,
    /// Listed, in the server's order.
    listed: VecDeque<Entry>,
    /// Sub-folders that are held back.
    held: Vec<String>,
}

impl Folder {
    fn new(prefix: String, after: &str) -> Self {
        let start_after = start_before(&prefix, after);
        Self {
            prefix,
            start_after,
            token: None,
            is_begun: false,
            listed: VecDeque::new(),
            held: Vec::new(),
        }
    }

    /// The name up to its last slash: everything in the folder starts with it.
    fn folder_bytes(&self) -> usize {
        self.prefix.rfind('/').map_or(0, |at| at + 1)
    }

    /// A held-back folder that comes before everything still to be listed.
    fn next_held(&mut self) -> Option<String> {
        let position = (0..self.held.len()).min_by_key(|&position| &self.held[position])?;
        let is_next = self
            .listed
            .front()
            .is_none_or(|entry| *self.held[position] < *entry.name());
        is_next.then(|| self.held.swap_remove(position))
    }

    fn needs_more(&self) -> bool {
        self.listed.is_empty() && (!self.is_begun || self.token.is_some())
    }

    fn add(&mut self, level: Level) {
        let folder_bytes = self.folder_bytes();
        let mut entries = level.entries;
        // The server's own order: by name without the slash, a file before the folder of the same name.
        entries.sort_by(|a, b| {
            let key = |entry: &Entry| {
                let name = entry.name().get(folder_bytes..).unwrap_or_default();
                (name.trim_end_matches('/').to_owned(), name.len())
            };
            key(a).cmp(&key(b))
        });
        self.listed = entries.into();
        self.token = level.token;
        self.is_begun = true;
    }
}

impl Walk<'_> {
    /// The next name in byte order; may be one that `after` excludes.
    async fn next(&mut self, enter_folders: bool) -> Result<Option<Entry>> {
        loop {
            let Some(folder) = self.stack.last_mut() else {
                return Ok(None);
            };
            if folder.needs_more() {
                let start_after = folder.start_after.as_deref();
                let level = self
                    .levels
                    .level(&folder.prefix, start_after, folder.token.as_deref())
                    .await?;
                folder.add(level);
                continue;
            }
            if let Some(name) = folder.next_held() {
                let is_wanted = name.as_str() > self.after || self.after.starts_with(&name);
                match (enter_folders, is_wanted) {
                    (true, true) => self.stack.push(Folder::new(name, self.after)),
                    (false, true) => return Ok(Some(Entry::Prefix(name))),
                    (_, false) => {}
                }
                continue;
            }
            match folder.listed.pop_front() {
                Some(Entry::Prefix(name)) => folder.held.push(name),
                Some(object) => return Ok(Some(object)),
                None => {
                    self.stack.pop();
                }
            }
        }
    }
}

/// Returns where to start listing a folder so that nothing after `after` is missed, in the server's order and
/// with a server that leaves out the folder of the name it starts after: one character before the first name
/// that counts.
fn start_before(prefix: &str, after: &str) -> Option<String> {
    let folder_bytes = prefix.rfind('/').map_or(0, |at| at + 1);
    let rest = after.strip_prefix(&prefix[..folder_bytes])?;
    let segment = rest.split('/').next().unwrap_or_default();
    // A folder whose name is a beginning of the segment and goes on with less than a slash comes later in
    // byte order and earlier in the server's.
    let shortest = segment
        .char_indices()
        .skip(1)
        .find(|(_, c)| *c < '/')
        .map_or(segment.len(), |(at, _)| at);
    let (last, _) = segment[..shortest].char_indices().next_back()?;
    let start = &after[..folder_bytes + last];
    (start.len() > prefix.len()).then(|| start.to_owned())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::time::SystemTime;

    use forebay_core::{ObjectKey, Version};
    use proptest::prelude::*;

    use super::*;
    use crate::ListedObject;

    /// Lists like SeaweedFS: by segment, `start_after` leaves out the folder of that name too.
    struct FolderServer {
        keys: BTreeSet<String>,
        /// Folders whose last object is gone.
        empty: BTreeSet<String>,
        page: usize,
    }

    #[async_trait]
    impl Levels for FolderServer {
        async fn level(&self, prefix: &str, start_after: Option<&str>, token: Option<&str>) -> Result<Level> {
            let folder_bytes = prefix.rfind('/').map_or(0, |at| at + 1);
            let order = |name: &str| (name[folder_bytes..].trim_end_matches('/').to_owned(), name.len());
            let mut names: Vec<String> = Vec::new();
            let empty = self.empty.iter().filter(|folder| *folder != prefix);
            for key in self
                .keys
                .iter()
                .chain(empty)
                .filter(|key| key.starts_with(prefix))
            {
                let end = key[prefix.len()..]
                    .find('/')
                    .map_or(key.len(), |at| prefix.len() + at + 1);
                names.push(key[..end].to_owned());
            }
            names.sort_by_key(|name| order(name));
            names.dedup();
            let from = token.or(start_after);
            names.retain(|name| match (token, from) {
                (Some(token), _) => order(name) > order(token),
                (None, Some(after)) => order(name).0.as_str() > after[folder_bytes..].trim_end_matches('/'),
                (None, None) => true,
            });
            let token = names
                .get(self.page - 1)
                .filter(|_| names.len() > self.page)
                .cloned();
            let entries = names
                .into_iter()
                .take(self.page)
                .map(|name| entry(&self.keys, name))
                .collect();
            Ok(Level { entries, token })
        }

        async fn has_objects(&self, prefix: &str) -> Result<bool> {
            Ok(self.keys.iter().any(|key| key.starts_with(prefix)))
        }
    }

    fn entry(keys: &BTreeSet<String>, name: String) -> Entry {
        if !keys.contains(&name)
            || name.ends_with('/')
                && keys
                    .iter()
                    .any(|key| key.len() > name.len() && key.starts_with(&name))
        {
            return Entry::Prefix(name);
        }
        let version = Version::new("v");
        let key = ObjectKey::new(&name).unwrap();
        Entry::Object(ListedObject {
            key,
            bytes: 0,
            version,
            modified: SystemTime::UNIX_EPOCH,
        })
    }

    fn expected(keys: &BTreeSet<String>, prefix: &str, delimiter: Option<&str>) -> Vec<String> {
        let mut names = BTreeSet::new();
        for key in keys.iter().filter(|key| key.starts_with(prefix)) {
            let at = delimiter.and_then(|delimiter| key[prefix.len()..].find(delimiter));
            names.insert(at.map_or(key.clone(), |at| key[..=prefix.len() + at].to_owned()));
        }
        names.into_iter().collect()
    }

    async fn all_pages(
        server: &FolderServer,
        prefix: &str,
        delimiter: Option<&str>,
        limit: usize,
    ) -> Vec<String> {
        let mut options = ListOptions {
            prefix: prefix.into(),
            delimiter: delimiter.map(Into::into),
            ..Default::default()
        };
        let mut names = Vec::new();
        loop {
            let page = walk(server, &options, limit).await.unwrap();
            let mut page_names = page.prefixes;
            page_names.extend(page.objects.iter().map(|object| object.key.to_string()));
            page_names.sort();
            assert!(page_names.len() <= limit);
            names.extend(page_names);
            match page.next {
                Some(next) => options.start_after = Some(next),
                None => return names,
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(400))]

        #[test]
        fn pages_are_complete_and_in_byte_order(
            // A folder marker would be an object and a prefix at once, which the fake server does not do.
            keys in prop::collection::btree_set("[ab!]([ab./!-]{0,4}[ab0.!-])?", 0..40),
            empty in prop::collection::btree_set("([ab0]/){1,3}", 0..6),
            prefix in prop::sample::select(vec!["", "a", "a/", "b/a", "a-"]),
            delimiter in prop::sample::select(vec![None, Some("/"), Some("-")]),
            limit in 1..6usize,
            page in 1..5usize,
        ) {
            let keys: BTreeSet<String> = keys.into_iter().filter(|key| !key.contains("//")).collect();
            let server = FolderServer { keys, empty, page };
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            let names = runtime.block_on(all_pages(&server, prefix, delimiter, limit));
            prop_assert_eq!(names, expected(&server.keys, prefix, delimiter));
        }
    }
}
