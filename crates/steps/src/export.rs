//! A step as ordinary safetensors files in a folder of this machine: whole tensors, parents resolved.
//!
//! Life cycle: plan which tensor goes into which file, then write one file after the other under a name that ends with `.part`, each tensor a stretch at a time
//! and proved on the way, and rename it when it is on the disk. The index of a Hugging Face folder comes last, so that a folder with an index is whole.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use forebay_checkpoint::safetensors::{self, Entry};
use forebay_checkpoint::{Dtype, TensorBox, plan};
use forebay_core::{Error, Kind, Result};

use crate::read::Want;
use crate::step::Step;
use crate::view::memory;

/// Bytes that are read and written at a time.
const STRETCH_BYTES: u64 = 64 << 20;
const INDEX: &str = "model.safetensors.index.json";

/// How a step is exported.
#[derive(Debug, Clone)]
pub struct ExportOptions {
    /// Which files are made.
    pub layout: Layout,
    /// Only tensors whose names start so, without this; empty for all.
    pub prefix: String,
    /// Threads that read.
    pub threads: usize,
}

/// Which files are made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Layout {
    /// One file with everything.
    OneFile,
    /// `model.safetensors`, or several of at most so many bytes and their index, as `from_pretrained` opens them.
    HuggingFace {
        /// Bytes of one file, if no tensor is larger.
        file_bytes_max: u64,
    },
}

/// What was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Exported {
    /// Files in the order in which they were written.
    pub files: Vec<PathBuf>,
    /// Tensors.
    pub tensors: u64,
    /// Bytes of tensors.
    pub bytes: u64,
}

/// A tensor on its way out.
struct Leaving<'a> {
    name: &'a str,
    called: &'a str,
    dtype: Dtype,
    whole: TensorBox,
    bytes: u64,
}

impl Step {
    /// Writes the step to `target`: a file for [`Layout::OneFile`], else a folder, which is made. `progress` gets bytes as they are written.
    pub fn export(&self, target: &Path, options: &ExportOptions, progress: &dyn Fn(u64)) -> Result<Exported> {
        let tensors = self.leaving(&options.prefix)?;
        let mut exported = Exported {
            files: Vec::new(),
            tensors: tensors.len() as u64,
            bytes: tensors.iter().map(|tensor| tensor.bytes).sum(),
        };
        let file_bytes_max = match options.layout {
            Layout::OneFile => {
                self.write_file(target, tensors, options.threads, progress)?;
                exported.files.push(target.to_owned());
                return Ok(exported);
            }
            Layout::HuggingFace { file_bytes_max } => file_bytes_max,
        };
        std::fs::create_dir_all(target)
            .map_err(|why| Error::io("cannot make the folder", why).with("folder", target.display()))?;
        let groups = grouped(tensors, file_bytes_max);
        let count = groups.len();
        let mut weight_map = BTreeMap::new();
        for (number, group) in groups.into_iter().enumerate() {
            let name = match count {
                1 => "model.safetensors".to_owned(),
                _ => format!("model-{:05}-of-{count:05}.safetensors", number + 1),
            };
            for tensor in &group {
                weight_map.insert(tensor.called.to_owned(), name.clone());
            }
            let path = target.join(name);
            self.write_file(&path, group, options.threads, progress)?;
            exported.files.push(path);
        }
        if count > 1 {
            let index = serde_json::json!({
                "metadata": {"total_size": exported.bytes}, "weight_map": weight_map,
            });
            let path = target.join(INDEX);
            write_whole(&path, |file| file.write_all(format!("{index:#}\n").as_bytes()))?;
            exported.files.push(path);
        }
        Ok(exported)
    }

    fn leaving(&self, prefix: &str) -> Result<Vec<Leaving<'_>>> {
        let mut tensors = Vec::new();
        for (name, tensor) in &self.manifest.content.tensors {
            let Some(called) = name.strip_prefix(prefix) else {
                continue;
            };
            safetensors::check_name(called)?;
            let whole = TensorBox::whole(&tensor.shape);
            tensors.push(Leaving {
                name,
                called,
                dtype: tensor.dtype,
                bytes: whole.elements()?.saturating_mul(tensor.dtype.bytes()),
                whole,
            });
        }
        if tensors.is_empty() {
            let error = Error::new(
                Kind::NotFound,
                "no tensor of the step has a name that starts so; forebay ckpt show lists the names",
            );
            return Err(error.with("prefix", prefix));
        }
        Ok(tensors)
    }

    fn write_file(
        &self,
        path: &Path,
        mut tensors: Vec<Leaving<'_>>,
        threads: usize,
        progress: &dyn Fn(u64),
    ) -> Result<()> {
        // Wide types first: so everything is aligned, as stock writers have it.
        tensors.sort_by_key(|tensor| (std::cmp::Reverse(tensor.dtype.bytes()), tensor.called));
        let entries: Vec<Entry<'_>> = tensors
            .iter()
            .map(|tensor| Entry {
                name: tensor.called,
                dtype: tensor.dtype,
                at: &tensor.whole,
                bytes: tensor.bytes,
            })
            .collect();
        let header = safetensors::header(&entries)?;
        let failed =
            |why: std::io::Error| Error::io("cannot write the file", why).with("path", path.display());
        write_whole_with(path, |file| {
            file.write_all(&header).map_err(failed)?;
            for tensor in &tensors {
                for at in plan::stretches(&tensor.whole, tensor.dtype.bytes(), STRETCH_BYTES) {
                    let bytes = at.elements()?.saturating_mul(tensor.dtype.bytes());
                    let mut stretch = memory(bytes)?;
                    let want = Want {
                        name: tensor.name,
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

/// Tensors in files of at most so many bytes, in order of names.
fn grouped(tensors: Vec<Leaving<'_>>, file_bytes_max: u64) -> Vec<Vec<Leaving<'_>>> {
    let mut groups: Vec<Vec<Leaving<'_>>> = Vec::new();
    let mut bytes = 0;
    for tensor in tensors {
        match groups.last_mut() {
            Some(group) if bytes + tensor.bytes <= file_bytes_max => {
                bytes += tensor.bytes;
                group.push(tensor);
            }
            _ => {
                bytes = tensor.bytes;
                groups.push(vec![tensor]);
            }
        }
    }
    groups
}

/// A file that is there whole or not at all.
pub(crate) fn write_whole(path: &Path, write: impl FnOnce(&mut File) -> std::io::Result<()>) -> Result<()> {
    write_whole_with(path, |file| {
        write(file).map_err(|why| Error::io("cannot write the file", why).with("path", path.display()))
    })
}

fn write_whole_with(path: &Path, write: impl FnOnce(&mut File) -> Result<()>) -> Result<()> {
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
