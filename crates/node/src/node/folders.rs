//! Folders of a node: made at its start, for its user alone.
//!
//! The cache, staged saves and the lake of a first run may hold what the lake's own rules would hide from
//! other users of the host. So whatever the node makes has mode 0700, and folders of an earlier version that
//! were open are closed. A data folder that somebody else has made keeps its mode and gets a warning, because
//! everything in it is private by itself; a lake that was chosen is its owner's business.

use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::Path;

use forebay_core::{Error, Kind, Result};

use crate::options::{LakeOrigin, NodeOptions};

const PRIVATE: u32 = 0o700;
/// Bits of a mode that let others in.
const OTHERS: u32 = 0o077;

/// Makes the data folder and what belongs into it; the lake only if nobody chose one.
pub(super) fn make(options: &NodeOptions) -> Result<()> {
    make_data(&options.data_dir)?;
    make_private(&options.nvme_dir())?;
    keep_data_private(options)?;
    match (options.lake_origin, options.lake.as_folder()) {
        (LakeOrigin::Default, Some(folder)) => make_private(&folder),
        (LakeOrigin::Chosen, Some(folder)) if !folder.is_dir() => {
            let message = "the lake folder is not there; make it first (mkdir -p) or correct the path";
            Err(Error::new(Kind::InvalidInput, message)
                .with("folder", folder.display())
                .with("setting", "lake"))
        }
        _ => Ok(()),
    }
}

/// A lake folder with the data folder inside would serve the keys and the cache to whoever may read a bucket.
fn keep_data_private(options: &NodeOptions) -> Result<()> {
    let whole = |path: &Path| path.canonicalize().unwrap_or_else(|_| path.to_path_buf());
    let data = whole(&options.data_dir);
    let buckets = options.buckets.iter().filter_map(|bucket| bucket.lake.as_ref());
    for lake in std::iter::once(&options.lake).chain(buckets) {
        if let Some(folder) = lake.as_folder().filter(|folder| data.starts_with(whole(folder))) {
            let message = "the data folder lies inside the lake, which would serve its keys to clients; \
                           choose another with --data";
            return Err(Error::new(Kind::InvalidInput, message)
                .with("data", data.display())
                .with("lake", folder.display()));
        }
    }
    Ok(())
}

/// Makes the data folder, private if it is new; those above it as usual.
fn make_data(path: &Path) -> Result<()> {
    if let Some(above) = path.parent() {
        std::fs::create_dir_all(above).map_err(|why| cannot_make(path, why))?;
    }
    match std::fs::DirBuilder::new().mode(PRIVATE).create(path) {
        Ok(()) => Ok(()),
        Err(why) if why.kind() == std::io::ErrorKind::AlreadyExists && path.is_dir() => {
            if let Some(mode) = open_mode(path) {
                tracing::warn!(folder = %path.display(), mode = format!("{mode:o}"), "others can look into the data folder; run chmod 700 on it");
            }
            Ok(())
        }
        Err(why) => Err(cannot_make(path, why)),
    }
}

/// Makes a folder that is the node's own, and closes it if it was open.
fn make_private(path: &Path) -> Result<()> {
    match std::fs::DirBuilder::new().mode(PRIVATE).create(path) {
        Ok(()) => return Ok(()),
        Err(why) if why.kind() == std::io::ErrorKind::AlreadyExists => {}
        Err(why) => return Err(cannot_make(path, why)),
    }
    let is_ours = std::fs::symlink_metadata(path)
        .is_ok_and(|meta| meta.is_dir() && meta.uid() == rustix::process::geteuid().as_raw());
    if let Some(mode) = open_mode(path).filter(|_| is_ours) {
        let closed = std::fs::set_permissions(path, std::fs::Permissions::from_mode(PRIVATE));
        tracing::info!(folder = %path.display(), mode = format!("{mode:o}"), closed = closed.is_ok(), "others could look into a folder of the node");
    }
    Ok(())
}

/// The mode of a folder that lets others in.
fn open_mode(path: &Path) -> Option<u32> {
    let mode = std::fs::metadata(path).ok()?.permissions().mode() & 0o777;
    (mode & OTHERS != 0).then_some(mode)
}

fn cannot_make(path: &Path, why: std::io::Error) -> Error {
    Error::io(format!("cannot make the folder: {why}"), why)
        .with("folder", path.display())
        .with("setting", "data")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    fn options(data: &Path, more: &str) -> NodeOptions {
        let text = format!(
            "data = '{}'\nram = '64MiB'\nnvme = '64MiB'\n{more}",
            data.display()
        );
        NodeOptions::resolve(Config::parse(&text).unwrap()).unwrap()
    }

    fn mode(path: &Path) -> u32 {
        std::fs::metadata(path).unwrap().permissions().mode() & 0o777
    }

    #[test]
    fn folders_of_a_first_run_are_private() {
        let dir = tempfile::tempdir().unwrap();
        let data = dir.path().join("above").join("data");
        make(&options(&data, "")).unwrap();
        for folder in [data.clone(), data.join("lake"), data.join("nvme")] {
            assert_eq!(mode(&folder), 0o700, "{}", folder.display());
        }
    }

    #[test]
    fn open_folders_of_before_are_closed_and_those_of_others_are_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let (data, chosen) = (dir.path().join("data"), dir.path().join("chosen"));
        for folder in [&data, &data.join("lake"), &data.join("nvme"), &chosen] {
            std::fs::create_dir(folder).unwrap();
            std::fs::set_permissions(folder, std::fs::Permissions::from_mode(0o755)).unwrap();
        }
        make(&options(&data, "")).unwrap();
        assert_eq!(
            (mode(&data.join("lake")), mode(&data.join("nvme"))),
            (0o700, 0o700)
        );
        assert_eq!(
            mode(&data),
            0o755,
            "it may be anything, also the home of somebody"
        );
        make(&options(&data, &format!("lake = '{}'", chosen.display()))).unwrap();
        assert_eq!(mode(&chosen), 0o755);
    }
}
