//! From keys to paths and back: which keys a folder can hold, and where each one lies.
//!
//! Key `a/b` is file `b` in folder `a`. Key `dir/` is the file [`MARKER_NAME`] in `dir`, so that the empty
//! "folder objects" that S3 tools make work like any other object. What cannot be a path, would leave the
//! folder, or would touch our private area is refused here, once, before any system call.

use forebay_core::{Error, Kind, ObjectKey, Result};

/// The file that stands for the key that ends with `/`.
pub(crate) const MARKER_NAME: &str = ".forebay-dir";

/// Folder below the root for the lake's own files.
pub(crate) const PRIVATE_FOLDERS: [&str; 2] = [".forebay", "folder"];

/// The longest name that Linux file systems take, in bytes.
const SEGMENT_BYTES_MAX: usize = 255;

/// The path of an object: folders below the root, then the name of the file.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct KeyPath<'a> {
    pub(crate) folders: Vec<&'a str>,
    pub(crate) name: &'a str,
}

impl<'a> KeyPath<'a> {
    /// Checks that the key can be a path below the root and takes it apart.
    pub(crate) fn new(key: &'a ObjectKey) -> Result<Self> {
        let (text, is_marker) = match key.as_str().strip_suffix('/') {
            Some(text) => (text, true),
            None => (key.as_str(), false),
        };
        let mut folders: Vec<&str> = text.split('/').collect();
        for segment in &folders {
            check_segment(segment)?;
        }
        if folders.starts_with(&PRIVATE_FOLDERS) {
            return refuse("lies in the folder lake's private area; choose another key");
        }
        let name = if is_marker {
            MARKER_NAME
        } else {
            folders.pop().unwrap_or_default()
        };
        Ok(Self { folders, name })
    }
}

fn check_segment(segment: &str) -> Result<()> {
    match segment {
        "" => refuse("has an empty segment (a leading '/' or '//'), which a folder cannot store"),
        "." | ".." => refuse("has a segment '.' or '..', which could leave the folder"),
        MARKER_NAME => refuse("has a segment '.forebay-dir', which stands for keys that end with '/'"),
        _ if segment.len() > SEGMENT_BYTES_MAX => {
            refuse("has a segment longer than 255 bytes, which a folder cannot store")
        }
        _ => Ok(()),
    }
}

fn refuse<T>(why: &str) -> Result<T> {
    Err(Error::new(Kind::InvalidInput, format!("the key {why}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(text: &str) -> ObjectKey {
        ObjectKey::new(text).unwrap()
    }

    #[test]
    fn keys_become_folders_and_a_name() {
        assert_eq!(
            KeyPath::new(&key("a/b/c")).unwrap(),
            KeyPath {
                folders: vec!["a", "b"],
                name: "c"
            }
        );
        assert_eq!(
            KeyPath::new(&key("c")).unwrap(),
            KeyPath {
                folders: vec![],
                name: "c"
            }
        );
        assert_eq!(
            KeyPath::new(&key("a/b/")).unwrap(),
            KeyPath {
                folders: vec!["a", "b"],
                name: MARKER_NAME
            }
        );
        assert!(KeyPath::new(&key("b/.forebay/folder/x")).is_ok());
        assert!(KeyPath::new(&key(".forebay/folders")).is_ok());
        assert!(KeyPath::new(&key("a/...")).is_ok());
    }

    #[test]
    fn keys_that_would_escape_or_collide_are_refused() {
        let long = format!("a/{}", "x".repeat(256));
        for bad in [
            "..",
            "../x",
            "a/../b",
            "a/.",
            "./a",
            "/etc/passwd",
            "a//b",
            "/",
            "a//",
            "a/..",
            "../",
            ".forebay/folder",
            ".forebay/folder/",
            ".forebay/folder/tmp/x",
            "a/.forebay-dir",
            ".forebay-dir/x",
            &long,
        ] {
            assert_eq!(
                KeyPath::new(&key(bad)).unwrap_err().kind(),
                Kind::InvalidInput,
                "{bad}"
            );
        }
    }
}
