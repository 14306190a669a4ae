//! Arguments of `forebay dataset`. Help texts are the first lines of the comments here.

use std::path::PathBuf;
use std::str::FromStr;

use clap::{Args, Subcommand, ValueEnum};
use forebay_dataset::shard::Format;
use forebay_dataset::tokens::{TokenType, TokenWindows};
use forebay_dataset_pack::{Compression, SortBy};
use forebay_node::value::Size;

#[derive(Debug, Args)]
pub(crate) struct DatasetArgs {
    #[command(subcommand)]
    pub(crate) verb: DatasetVerb,
}

#[derive(Debug, Subcommand)]
pub(crate) enum DatasetVerb {
    /// Build or refresh the index of a dataset, and say what is in it
    Index(IndexArgs),
    /// Show what the index says: samples, fields, shards
    Stat(StatArgs),
    /// Show the first samples
    Head(HeadArgs),
    /// Write a field of a sample to standard output
    Cat(CatArgs),
    /// Write SHA256SUMS beside the data, signed if a key is given
    Manifest(ManifestArgs),
    /// Compare the data with its SHA256SUMS; fails and lists what is changed, missing or extra
    Verify(VerifyArgs),
    /// Make a pair of keys that signs and verifies manifests (ed25519)
    Keygen(KeygenArgs),
    /// Write a dataset anew as tar, tfrecord, mds or parquet shards; goes on where it was stopped, counts
    /// when it is whole
    Pack(PackArgs),
    /// Divide the samples into parts, such as train and val
    Split(SplitArgs),
}

/// Route from `forebay://` to its node.
#[derive(Debug, Clone, Args)]
pub(crate) struct NodeArg {
    /// The node for forebay:// names: its socket, or http://host:port [default: this user's node on this
    /// host]
    #[arg(long, value_name = "ADDR", env = "FOREBAY_NODE", hide_env_values = true)]
    pub(crate) node: Option<String>,
}

/// A dataset, and the way to read it.
#[derive(Debug, Clone, Args)]
pub(crate) struct SourceArgs {
    /// The dataset: forebay://bucket/dir/, a lake URL or a folder; shards by pattern as in
    /// dir/{0000..1023}.tar, joined by ::
    #[arg(value_name = "URL")]
    pub(crate) url: String,
    /// The format: tar, tfrecord, mds, raw, npy, bin, jsonl or parquet [default: what the names suggest]
    #[arg(long, value_name = "FORMAT", value_parser = format)]
    pub(crate) format: Option<Format>,
    /// How token files (npy, bin) are cut, as in 2048, 2048:1024 or 2048:2048:uint16
    #[arg(long, value_name = "LENGTH[:STRIDE[:TYPE]]", value_parser = tokens)]
    pub(crate) tokens: Option<TokenWindows>,
    /// Where labels of raw files come from: the word 'folder', or a local file of path,label lines or JSON
    /// lines
    #[arg(long, value_name = "folder|FILE")]
    pub(crate) labels: Option<PathBuf>,
    /// How many shards to read at once
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=64))]
    pub(crate) jobs: u16,
    /// Take places of samples from DALI's .idx files beside tar and TFRecord shards instead of reading the
    /// shards; they have no checksums, and nothing is stored
    #[arg(long)]
    pub(crate) borrow_index: bool,
    /// Take shards that a wids index names outside of its own folder
    #[arg(long)]
    pub(crate) shards_outside: bool,
    #[command(flatten)]
    pub(crate) node: NodeArg,
}

fn format(text: &str) -> Result<Format, String> {
    Format::parse(text).map_err(|error| error.message().to_owned())
}

fn tokens(text: &str) -> Result<TokenWindows, String> {
    let mut words = text.split(':');
    let number = |word: &str| {
        let number = word.parse().ok().filter(|number| *number > 0);
        number.ok_or_else(|| format!("{word} is no number of tokens"))
    };
    let length = number(words.next().unwrap_or_default())?;
    let stride = words.next().map_or(Ok(length), number)?;
    let token = words.next().map(TokenType::parse).transpose();
    let token = token.map_err(|error| error.message().to_owned())?;
    match words.next() {
        None => Ok(TokenWindows {
            length,
            stride,
            token,
        }),
        Some(_) => Err("there is more than LENGTH:STRIDE:TYPE".to_owned()),
    }
}

#[derive(Debug, Args)]
pub(crate) struct IndexArgs {
    #[command(flatten)]
    pub(crate) source: SourceArgs,
    /// Keep the SHA-256 of every shard in the index too
    #[arg(long)]
    pub(crate) sha256: bool,
    /// Read every shard again, also those that have not changed
    #[arg(long)]
    pub(crate) force: bool,
}

#[derive(Debug, Args)]
pub(crate) struct StatArgs {
    #[command(flatten)]
    pub(crate) source: SourceArgs,
}

#[derive(Debug, Args)]
pub(crate) struct HeadArgs {
    #[command(flatten)]
    pub(crate) source: SourceArgs,
    /// How many samples
    #[arg(short = 'n', long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    pub(crate) samples: u64,
}

