//! An object that is written piece by piece: larger than memory, or of a size that nobody knows yet.
//!
//! Life cycle: [`crate::Client::writer`] → [`ObjectWriter::write`] gathers small pieces into parts and sends
//! what is large as it is → [`ObjectWriter::finish`] makes the object visible. Until then nobody sees
//! anything; dropping the writer, or the death of this process, gives it up. What ends within the first part
//! becomes one plain put.
//!
//! Limits: one part is held here. A node whose staging memory is full is waited for; each part, and the end,
//! may take as long as one call may (`ClientOptions::timeout`).

use std::fmt;
use std::io;

use forebay_core::{Error, Kind, Result};

use crate::client::{Client, PutOptions, PutReceipt, PutSource, about};
use crate::local::LocalWrite;
use crate::name::Name;
use crate::remote::{PART_BYTES_MIN, RemoteWrite};

/// Bytes gathered for a node on this host, which may cut them into smaller parts.
const LOCAL_PART_BYTES: usize = 4 << 20;

/// An upload that the node knows.
pub(crate) enum Upload {
    /// In parts that lie in the node's staging memory.
    Local(LocalWrite),
    /// A multipart upload over HTTP.
    Remote(RemoteWrite),
}

/// The same call on either.
macro_rules! on {
    ($upload:expr, $write:ident => $call:expr) => {
        match $upload {
            Upload::Local($write) => $call,
            Upload::Remote($write) => $call,
        }
    };
}

/// An object on its way; see [`crate::Client::writer`].
pub struct ObjectWriter {
    client: Client,
    name: Name,
    options: PutOptions,
    /// The size of the object, if it is known.
    bytes_hint: Option<u64>,
    gathered: Vec<u8>,
    upload: Option<Upload>,
    bytes: u64,
    /// A call failed or was interrupted in the middle.
    has_failed: bool,
}

impl ObjectWriter {
    pub(crate) fn new(client: Client, name: Name, options: PutOptions, bytes_hint: Option<u64>) -> Self {
        Self {
            client,
            name,
            options,
            bytes_hint,
            gathered: Vec::new(),
            upload: None,
            bytes: 0,
            has_failed: false,
        }
    }

    /// Returns how much was written so far.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Adds bytes at the end; waits while the node or the lake is slower. After an error the writer can only
    /// be dropped.
    pub fn write(&mut self, mut bytes: &[u8]) -> Result<()> {
        self.check()?;
        self.has_failed = true;
        while !bytes.is_empty() {
            let part_bytes = self.part_bytes();
            if self.gathered.len() >= part_bytes {
                let mut part = std::mem::take(&mut self.gathered);
                self.push(&part)?;
                part.clear();
                self.gathered = part;
                continue;
            }
            let is_direct = self.gathered.is_empty() && bytes.len() > part_bytes;
            let (now, rest) = bytes.split_at(bytes.len().min(part_bytes - self.gathered.len()));
            if is_direct {
                self.push(now)?;
            } else {
                self.gathered.extend_from_slice(now);
            }
            self.bytes += now.len() as u64;
            bytes = rest;
        }
        self.has_failed = false;
        Ok(())
    }

    /// Makes the object visible; returns when the lake has it.
    pub fn finish(mut self) -> Result<PutReceipt> {
        self.check()?;
        if let Some(announced) = self.bytes_hint.filter(|announced| *announced != self.bytes) {
            let message = "the object does not have the announced size; nothing was written";
            return Err(Error::new(Kind::InvalidInput, message)
                .with("object", &self.name)
                .with("announced_bytes", announced)
                .with("bytes", self.bytes));
        }
        let gathered = std::mem::take(&mut self.gathered);
        let Some(mut upload) = self.upload.take() else {
            let options = std::mem::take(&mut self.options);
            return self.client.put(&self.name, PutSource::Slice(&gathered), options);
        };
        let crc32c = self.options.crc32c;
        let finished = on!(&mut upload, write => write.push(&gathered))
            .and_then(|()| on!(upload, write => write.finish(crc32c)));
        finished.map_err(|error| about(error, &self.name))
    }

    /// Gives the object up and waits until nothing is left of it.
    pub fn abort(mut self) -> Result<()> {
        match self.upload.take() {
            Some(upload) => on!(upload, write => write.abort()),
            None => Ok(()),
        }
    }

    fn check(&self) -> Result<()> {
        if self.has_failed {
            let message = "this write has failed already; start again";
            return Err(Error::new(Kind::InvalidInput, message).with("object", &self.name));
        }
        Ok(())
    }

    fn part_bytes(&self) -> usize {
        match &self.upload {
            Some(Upload::Local(_)) => LOCAL_PART_BYTES,
            Some(Upload::Remote(write)) => write.part_bytes(),
            None if self.client.is_local() => LOCAL_PART_BYTES,
            None => PART_BYTES_MIN,
        }
    }

    fn push(&mut self, part: &[u8]) -> Result<()> {
        let upload = match &mut self.upload {
            Some(upload) => upload,
            none => none.insert(self.client.begin(&self.name, &self.options, self.bytes_hint)?),
        };
        on!(upload, write => write.push(part)).map_err(|error| about(error, &self.name))
    }
}

impl io::Write for ObjectWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Self::write(self, bytes).map_err(io::Error::other)?;
        Ok(bytes.len())
    }

    /// Nothing can be seen before [`ObjectWriter::finish`], so there is nothing to do.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl fmt::Debug for ObjectWriter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ObjectWriter")
            .field("name", &self.name)
            .field("bytes", &self.bytes)
            .finish_non_exhaustive()
    }
}
