//! Reads raw files to verify them: in the versions that were listed, small ones many at a time.
//!
//! Threads take the next run of files in turn, [`RUN_BYTES`] or [`RUN_FILES_MAX`] of them in one
//! request to the node; a larger file is alone and read in ranges. They live as long as the call; the first
//! error stops all of them. No bytes are kept: memory is one run a thread, held by the node.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use forebay_client::{Client, Item, ItemRange, ListedObject, ObjectName};
use forebay_core::{Error, Kind, Result, crc32c};
use forebay_dataset::manifest::{Digest, Hasher};

use super::Audit;
use crate::dataset::DatasetOptions;
use crate::indexing::{OnProgress, Progress, THREADS_MAX};
use crate::source::RawFolder;

const RUN_BYTES: u64 = 8 << 20;
const RUN_FILES_MAX: usize = 256;

/// Hashes all files and compares them with the manifests; the answer is the CRC32C of each file, by folder.
///
/// Errors: of reading; `Changed` if a file is another one than was listed; what the manifests say.
pub(super) fn hash(
    client: &Client,
    folders: &[RawFolder],
    options: &DatasetOptions,
    progress: Option<OnProgress<'_>>,
    audit: Audit<'_>,
) -> Result<Vec<Vec<u32>>> {
    let objects = || folders.iter().flat_map(|folder| &folder.objects);
    let total = Progress {
        bytes_total: objects().map(|object| object.bytes).sum(),
        shards_total: objects().count() as u64,
        ..Progress::default()
    };
    let hashing = Hashing {
        client,
        folders,
        options,
        progress,
        stopped: AtomicBool::new(false),
        next: Mutex::default(),
        state: Mutex::new(HashingState {
            audit,
            crcs: folders
                .iter()
                .map(|folder| vec![0; folder.objects.len()])
                .collect(),
            progress: total,
            error: None,
        }),
    };
    let threads = options.build_threads.clamp(1, THREADS_MAX);
    std::thread::scope(|scope| {
        // The calling thread is one of them.
        for _ in 1..threads {
            scope.spawn(|| hashing.work());
        }
        hashing.work();
    });
    let state = hashing.state.into_inner().unwrap_or_else(PoisonError::into_inner);
    if let Some(error) = state.error {
        return Err(error);
    }
    // The listing passed over names with a dot, whatever a manifest has.
    let is_data = |name: &str| !name.split('/').any(|part| part.starts_with('.'));
    state.audit.finish(is_data)?;
    Ok(state.crcs)
}

struct Hashing<'a> {
    client: &'a Client,
    folders: &'a [RawFolder],
    options: &'a DatasetOptions,
    progress: Option<OnProgress<'a>>,
    stopped: AtomicBool,
    /// Folder and file that come next.
    next: Mutex<(usize, usize)>,
    state: Mutex<HashingState<'a>>,
}

struct HashingState<'a> {
    audit: Audit<'a>,
    crcs: Vec<Vec<u32>>,
    progress: Progress,
    error: Option<Error>,
}

/// Files of one folder that are read together.
struct FileRun<'a> {
    folder: usize,
    first: usize,
    bucket: &'a str,
    objects: &'a [ListedObject],
}

/// Digest and CRC32C of a file.
type Sums = (Digest, u32);

impl<'a> Hashing<'a> {
    fn work(&self) {
        while !self.stopped.load(Ordering::Relaxed)
            && let Some(run) = self.take()
        {
            let told = self.read(&run).and_then(|sums| self.tell(&run, &sums));
            if let Err(error) = told {
                self.stopped.store(true, Ordering::Relaxed);
                let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
                state.error.get_or_insert(error);
            }
        }
    }

