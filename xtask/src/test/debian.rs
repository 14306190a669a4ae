//! Debian packages, where we may install them.

use anyhow::{Result, bail};

use crate::command;

/// Installs packages, or says why not. Needs root and a working apt.
pub(crate) fn install(packages: &[&str]) -> Result<()> {
    if !command::exists("apt-get") {
        bail!("there is no apt-get here to install {}", packages.join(" "));
    }
    if command::output(command::clean("id").arg("-u"))?.trim() != "0" {
        bail!(
            "not root; `sudo apt-get install {}` enables these tests",
            packages.join(" ")
        );
    }
    let install = || {
        let mut apt = command::clean("apt-get");
        apt.env("DEBIAN_FRONTEND", "noninteractive").args([
            "install",
            "-qq",
            "-y",
            "--no-install-recommends",
        ]);
        command::output(apt.args(packages))
    };
    if install().is_err() {
        command::output(command::clean("apt-get").args(["update", "-qq"]))?;
        install()?;
    }
    Ok(())
}
