//! Files of this machine: looked at, walked, never left.

use std::path::{Component, Path, PathBuf};
use std::time::SystemTime;

use forebay_core::{Error, Kind, Result};
use futures::stream::{self, BoxStream, StreamExt};

use crate::open_location::{Entry, OpenLocation};

/// The suffix of files that are being written.
pub(crate) const PART_SUFFIX: &str = ".forebay-part";

/// One file.
pub fn entry(path: &Path, relative: String) -> Result<Entry> {
    let meta = std::fs::metadata(path).map_err(|why| cannot_read(path, why))?;
    if meta.is_dir() {
        let message = format!("{} is a folder, not a file", path.display());
        return Err(Error::new(Kind::InvalidInput, message));
    }
    let modified = meta.modified().unwrap_or(SystemTime::UNIX_EPOCH);
    Ok(Entry {
        location: OpenLocation::Local(path.to_path_buf()),
        relative,
        bytes: meta.len(),
        modified,
        etag: None,
    })
}

/// All files below a folder, by name, folder by folder. Symbolic links are not followed, so a walk ends and
/// stays inside; files that are still being written are left out.
pub(crate) fn walk(root: PathBuf) -> BoxStream<'static, Result<Entry>> {
    let start = (vec![root.clone()], Vec::new());
    stream::unfold(
        start,
        move |(mut folders, mut files): (Vec<PathBuf>, Vec<PathBuf>)| {
            let root = root.clone();
            async move {
                loop {
                    if let Some(path) = files.pop() {
                        // A key is text; a name that is not would become another one.
                        let found = match path.strip_prefix(&root).unwrap_or(&path).to_str() {
                            Some(relative) => entry(&path, relative.to_owned()),
                            None => Err(not_utf8(&path)),
                        };
                        return Some((found, (folders, files)));
                    }
                    let folder = folders.pop()?;
                    let listed = tokio::task::spawn_blocking(move || list(&folder)).await;
                    match listed.unwrap_or_else(|why| Err(stopped(why))) {
                        Ok((more_folders, more_files)) => {
                            folders.extend(more_folders);
                            files = more_files;
                        }
                        Err(error) => return Some((Err(error), (Vec::new(), Vec::new()))),
                    }
                }
            }
        },
    )
    .boxed()
}

/// Folders and files directly in a folder, both in reverse order (they are taken from the end).
fn list(folder: &Path) -> Result<(Vec<PathBuf>, Vec<PathBuf>)> {
    let (mut folders, mut files) = (Vec::new(), Vec::new());
    let failed = |why| cannot_read(folder, why);
    for entry in std::fs::read_dir(folder).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let kind = entry.file_type().map_err(|why| cannot_read(&entry.path(), why))?;
        if kind.is_dir() {
            folders.push(entry.path());
        } else if kind.is_file() && !entry.file_name().to_string_lossy().ends_with(PART_SUFFIX) {
            files.push(entry.path());
        }
    }
    folders.sort_unstable_by(|a, b| b.cmp(a));
    files.sort_unstable_by(|a, b| b.cmp(a));
    Ok((folders, files))
}

/// A path below a folder for a key; a key that would leave the folder is refused.
pub(crate) fn below(folder: &Path, relative: &str) -> Result<PathBuf> {
    let is_inside = Path::new(relative)
        .components()
        .all(|part| matches!(part, Component::Normal(_)));
    if !is_inside || relative.is_empty() {
        let folder = folder.display();
        let message = format!("the key '{relative}' cannot be a file below {folder}");
        return Err(Error::new(Kind::Unsupported, message));
    }
    Ok(folder.join(relative))
}

fn cannot_read(path: &Path, why: std::io::Error) -> Error {
    Error::io(format!("cannot read {}", path.display()), why)
}

fn not_utf8(path: &Path) -> Error {
    let path = path.display();
    let message = format!("{path} has a name that is not UTF-8 and cannot be a key; rename it");
    Error::new(Kind::Unsupported, message)
}

/// A task for blocking work that was stopped.
pub(crate) fn stopped(why: tokio::task::JoinError) -> Error {
    Error::new(Kind::Internal, "work on a file was stopped").caused_by(why)
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::TryStreamExt;

    #[test]
    fn keys_cannot_leave_the_folder() {
        for key in ["../x", "/etc/passwd", "a/../../x", ""] {
            assert!(below(Path::new("/tmp/here"), key).is_err(), "{key}");
        }
        assert_eq!(
            below(Path::new("/tmp/here"), "a/b").unwrap(),
            Path::new("/tmp/here/a/b")
        );
    }

    #[tokio::test]
    async fn a_name_that_is_no_text_is_an_error_and_not_another_name() {
        use std::os::unix::ffi::OsStrExt;
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join(std::ffi::OsStr::from_bytes(b"a\xff")), "").unwrap();
        std::fs::write(dir.path().join("b"), "").unwrap();
        let found: Vec<Result<Entry>> = walk(dir.path().to_path_buf()).collect().await;
        assert_eq!(found.iter().filter(|entry| entry.is_ok()).count(), 1);
        assert_eq!(found.len(), 2);
    }

    #[tokio::test]
    async fn a_walk_finds_all_files_and_follows_no_links() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["b", "a/x", "a/y", "c/d/e", "half.forebay-part"] {
            let path = dir.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, name).unwrap();
        }
        std::os::unix::fs::symlink("/", dir.path().join("link")).unwrap();
        let found: Vec<Entry> = walk(dir.path().to_path_buf()).try_collect().await.unwrap();
        let names: Vec<_> = found.iter().map(|entry| entry.relative.as_str()).collect();
        assert_eq!(names, ["b", "a/x", "a/y", "c/d/e"]);
    }
}