    fn take(&self) -> Option<FileRun<'a>> {
        let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
        let (mut folder, mut first) = *next;
        while self.folders.get(folder)?.objects.len() == first {
            (folder, first) = (folder + 1, 0);
        }
        let RawFolder { bucket, objects, .. } = self.folders.get(folder)?;
        let mut bytes = 0_u64;
        let fits = |object: &&ListedObject| {
            bytes = bytes.saturating_add(object.bytes);
            bytes <= RUN_BYTES
        };
        let files = objects[first..]
            .iter()
            .take(RUN_FILES_MAX)
            .take_while(fits)
            .count();
        let files = files.max(1);
        *next = (folder, first + files);
        Some(FileRun {
            folder,
            first,
            bucket,
            objects: &objects[first..first + files],
        })
    }

    fn read(&self, run: &FileRun<'_>) -> Result<Vec<Sums>> {
        if let Some(object) = run.objects.iter().find(|object| object.version.is_empty()) {
            let message = "the lake gives the file no version, so a later change would not be noticed; pack the files, and verify that";
            return Err(about(Error::new(Kind::Unsupported, message), run, object));
        }
        match run.objects {
            [object] if object.bytes > RUN_BYTES => Ok(vec![self.large(run, object)?]),
            _ => self.small(run),
        }
    }

    /// Hashes files that come in one request.
    fn small(&self, run: &FileRun<'_>) -> Result<Vec<Sums>> {
        self.check()?;
        let filled = run.objects.iter().filter(|object| object.bytes > 0);
        let items = filled.map(|object| item(run, object, 0, object.bytes));
        let mut views = self.client.get_batch(items.collect())?.into_iter();
        let mut sums = Vec::with_capacity(run.objects.len());
        for object in run.objects {
            let mut sum = Sum::default();
            if object.bytes > 0 {
                let none = || Err(Error::new(Kind::Internal, "an answer without an item"));
                let view = views.next().unwrap_or_else(none);
                sum.push(&view.map_err(|error| about(error, run, object))?);
            }
            sums.push(sum.of(run, object)?);
        }
        Ok(sums)
    }

    /// A file in ranges.
    fn large(&self, run: &FileRun<'_>, object: &ListedObject) -> Result<Sums> {
        let mut sum = Sum::default();
        while sum.bytes < object.bytes {
            self.check()?;
            let length = RUN_BYTES.min(object.bytes - sum.bytes);
            let items = vec![item(run, object, sum.bytes, length)];
            let none = || Err(Error::new(Kind::Internal, "an answer without an item"));
            let view = self.client.get_batch(items)?.pop().unwrap_or_else(none);
            let view = view.map_err(|error| about(error, run, object))?;
            if view.is_empty() {
                break;
            }
            sum.push(&view);
        }
        sum.of(run, object)
    }

    fn tell(&self, run: &FileRun<'_>, sums: &[Sums]) -> Result<()> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        for (number, (object, (digest, crc))) in (run.first..).zip(run.objects.iter().zip(sums)) {
            state.audit.found(run.bucket, &object.key, *digest)?;
            state.crcs[run.folder][number] = *crc;
            state.progress.bytes_done += object.bytes;
            state.progress.shards_done += 1;
        }
        let now = state.progress;
        drop(state);
        if let Some(progress) = self.progress {
            progress(now);
        }
        Ok(())
    }

    /// Returns whether to go on.
    fn check(&self) -> Result<()> {
        let interrupt = self.options.interrupt.as_ref();
        if interrupt.is_some_and(|interrupt| interrupt()) {
            return Err(Error::new(
                Kind::Cancelled,
                "interrupted while the data was verified",
            ));
        }
        Ok(())
    }
}

/// Bytes of a file as they come.
#[derive(Default)]
struct Sum {
    bytes: u64,
    hasher: Hasher,
    crc32c: u32,
}

impl Sum {
    fn push(&mut self, bytes: &[u8]) {
        self.bytes += bytes.len() as u64;
        self.hasher.push(bytes);
        self.crc32c = crc32c::crc32c_append(self.crc32c, bytes);
    }

    /// The sums of a file that has as many bytes as were listed.
    fn of(self, run: &FileRun<'_>, object: &ListedObject) -> Result<Sums> {
        if self.bytes != object.bytes {
            let message = "a file has another size than it was listed with; open the dataset again";
            let error = Error::new(Kind::Changed, message).with("bytes", self.bytes);
            return Err(about(error.with("expected", object.bytes), run, object));
        }
        Ok((self.hasher.finish(), self.crc32c))
    }
}

fn item(run: &FileRun<'_>, object: &ListedObject, offset: u64, length: u64) -> Item {
    Item {
        object: ObjectName {
            bucket: run.bucket.to_owned(),
            key: object.key.clone(),
        },
        range: ItemRange::Range { offset, length },
        version: Some(object.version.clone()),
    }
}

fn about(error: Error, run: &FileRun<'_>, object: &ListedObject) -> Error {
    error.with("object", format!("{}/{}", run.bucket, object.key))
}
