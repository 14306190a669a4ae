//! A step as a folder that `torch.distributed.checkpoint` loads: `__0_0.distcp` and `.metadata`.
//!
//! Every tensor is written whole, in chunks of at most [`CHUNK_BYTES`], each an item that `torch.load` opens;
//! so are objects: JSON as plain values, pickles as they were saved. `.metadata` comes last, so that a folder
//! with one is whole. What torch reads is in `forebay_checkpoint::torch`.

use std::fs::File;
use std::io::{Seek as _, SeekFrom, Write as _};
use std::path::Path;

use crc_fast::CrcAlgorithm;
use forebay_checkpoint::manifest::{ObjectKind, Tensor};
use forebay_checkpoint::torch::{self, Stored, TensorFacts};
use forebay_checkpoint::{TensorBox, plan};
use forebay_core::{Error, Kind, Result};

use crate::export::{Exported, remove_old, write_whole, write_whole_with};
use crate::read::Want;
use crate::step::Step;
use crate::view::memory;

/// Bytes of one chunk of a tensor.
const CHUNK_BYTES: u64 = 1 << 30;
/// Bytes that are read and written at a time.
const STRETCH_BYTES: u64 = 64 << 20;
const DATA: &str = "__0_0.distcp";
const METADATA: &str = ".metadata";

/// A data file that is being written.
struct Writer<'a> {
    file: &'a mut File,
    path: &'a Path,
    bytes: u64,
}

impl Step {
    /// Writes the step to a folder, which is made. Tensors and objects whose names start with `prefix`,
    /// without it.
    pub(crate) fn export_dcp(
        &self,
        target: &Path,
        prefix: &str,
        threads: usize,
        progress: &dyn Fn(u64),
    ) -> Result<Exported> {
        let content = &self.manifest.content;
        let chosen = content.tensors.iter();
        let chosen: Vec<_> = chosen.filter(|(name, _)| name.starts_with(prefix)).collect();
        if chosen.is_empty() {
            let message =
                "no tensor of the step has a name that starts so; forebay ckpt show lists the names";
            return Err(Error::new(Kind::NotFound, message).with("prefix", prefix));
        }
        std::fs::create_dir_all(target)
            .map_err(|why| Error::io("cannot make the folder", why).with("folder", target.display()))?;
        remove_old(target, METADATA, |name| name == DATA)?;
        let path = target.join(DATA);
        let mut tensors = Vec::new();
        let mut values = Vec::new();
        write_whole_with(&path, |file| {
            let mut writer = Writer {
                file,
                path: &path,
                bytes: 0,
            };
            for (name, tensor) in &chosen {
                tensors.push(self.write_tensor(&mut writer, (name, tensor), prefix, threads, progress)?);
            }
            for name in content.objects.keys().filter(|name| name.starts_with(prefix)) {
                let stored = self.write_object(&mut writer, name)?;
                values.push((name[prefix.len()..].to_owned(), stored));
            }
            Ok(())
        })?;
        let metadata = target.join(METADATA);
        write_whole(&metadata, &torch::metadata(&tensors, &values))?;
        Ok(Exported {
            files: vec![path, metadata],
            tensors: tensors.len() as u64,
            objects: values.len() as u64,
            bytes: chosen
                .iter()
                .flat_map(|(_, tensor)| &tensor.parts)
                .map(|part| part.bytes.bytes())
                .sum(),
        })
    }

    fn write_tensor(
        &self,
        writer: &mut Writer<'_>,
        (name, tensor): (&str, &Tensor),
        prefix: &str,
        threads: usize,
        progress: &dyn Fn(u64),
    ) -> Result<TensorFacts> {
        let whole = TensorBox::whole(&tensor.shape);
        let element_bytes = tensor.dtype.bytes();
        let mut boxes = plan::stretches(&whole, element_bytes, CHUNK_BYTES);
        if boxes.is_empty() {
            boxes.push(whole);
        }
        let mut chunks = Vec::new();
        for at in boxes {
            let bytes = at.elements()?.saturating_mul(element_bytes);
            let pickle = torch::tensor(tensor.dtype, &at.shape);
            let stored = writer.item(&pickle, Some(bytes), |add| {
                for stretch in plan::stretches(&at, element_bytes, STRETCH_BYTES) {
                    let mut target = memory(stretch.elements()?.saturating_mul(element_bytes))?;
                    let want = Want {
                        name,
                        at: stretch,
                        target: &mut target,
                    };
                    self.load(&mut [want], threads)?;
                    add(&target)?;
                    progress(target.len() as u64);
                }
                Ok(())
            })?;
            chunks.push((at, stored));
        }
        Ok(TensorFacts {
            name: name[prefix.len()..].to_owned(),
            dtype: tensor.dtype,
            shape: tensor.shape.clone(),
            chunks,
        })
    }

    fn write_object(&self, writer: &mut Writer<'_>, name: &str) -> Result<Stored> {
        let (kind, bytes) = self.object(name, None)?;
        let pickle = match kind {
            ObjectKind::Json => {
                let value = serde_json::from_slice(&bytes).map_err(|why| {
                    Error::new(Kind::Corrupt, "an object that should be JSON is not")
                        .with("object", name)
                        .caused_by(why)
                })?;
                torch::value(&value)?
            }
            ObjectKind::Bytes => torch::bytes(&bytes),
            ObjectKind::Pickle => bytes,
        };
        writer.item(&pickle, None, |_| Ok(()))
    }
}

impl Writer<'_> {
    /// Writes an item; `body` gives the bytes of its tensor, in order.
    fn item(
        &mut self,
        pickle: &[u8],
        tensor_bytes: Option<u64>,
        body: impl FnOnce(&mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()>,
    ) -> Result<Stored> {
        let first = self.bytes;
        let head = torch::item(pickle, tensor_bytes, crc32)?;
        self.add(&head.bytes)?;
        let mut crc = crc_fast::Digest::new(CrcAlgorithm::Crc32IsoHdlc);
        body(&mut |bytes| {
            crc.update(bytes);
            self.add(bytes)
        })?;
        let crc = crc.finalize() as u32;
        if let Some(place) = head.crc_place {
            self.patch(first + place, &crc.to_le_bytes())?;
        }
        self.add(&head.tail(crc))?;
        Ok(Stored {
            file: DATA.to_owned(),
            first,
            bytes: self.bytes - first,
        })
    }

    fn add(&mut self, bytes: &[u8]) -> Result<()> {
        self.bytes += bytes.len() as u64;
        self.file.write_all(bytes).map_err(|why| self.failed(why))
    }

    fn patch(&mut self, place: u64, bytes: &[u8]) -> Result<()> {
        let mut write = || {
            self.file.seek(SeekFrom::Start(place))?;
            self.file.write_all(bytes)?;
            self.file.seek(SeekFrom::End(0))
        };
        write().map(|_| ()).map_err(|why| self.failed(why))
    }

    fn failed(&self, why: std::io::Error) -> Error {
        Error::io("cannot write the file", why).with("path", self.path.display())
    }
}

fn crc32(bytes: &[u8]) -> u32 {
    crc_fast::checksum(CrcAlgorithm::Crc32IsoHdlc, bytes) as u32
}