#[derive(Debug, Args)]
pub(crate) struct CatArgs {
    #[command(flatten)]
    pub(crate) source: SourceArgs,
    /// The sample: its number from 0 on, or its key
    #[arg(value_name = "NUMBER|KEY")]
    pub(crate) sample: String,
    /// Take the sample as a key, also if it looks like a number
    #[arg(long)]
    pub(crate) key: bool,
    /// The field; needed if the sample has several
    #[arg(long, value_name = "FIELD")]
    pub(crate) field: Option<String>,
}

/// A folder, and the way to read it.
#[derive(Debug, Clone, Args)]
pub(crate) struct FolderArgs {
    /// The folder of the dataset: forebay://bucket/dir/, a lake URL or a folder
    #[arg(value_name = "URL")]
    pub(crate) url: String,
    /// How many objects to read at once
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=64))]
    pub(crate) jobs: u16,
    #[command(flatten)]
    pub(crate) node: NodeArg,
}

#[derive(Debug, Args)]
pub(crate) struct ManifestArgs {
    #[command(flatten)]
    pub(crate) folder: FolderArgs,
    /// Sign with this secret key (made by 'forebay dataset keygen' or openssl) and write SHA256SUMS.sig
    #[arg(long, value_name = "KEYFILE")]
    pub(crate) sign: Option<PathBuf>,
    /// Write nothing; fail if the manifest is not there or not current
    #[arg(long, conflicts_with = "sign")]
    pub(crate) check_only: bool,
}

#[derive(Debug, Args)]
pub(crate) struct VerifyArgs {
    #[command(flatten)]
    pub(crate) folder: FolderArgs,
    /// A public key that must have signed the manifest; may be given several times, one signature is enough
    #[arg(long, value_name = "FILE")]
    pub(crate) public_key: Vec<PathBuf>,
    /// Refuse a manifest without a signature; giving a public key does that too
    #[arg(long, requires = "public_key")]
    pub(crate) require_signature: bool,
}

#[derive(Debug, Args)]
pub(crate) struct KeygenArgs {
    /// Where to write the secret key; the public one goes to FILE.pub
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
}

/// Sort key of samples.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum SortKey {
    /// By key
    Key,
    /// By size, the smallest first
    Bytes,
}

impl From<SortKey> for SortBy {
    fn from(key: SortKey) -> Self {
        match key {
            SortKey::Key => Self::Key,
            SortKey::Bytes => Self::Bytes,
        }
    }
}

#[derive(Debug, Args)]
pub(crate) struct PackArgs {
    /// What to pack: a dataset as for 'index', or a folder of raw files, where files with one name and
    /// several endings are one sample
    #[arg(value_name = "SRC")]
    pub(crate) source: String,
    /// Where to: a folder that is empty or not there, forebay://bucket/dir/, a lake URL or a path
    #[arg(value_name = "DST")]
    pub(crate) target: String,
    /// The format of the new shards: tar, tfrecord, mds or parquet
    #[arg(long, value_name = "FORMAT", value_parser = format)]
    pub(crate) format: Format,
    /// The format of the source [default: what the names suggest]
    #[arg(long, value_name = "FORMAT", value_parser = format)]
    pub(crate) source_format: Option<Format>,
    /// How token files (npy, bin) of the source are cut, as in 2048, 2048:1024 or 2048:2048:uint16
    #[arg(long, value_name = "LENGTH[:STRIDE[:TYPE]]", value_parser = tokens)]
    pub(crate) tokens: Option<TokenWindows>,
    /// Make the labels of raw files a field: the word 'folder', or a local file of path,label lines or JSON
    /// lines; whole numbers become 'cls', others 'label'
    #[arg(long, value_name = "folder|FILE")]
    pub(crate) labels: Option<PathBuf>,
    /// Compress every shard as a whole: gzip for tfrecord, which TensorFlow then reads with
    /// compression_type="GZIP"; zstd or zstd:LEVEL (1 to 19) for mds; or none
    #[arg(long, visible_alias = "compression", value_name = "HOW", default_value = "none", hide_default_value = true, value_parser = Compression::from_str)]
    pub(crate) compress: Compression,
    /// How long a shard may be, before it is compressed
    #[arg(long, value_name = "SIZE", default_value = "256MiB")]
    pub(crate) shard_size: Size,
    /// Shuffle all samples by this seed
    #[arg(long, value_name = "SEED", conflicts_with = "sort_by")]
    pub(crate) shuffle: Option<u64>,
    /// Sort the samples by their key, or by their bytes
    #[arg(long, value_name = "WHAT")]
    pub(crate) sort_by: Option<SortKey>,
    /// How many shards to write at once
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=64))]
    pub(crate) jobs: u16,
    #[command(flatten)]
    pub(crate) node: NodeArg,
}

#[derive(Debug, Args)]
pub(crate) struct SplitArgs {
    #[command(flatten)]
    pub(crate) source: SourceArgs,
    /// Names and shares, as in train=0.9,val=0.1; shares add up to 1 at most
    #[arg(long, value_name = "NAME=SHARE,…")]
    pub(crate) parts: String,
    /// Another seed, another split
    #[arg(long, value_name = "SEED", default_value_t = 0)]
    pub(crate) seed: u64,
    /// Keep whole shards together: parts share no shard
    #[arg(long)]
    pub(crate) by_shard: bool,
    /// Where to write one list per part: NAME.txt with a sample number per line (with --by-shard: a shard
    /// name)
    #[arg(long, value_name = "DIR", default_value = ".")]
    pub(crate) out: PathBuf,
}
