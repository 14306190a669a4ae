//! Objects that are replaced so fast that the version a name was given is gone when the file is opened.
//!
//! The kernel asks for a name and opens what it was told, in two requests, and tries once more if that version is
//! gone. An object that was once too fast is therefore read together with its name for a while: the bytes wait for
//! the open. Limits: so many keys and so many small objects, each for a few seconds.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use forebay_client::View;
use parking_lot::Mutex;

/// Keys that are remembered, and objects that wait for their open.
const ENTRIES_MAX: usize = 64;
/// Time for which a key counts as fast.
const KEY_TIME: Duration = Duration::from_secs(30);
/// Time for which bytes wait for the open.
const BYTES_TIME: Duration = Duration::from_secs(2);

/// Keys that were replaced between name and open, and bytes that wait for theirs.
#[derive(Default)]
pub(crate) struct Recent {
    lists: Mutex<Lists>,
}

#[derive(Default)]
struct Lists {
    keys: VecDeque<(Instant, Box<str>)>,
    waiting: VecDeque<(Instant, u64, View)>,
}

impl Recent {
    /// Remembers a key whose version was gone at its open.
    pub(crate) fn was_too_fast(&self, key: &str) {
        let mut lists = self.lists.lock();
        lists.keys.retain(|(_, known)| **known != *key);
        lists.keys.push_back((Instant::now(), key.into()));
        if lists.keys.len() > ENTRIES_MAX {
            lists.keys.pop_front();
        }
    }

    pub(crate) fn is_fast(&self, key: &str) -> bool {
        let lists = self.lists.lock();
        lists
            .keys
            .iter()
            .any(|(since, known)| **known == *key && since.elapsed() < KEY_TIME)
    }

    /// Keeps the bytes of an inode for its open.
    pub(crate) fn keep(&self, number: u64, view: View) {
        let mut lists = self.lists.lock();
        lists.waiting.retain(|(_, known, _)| *known != number);
        lists.waiting.push_back((Instant::now(), number, view));
        if lists.waiting.len() > ENTRIES_MAX {
            lists.waiting.pop_front();
        }
    }

    /// The bytes of an inode, if they wait.
    pub(crate) fn get(&self, number: u64) -> Option<View> {
        let lists = self.lists.lock();
        let found = lists.waiting.iter().find(|(_, known, _)| *known == number);
        found.map(|(_, _, view)| view.clone())
    }

    /// Lets go of what waits too long.
    pub(crate) fn sweep(&self) {
        let mut lists = self.lists.lock();
        lists.keys.retain(|(since, _)| since.elapsed() < KEY_TIME);
        lists.waiting.retain(|(since, _, _)| since.elapsed() < BYTES_TIME);
    }
}
