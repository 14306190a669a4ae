//! A step as ordinary safetensors files in a folder of this machine: whole tensors, parents resolved.
//!
//! Life cycle: plan which tensor goes into which file (`forebay_checkpoint::whole`, which the view of a step
//! uses too), then write one file after the other under a name that ends with `.part`, each tensor a stretch
//! at a time and proved on the way, and rename it when it is on the disk. The index of a Hugging Face folder
//! comes last, and that of an older export goes first, so that a folder with an index is whole.

use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use forebay_checkpoint::plan;
use forebay_checkpoint::whole::{self, WholeFile};
use forebay_core::{Error, Result};

use crate::read::Want;
use crate::step::Step;
use crate::view::memory;

/// Bytes that are read and written at a time.
const STRETCH_BYTES: u64 = 64 << 20;

/// Options of an export.
#[derive(Debug, Clone)]
pub struct ExportOptions {
    /// Layout of the files.
    pub layout: Layout,
    /// Only tensors whose names start so, without this; empty for all.
    pub prefix: String,
    /// Threads that read.
    pub threads: usize,
}

/// Layout of the files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Layout {
    /// One file with everything.
    OneFile,
    /// `model.safetensors`, or several of at most so many bytes and their index, as `from_pretrained` opens
    /// them.
    HuggingFace {
        /// Bytes of one file, if no tensor is larger.
        file_bytes_max: u64,
    },
    /// Files that `torch.distributed.checkpoint` loads; objects too.
    Dcp,
}

/// Report of what was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Exported {
    /// Files in the order in which they were written.
    pub files: Vec<PathBuf>,
    /// Tensors.
    pub tensors: u64,
    /// Objects that the format has a place for.
    pub objects: u64,
    /// Bytes of tensors.
    pub bytes: u64,
}

impl Step {
    /// Writes the step to `target`: a file for [`Layout::OneFile`], else a folder, which is made. `progress`
    /// gets bytes as they are written.
    pub fn export(&self, target: &Path, options: &ExportOptions, progress: &dyn Fn(u64)) -> Result<Exported> {
        let file_bytes_max = match options.layout {
            Layout::OneFile => u64::MAX,
            Layout::Dcp => return self.export_dcp(target, &options.prefix, options.threads, progress),
            Layout::HuggingFace { file_bytes_max } => file_bytes_max,
        };
        let files = whole::files(
            &self.manifest,
            &whole::Options {
                prefix: options.prefix.clone(),
                file_bytes_max,
            },
        )?;
        let tensors = || files.iter().flat_map(|file| &file.tensors);
        let mut exported = Exported {
            files: Vec::new(),
            tensors: tensors().count() as u64,
            objects: 0,
            bytes: tensors().map(|tensor| tensor.bytes).sum(),
        };
        if options.layout == Layout::OneFile {
            for file in &files {
                self.write_file(target, file, options.threads, progress)?;
                exported.files.push(target.to_owned());
            }
            return Ok(exported);
        }
        std::fs::create_dir_all(target)
            .map_err(|why| Error::io("cannot make the folder", why).with("folder", target.display()))?;
        remove_old(target, whole::INDEX, is_model)?;
        for file in &files {
            let path = target.join(&file.name);
            self.write_file(&path, file, options.threads, progress)?;
            exported.files.push(path);
        }
        if let Some(index) = whole::index(&files) {
            let path = target.join(whole::INDEX);
            write_whole(&path, index.as_bytes())?;
            exported.files.push(path);
        }
        Ok(exported)
    }

    fn write_file(
        &self,
        path: &Path,
        whole: &WholeFile,
        threads: usize,
        progress: &dyn Fn(u64),
    ) -> Result<()> {
        let failed =
            |why: std::io::Error| Error::io("cannot write the file", why).with("path", path.display());
        write_whole_with(path, |file| {
            file.write_all(&whole.header).map_err(failed)?;
            for tensor in &whole.tensors {
                for at in plan::stretches(&tensor.whole, tensor.dtype.bytes(), STRETCH_BYTES) {
                    let bytes = at.elements()?.saturating_mul(tensor.dtype.bytes());
                    let mut stretch = memory(bytes)?;
                    let want = Want {
                        name: &tensor.name,
                        at,
                        target: &mut stretch,
                    };
                    self.load(&mut [want], threads)?;
                    file.write_all(&stretch).map_err(failed)?;
                    progress(bytes);
                }
            }
            Ok(())
        })
    }
}

/// Returns whether an export for Hugging Face writes tensors under this name.
fn is_model(name: &str) -> bool {
    let stem = name.strip_suffix(".safetensors");
    let numbers = stem.and_then(|stem| stem.strip_prefix("model-"));
    stem == Some("model") || numbers.is_some_and(|numbers| numbers.contains("-of-"))
}

/// Removes an older export: what makes it whole first, then its data. Else one that stops half way would
/// leave a mixture of both that looks whole.
pub(crate) fn remove_old(folder: &Path, last: &str, is_data: impl Fn(&str) -> bool) -> Result<()> {
    let failed = |why: std::io::Error| {
        Error::io("cannot remove an older export", why).with("folder", folder.display())
    };
    let remove = |name: &str| match std::fs::remove_file(folder.join(name)) {
        Err(why) if why.kind() != std::io::ErrorKind::NotFound => Err(failed(why)),
        _ => Ok(()),
    };
    remove(last)?;
    for entry in std::fs::read_dir(folder).map_err(failed)? {
        let name = entry.map_err(failed)?.file_name();
        if let Some(name) = name.to_str().filter(|name| is_data(name)) {
            remove(name)?;
        }
    }
    let folder = File::open(folder).map_err(failed)?;
    folder.sync_all().map_err(failed)
}

/// Writes a file that is there whole or not at all.
pub fn write_whole(path: &Path, bytes: &[u8]) -> Result<()> {
    write_whole_with(path, |file| {
        file.write_all(bytes)
            .map_err(|why| Error::io("cannot write the file", why).with("path", path.display()))
    })
}

pub(crate) fn write_whole_with(path: &Path, write: impl FnOnce(&mut File) -> Result<()>) -> Result<()> {
    let failed = |why: std::io::Error| Error::io("cannot write the file", why).with("path", path.display());
    let mut part = path.as_os_str().to_owned();
    part.push(".part");
    let part = PathBuf::from(part);
    let written = File::create(&part).map_err(failed).and_then(|mut file| {
        write(&mut file)?;
        file.sync_all().map_err(failed)
    });
    match written.and_then(|()| std::fs::rename(&part, path).map_err(failed)) {
        Ok(()) => Ok(()),
        Err(error) => {
            // What is left of it is named so that nobody takes it for whole.
            let _ = std::fs::remove_file(&part);
            Err(error)
        }
    }
}
