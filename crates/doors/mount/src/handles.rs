//! Open files and folders by the number that the kernel gives back.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::open_file::OpenFile;
use crate::staged::Staged;
use crate::tree::Found;

/// Names of a folder as they were when somebody began to go through them.
pub(crate) type Names = Arc<Vec<(Box<str>, Found)>>;

/// An open folder.
#[derive(Default)]
pub(crate) struct OpenFolder {
    pub(crate) names: Mutex<Option<Names>>,
}

/// An open file that is being written.
pub(crate) struct StagedHandle {
    pub(crate) staged: Arc<Staged>,
    pub(crate) is_writer: bool,
    /// The process that opened it.
    pub(crate) process: u32,
}

#[derive(Clone)]
pub(crate) enum Handle {
    File(Arc<OpenFile>),
    Folder(Arc<OpenFolder>),
    Staged(Arc<StagedHandle>),
}

/// All that is open.
pub(crate) struct Handles {
    table: Mutex<Table>,
    handles_max: usize,
}

#[derive(Default)]
struct Table {
    open: HashMap<u64, Handle>,
    last: u64,
}

impl Handles {
    pub(crate) fn new(handles_max: usize) -> Self {
        Self {
            table: Mutex::new(Table::default()),
            handles_max,
        }
    }

    /// A number for it; `None` if too much is open. 0 is nobody's number.
    pub(crate) fn insert(&self, handle: Handle) -> Option<u64> {
        let mut table = self.table.lock();
        if table.open.len() >= self.handles_max {
            return None;
        }
        table.last += 1;
        let number = table.last;
        table.open.insert(number, handle);
        Some(number)
    }

    pub(crate) fn file(&self, number: u64) -> Option<Arc<OpenFile>> {
        match self.table.lock().open.get(&number) {
            Some(Handle::File(file)) => Some(Arc::clone(file)),
            _ => None,
        }
    }

    pub(crate) fn folder(&self, number: u64) -> Option<Arc<OpenFolder>> {
        match self.table.lock().open.get(&number) {
            Some(Handle::Folder(folder)) => Some(Arc::clone(folder)),
            _ => None,
        }
    }

    pub(crate) fn staged(&self, number: u64) -> Option<Arc<StagedHandle>> {
        match self.table.lock().open.get(&number) {
            Some(Handle::Staged(open)) => Some(Arc::clone(open)),
            _ => None,
        }
    }

    pub(crate) fn remove(&self, number: u64) -> Option<Handle> {
        self.table.lock().open.remove(&number)
    }

    pub(crate) fn len(&self) -> usize {
        self.table.lock().open.len()
    }
}
