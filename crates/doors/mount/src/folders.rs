//! Names of an open folder as the kernel takes them: as many as fit into its buffer, from where it stopped.

use std::sync::Arc;

use fuser::{FileHandle, FileType, Generation, INodeNo, ReplyDirectory, ReplyDirectoryPlus};

use crate::filesystem::MountedBucket;
use crate::inode::{Inode, InodeTable};
use crate::requests::inode_of;
use crate::tree::Found;

impl MountedBucket {
    /// Answers with names.
    pub(crate) fn list_names(
        &self,
        number: INodeNo,
        handle: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        let names = match self.names(number, handle, offset) {
            Ok(names) => names,
            Err(errno) => return reply.error(errno),
        };
        let prefix = self.folder(number).unwrap_or_else(|_| "".into());
        for (index, name, found) in from(&names, offset) {
            let (shown, kind) = match found {
                None => (number.0, FileType::Directory),
                Some(found) => {
                    let inode = inode_of(&format!("{prefix}{name}"), found);
                    (InodeTable::shown(&inode), kind_of(&inode))
                }
            };
            if reply.add(INodeNo(shown), index, kind, name) {
                break;
            }
        }
        reply.ok();
    }

    /// Answers with names and attributes, which the kernel then knows.
    pub(crate) fn list_known(
        &self,
        number: INodeNo,
        handle: FileHandle,
        offset: u64,
        mut reply: ReplyDirectoryPlus,
    ) {
        let (names, prefix) = match self
            .names(number, handle, offset)
            .and_then(|names| Ok((names, self.folder(number)?)))
        {
            Ok(found) => found,
            Err(errno) => return reply.error(errno),
        };
        let ttl = self.0.options.names_ttl;
        for (index, name, found) in from(&names, offset) {
            let Some(found) = found else {
                let inode = Inode::Folder(Arc::clone(&prefix));
                let attributes = self.0.attributes(number.0, &inode);
                if reply.add(number, index, name, &ttl, &attributes, Generation(0)) {
                    break;
                }
                continue;
            };
            let inode = inode_of(&format!("{prefix}{name}"), found);
            let told = self.0.inodes.remember(inode.clone());
            let attributes = self.0.attributes(told, &inode);
            if reply.add(INodeNo(told), index, name, &ttl, &attributes, Generation(0)) {
                // It did not fit, so the kernel was not told.
                self.0.inodes.forget(told, 1);
                break;
            }
        }
        reply.ok();
    }
}

fn kind_of(inode: &Inode) -> FileType {
    match inode {
        Inode::Folder(_) => FileType::Directory,
        Inode::Version(_) | Inode::Staged(_) => FileType::RegularFile,
    }
}

/// Entries from an offset on: where the next begins, the name, and what it is; `None` is the folder or its parent.
fn from(names: &[(Box<str>, Found)], offset: u64) -> impl Iterator<Item = (u64, &str, Option<&Found>)> {
    let dots = [(".", None), ("..", None)].into_iter();
    let named = names.iter().map(|(name, found)| (&**name, Some(found)));
    let skipped = usize::try_from(offset).unwrap_or(usize::MAX);
    let all = dots.chain(named).enumerate().skip(skipped);
    all.map(|(index, (name, found))| (index as u64 + 1, name, found))
}
