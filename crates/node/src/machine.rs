//! Memory (under the container's limit) and free disk of the machine. Defaults are shares of these.

use std::path::{Path, PathBuf};

use forebay_core::{Error, Result};

/// Memory and disk as far as defaults need them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Machine {
    /// Memory of the machine or container.
    pub memory_bytes: u64,
    /// Free bytes on the disk of the data folder, with what the NVMe tier already has counted as free: else
    /// the default budget would shrink at each restart.
    pub disk_bytes: u64,
}

impl Machine {
    /// Asks the machine. `nvme_dir` need not be there yet.
    pub fn measure(nvme_dir: &Path) -> Result<Self> {
        Ok(Self {
            memory_bytes: memory_bytes(),
            disk_bytes: disk_free_bytes(nvme_dir)? + folder_bytes(nvme_dir),
        })
    }
}

/// The memory that this process may use: the machine's, or the control group's if that is less.
fn memory_bytes() -> u64 {
    let machine = std::fs::read_to_string("/proc/meminfo").ok().and_then(|text| {
        let line = text.lines().find(|line| line.starts_with("MemTotal:"))?;
        line.split_whitespace()
            .nth(1)?
            .parse::<u64>()
            .ok()
            .map(|kib| kib * 1024)
    });
    let group = [
        "/sys/fs/cgroup/memory.max",
        "/sys/fs/cgroup/memory/memory.limit_in_bytes",
    ]
    .iter()
    .find_map(|file| std::fs::read_to_string(file).ok()?.trim().parse::<u64>().ok());
    let fallback = 4 << 30;
    machine.unwrap_or(fallback).min(group.unwrap_or(u64::MAX))
}

/// Free bytes on the file system that holds `path`, or that will hold it.
pub fn disk_free_bytes(path: &Path) -> Result<u64> {
    let place = nearest_existing(path);
    let stat = rustix::fs::statvfs(&place).map_err(|why| {
        Error::io(format!("cannot look at the disk: {why}"), why.into()).with("folder", place.display())
    })?;
    Ok(stat.f_bavail.saturating_mul(stat.f_frsize))
}

fn nearest_existing(path: &Path) -> PathBuf {
    let place = path
        .ancestors()
        .find(|place| place.exists())
        .unwrap_or(Path::new("."));
    if place.as_os_str().is_empty() {
        PathBuf::from(".")
    } else {
        place.to_path_buf()
    }
}

/// Bytes of the files directly in a folder; 0 if there is none.
fn folder_bytes(path: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt;
    let Ok(entries) = std::fs::read_dir(path) else {
        return 0;
    };
    let blocks = entries
        .flatten()
        .filter_map(|entry| entry.metadata().ok())
        .map(|meta| meta.blocks() * 512);
    blocks.sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_tier_holds_counts_as_free() {
        let dir = tempfile::tempdir().unwrap();
        let tier = dir.path().join("nvme");
        std::fs::create_dir(&tier).unwrap();
        std::fs::write(tier.join("seg-00000.pages"), vec![7; 1 << 20]).unwrap();
        assert!(folder_bytes(&tier) >= 1 << 20);
    }

    #[test]
    fn a_folder_that_is_not_there_yet_has_a_disk() {
        let dir = tempfile::tempdir().unwrap();
        assert!(disk_free_bytes(&dir.path().join("a/b/c")).unwrap() > 0);
    }
}
