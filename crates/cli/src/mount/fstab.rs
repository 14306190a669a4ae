//! The helper of `mount(8)`: `mount.forebay SOURCE DIR [-sfnv] [-o options]` as `forebay mount … --daemon`.
//!
//! Install it as a link: `ln -s $(which forebay) /sbin/mount.forebay`. An option that `forebay mount` has is
//! written without the dashes, `_` or `-` between its words; those that are meant for `mount(8)` and systemd are
//! passed over.

use std::ffi::OsString;
use std::path::Path;

const HELPER: &str = "mount.forebay";

/// Options of `mount(8)` that say nothing to a mount of ours.
const IGNORED: &[&str] = &[
    "ro",
    "rw",
    "defaults",
    "auto",
    "noauto",
    "user",
    "nouser",
    "users",
    "owner",
    "group",
    "_netdev",
    "nofail",
    "exec",
    "noexec",
    "suid",
    "nosuid",
    "dev",
    "nodev",
    "atime",
    "noatime",
    "relatime",
    "strictatime",
    "sync",
    "async",
    "remount",
];

/// Returns whether this process was started as the helper.
pub(crate) fn is_helper() -> bool {
    std::env::args_os()
        .next()
        .is_some_and(|program| names_helper(&program))
}

pub(crate) fn names_helper(program: &OsString) -> bool {
    Path::new(program).file_name().is_some_and(|name| name == HELPER)
}

/// The arguments of `forebay` for those of the helper, both without the program.
pub(crate) fn translated(args: impl IntoIterator<Item = OsString>) -> Vec<OsString> {
    let mut translated: Vec<OsString> = vec!["mount".into(), "--daemon".into()];
    let mut args = args.into_iter();
    while let Some(arg) = args.next() {
        match arg.to_str() {
            Some("-o") => {
                let options = args.next().unwrap_or_default();
                translated.extend(options.to_string_lossy().split(',').filter_map(flag));
            }
            // The type, and its value.
            Some("-t") => {
                args.next();
            }
            // Sloppy, fake, no mtab, verbose.
            Some("-s" | "-f" | "-n" | "-v") => {}
            _ => translated.push(arg),
        }
    }
    translated
}

fn flag(option: &str) -> Option<OsString> {
    let (name, value) = match option.split_once('=') {
        Some((name, value)) => (name, Some(value)),
        None => (option, None),
    };
    if name.is_empty() || IGNORED.contains(&name) || name.starts_with("x-") || name == "comment" {
        return None;
    }
    let name = name.replace('_', "-");
    Some(match value {
        Some(value) => format!("--{name}={value}").into(),
        None => format!("--{name}").into(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_fstab_becomes_the_command() {
        let args = [
            "forebay://models",
            "/mnt",
            "-s",
            "-o",
            "ro,_netdev,allow_other,names_ttl=5s,x-systemd.automount",
        ];
        let command = translated(args.map(OsString::from));
        let expected = [
            "mount",
            "--daemon",
            "forebay://models",
            "/mnt",
            "--allow-other",
            "--names-ttl=5s",
        ];
        assert_eq!(command, expected.map(OsString::from));
        assert!(names_helper(&"/sbin/mount.forebay".into()) && !names_helper(&"forebay".into()));
    }
}
