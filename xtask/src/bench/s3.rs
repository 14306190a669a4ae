//! `cargo xtask bench s3`: the S3 endpoint against nginx (the limit), SeaweedFS (the peer), and the lake's
//! own count.
//!
//! One function for each group of rows, one file each. All servers are up during the whole run and take
//! turns.

mod lake;
mod memory;
mod read;
mod restart;
mod tiers;
mod write;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};

use super::S3Args;
use super::congestion::Cubic;
use super::page::{Page, publish};
use crate::command;
use crate::workspace::Workspace;

const PAGE: &str = "docs/benchmarks/s3.md";
pub(super) const KIB: u64 = 1024;
pub(super) const MIB: u64 = 1024 * 1024;

/// Context that the groups share.
pub(super) struct World<'a> {
    pub(super) workspace: &'a Workspace,
    pub(super) options: &'a S3Args,
    /// The release binary.
    pub(super) binary: PathBuf,
    /// Everything that a run makes lies below this; emptied before and after.
    pub(super) dir: PathBuf,
}

type Group = (&'static str, fn(&World<'_>, &mut Page) -> Result<()>);

const GROUPS: [Group; 6] = [
    ("read", read::run),
    ("lake", lake::run),
    ("write", write::run),
    ("memory", memory::run),
    ("restart", restart::run),
    ("tiers", tiers::run),
];

pub(super) fn run(workspace: &Workspace, options: &S3Args) -> Result<bool> {
    let binary = workspace.target.join("release/forebay");
    if !binary.is_file() {
        bail!("{} is missing: run `cargo build --release`", binary.display());
    }
    let load = super::load_average();
    let cubic = Cubic::hold();
    if cubic.in_use != "cubic" {
        println!(
            "sockets are on {}: figures against nginx only hold on cubic (needs root)",
            cubic.in_use
        );
    }
    let world = World {
        workspace,
        options,
        binary,
        dir: workspace.target.join("bench/s3"),
    };
    let mut page = Page::default();
    for (name, group) in GROUPS {
        if options.only.as_deref().is_none_or(|only| name.contains(only)) {
            world.empty()?;
            group(&world, &mut page)?;
        }
    }
    world.empty()?;
    let text = page.text("S3 endpoint", &opening(options, &cubic.in_use, &load)?);
    publish(workspace, PAGE, &text, options.only.as_deref())?;
    Ok(page.is_good())
}

impl World<'_> {
    fn empty(&self) -> Result<()> {
        if self.dir.exists() {
            fs::remove_dir_all(&self.dir)?;
        }
        Ok(fs::create_dir_all(&self.dir)?)
    }
}

/// Makes a file of bytes that do not compress.
pub(super) fn make_file(path: &Path, bytes: u64) -> Result<()> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    Ok(fs::write(path, super::put::body(usize::try_from(bytes)?))?)
}

fn opening(options: &S3Args, congestion: &str, load: &str) -> Result<String> {
    let machine = command::output(command::clean("uname").args(["-srm"]))?;
    let cores = std::thread::available_parallelism()?;
    let commit =
        command::output(command::clean("git").args(["rev-parse", "--short", "HEAD"])).unwrap_or_default();
    Ok(format!(
        "Made by a command; do not edit. To do it again (root, for cubic sockets; about six minutes with the build done):\n\n\
         ```sh\napt-get install nginx-light wrk   # the yardstick and its client\n\
         cargo xtask bench s3 --seconds {} --rounds {}\n```\n\n\
         Commit {}, {}, {cores} cores shared by clients and servers, loopback, sockets on {congestion}; load average {load} when it began (0 is a quiet machine). Every comparison \
         alternates A-B-B-A; figures are medians with quartiles. Ratios carry over to other machines, rates do not.\n",
        options.seconds,
        options.rounds,
        commit.trim(),
        machine.trim()
    ))
}
