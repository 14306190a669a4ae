//! Entry points for fuzzing: each takes any bytes and panics if a promise about them does not hold.
//!
//! Not part of the API. `fuzz/` drives them with libFuzzer, `fuzzing/tests.rs` with the committed corpus
//! and with mutations of it.

use std::path::{Component, Path};

use forebay_core::ObjectKey;

use crate::backend::folder::key_path::{KeyPath, MARKER_NAME, PRIVATE_FOLDERS};

/// A key as the path of a file in a folder lake.
///
/// # Panics
/// If the path could leave the folder, reach our private files, or belong to another key as well.
pub fn key_path(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    let Ok(key) = ObjectKey::new(text) else {
        return;
    };
    let Ok(path) = KeyPath::new(&key) else {
        return;
    };
    let segments: Vec<&str> = path.folders.iter().copied().chain([path.name]).collect();
    for segment in &segments {
        let mut parts = Path::new(segment).components();
        assert_eq!(parts.next(), Some(Component::Normal(segment.as_ref())), "{key:?}");
        assert_eq!(parts.next(), None, "{key:?}");
        assert!(segment.len() <= 255 && !segment.contains(['/', '\0']), "{key:?}");
    }
    assert!(!segments.starts_with(&PRIVATE_FOLDERS), "{key:?}");
    // The way back: a file has one key only.
    let folders: String = path.folders.iter().map(|folder| format!("{folder}/")).collect();
    let back = if path.name == MARKER_NAME {
        folders
    } else {
        format!("{folders}{}", path.name)
    };
    assert_eq!(back, key.as_str());
}

#[cfg(test)]
mod tests;
