//! WebDataset: each field is a member `key.field` of a ustar archive.
//!
//! Long names and large members get a PAX header in front, which every tar of this century reads. Owners and
//! dates are zero, so the same samples are the same bytes. A sample ends where the key changes, so two with
//! one key cannot follow each other: that is refused. So is a sample without a field: nothing of it would be
//! there.

use forebay_core::{Error, Result};

use super::{Out, PackFormat, PackSample, SampleShape, ShardWriter, refused};

const BLOCK: u64 = 512;
/// Two blocks of zeros.
pub(super) const END_BYTES: u64 = 2 * BLOCK;
/// The longest name of a plain header.
const NAME_BYTES_MAX: usize = 100;
/// Eleven octal digits.
const PLAIN_BYTES_MAX: u64 = (1 << 33) - 1;
const ZEROS: [u8; END_BYTES as usize] = [0; END_BYTES as usize];

pub(super) fn sample_bytes(sample: &SampleShape<'_>) -> Result<u64> {
    check_key(sample.key)?;
    if sample.fields.is_empty() {
        return Err(refused(
            "a sample has no values, so a tar would have no member that keeps it; fill or drop such rows before, \
             or pack to parquet or tfrecord, which keep them",
        ));
    }
    let mut all = 0_u64;
    for (field, bytes) in sample.fields {
        check_field(field)?;
        let extension = match extension(&name(sample.key, field), *bytes) {
            Some(records) => BLOCK + padded(records.len() as u64),
            None => 0,
        };
        all = all
            .saturating_add(extension + BLOCK)
            .saturating_add(padded(*bytes));
    }
    Ok(all)
}

/// A key that readers would cut elsewhere than we do is no key.
fn check_key(key: &[u8]) -> Result<()> {
    let base = key.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
    if base.is_empty() {
        return Err(refused("a sample of a tar needs a key that does not end with /"));
    }
    if base.contains(&b'.') {
        return Err(refused(
            "the key has a dot, where WebDataset would cut it; rename the sample",
        ));
    }
    if key.contains(&0) || key.len() > 4096 {
        return Err(refused(
            "the key cannot be the name of a member of a tar; rename the sample",
        ));
    }
    Ok(())
}

fn check_field(field: &str) -> Result<()> {
    if field.is_empty() || field.contains(['/', '\0']) || field.bytes().any(|byte| byte.is_ascii_uppercase())
    {
        let message = "the field cannot be the ending of a member of a WebDataset tar: it is empty, has a slash or upper case";
        return Err(refused(message).with("field", field));
    }
    Ok(())
}

fn name(key: &[u8], field: &str) -> Vec<u8> {
    [key, b".", field.as_bytes()].concat()
}

fn padded(bytes: u64) -> u64 {
    bytes.div_ceil(BLOCK) * BLOCK
}

/// PAX records, if the plain header is too small.
fn extension(name: &[u8], bytes: u64) -> Option<Vec<u8>> {
    let mut records = Vec::new();
    if name.len() > NAME_BYTES_MAX {
        record(&mut records, "path", name);
    }
    if bytes > PLAIN_BYTES_MAX {
        record(&mut records, "size", bytes.to_string().as_bytes());
    }
    (!records.is_empty()).then_some(records)
}

/// `length keyword=value\n`, where the length counts itself.
fn record(records: &mut Vec<u8>, keyword: &str, value: &[u8]) {
    let rest = keyword.len() + value.len() + 3;
    let mut length = rest + 1;
    while length != rest + length.to_string().len() {
        length = rest + length.to_string().len();
    }
    records.extend_from_slice(format!("{length} {keyword}=").as_bytes());
    records.extend_from_slice(value);
    records.push(b'\n');
}

fn header(name: &[u8], bytes: u64, kind: u8) -> [u8; BLOCK as usize] {
    let mut block = [0; BLOCK as usize];
    let kept = name.len().min(NAME_BYTES_MAX);
    block[..kept].copy_from_slice(&name[..kept]);
    let mut text = |at: usize, text: &str| block[at..at + text.len()].copy_from_slice(text.as_bytes());
    text(100, "0000644\0");
    text(108, "0000000\0");
    text(116, "0000000\0");
    // Of a larger one the PAX header has the size.
    text(
        124,
        &format!("{:011o}\0", if bytes > PLAIN_BYTES_MAX { 0 } else { bytes }),
    );
    text(136, "00000000000\0");
    text(148, "        ");
    text(257, "ustar\x0000");
    block[156] = kind;
    let sum: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
    block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    block
}

/// Writes one archive.
#[derive(Default)]
pub(super) struct TarWriter {
    /// The key of the last sample.
    before: Vec<u8>,
}

/// Returns what is wrong with two samples with one key, one after the other.
pub(super) fn one_sample_of_two() -> Error {
    let message = "two samples with one key would follow each other, and every reader of a tar would take them for one; \
                   give them other keys, pack in another order or with another seed, or to another format";
    refused(message)
}

impl ShardWriter for TarWriter {
    fn start(&mut self, _out: Out<'_>) -> Result<()> {
        Ok(())
    }

    fn sample(&mut self, sample: &PackSample<'_>, out: Out<'_>) -> Result<()> {
        PackFormat::Tar.check_neighbours(&self.before, sample.key)?;
        self.before = sample.key.to_vec();
        for (field, bytes) in sample.fields {
            let name = name(sample.key, field);
            let length = bytes.len() as u64;
            if let Some(records) = extension(&name, length) {
                out(&header(b"././@PaxHeader", records.len() as u64, b'x'))?;
                out(&records)?;
                out(padding(records.len() as u64))?;
            }
            out(&header(&name, length, b'0'))?;
            out(bytes)?;
            out(padding(length))?;
        }
        Ok(())
    }

    fn finish(&mut self, out: Out<'_>) -> Result<()> {
        out(&ZEROS)
    }
}

fn padding(bytes: u64) -> &'static [u8] {
    &ZEROS[..(padded(bytes) - bytes) as usize]
}
