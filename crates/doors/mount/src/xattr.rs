//! Extended attributes: what the mount knows of a file, read-only.

use std::ffi::OsStr;

use fuser::{Errno, ReplyXattr};

use crate::inode::Inode;
use crate::shared::Shared;

/// Ending of the version of a computed file of a checkpoint step.
const STEP_VIEW_ENDING: &str = "-whole";

const ETAG: &str = "user.forebay.etag";
const STATE: &str = "user.forebay.state";
const OP: &str = "user.forebay.op";
const MODE: &str = "user.forebay.mode";
const NAME: &str = "user.forebay.name";
const NODE: &str = "user.forebay.node";

/// The value of an attribute; `None` if there is none of this name.
pub(crate) fn value(shared: &Shared, number: u64, inode: &Inode, name: &OsStr) -> Option<String> {
    let name = name.to_str()?;
    let bucket = &shared.tree.bucket;
    match (name, inode) {
        (NODE, _) => Some(shared.tree.client.address().to_owned()),
        (NAME, Inode::Folder(prefix)) => Some(format!("forebay://{bucket}/{prefix}")),
        (NAME, Inode::Version(version)) => Some(format!("forebay://{bucket}/{}", version.key)),
        (ETAG, Inode::Version(version)) => Some(version.etag.to_string()),
        (STATE, Inode::Version(_)) => Some("lake".into()),
        (STATE, Inode::Staged(staged)) => Some(if staged.is_dirty() { "staged" } else { "lake" }.into()),
        (NAME, Inode::Staged(staged)) => staged.key().map(|key| format!("forebay://{bucket}/{key}")),
        (OP, Inode::Version(version)) => {
            let is_view = version.etag.trim_matches('"').ends_with(STEP_VIEW_ENDING);
            is_view.then(|| "step-view".into())
        }
        (MODE, Inode::Version(_)) if shared.options.immutable => {
            Some("no_open: this mount is immutable".into())
        }
        (MODE, Inode::Version(version)) => Some(shared.rule.explain(number, version, &shared.copies)),
        _ => None,
    }
}

/// Names of the attributes, each ended by a zero.
pub(crate) fn names(inode: &Inode) -> Vec<u8> {
    let names: &[&str] = match inode {
        Inode::Folder(_) => &[NAME, NODE],
        Inode::Staged(_) => &[STATE, NAME, NODE],
        Inode::Version(_) => &[ETAG, STATE, MODE, NAME, NODE],
    };
    names.iter().flat_map(|name| name.bytes().chain([0])).collect()
}

/// Answers with a value, or with its size if that was asked.
pub(crate) fn answer(value: &[u8], size: u32, reply: ReplyXattr) {
    let bytes = u32::try_from(value.len()).unwrap_or(u32::MAX);
    match size {
        0 => reply.size(bytes),
        size if size < bytes => reply.error(Errno::ERANGE),
        _ => reply.data(value),
    }
}
