//! Arguments of `forebay ckpt`. Help texts are the first lines of the comments here.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use forebay_node::value::{Period, Size};

use super::name::StepName;
use crate::dataset::args::NodeArg;

#[derive(Debug, Args)]
pub(crate) struct CkptArgs {
    #[command(subcommand)]
    pub(crate) verb: CkptVerb,
}

#[derive(Debug, Subcommand)]
pub(crate) enum CkptVerb {
    /// List the steps of a run: sizes, what was reused, how long saving took, what is on its way
    Ls(LsArgs),
    /// Show a step: tensors, objects, files, metadata, alarms
    Show(ShowArgs),
    /// Prove every byte of a step, or of a .pt or .safetensors file; fails and lists what is wrong
    Verify(VerifyArgs),
    /// Say which tensors differ between two steps, and by how much
    Diff(DiffArgs),
    /// Write a step as ordinary files: whole tensors, proved on the way
    Export(ExportArgs),
    /// Make a step of safetensors files, also sharded ones
    Import(ImportArgs),
    /// Remove steps that the policy does not keep, and what crashes left
    Prune(PruneArgs),
    /// Remove steps
    Rm(RmArgs),
    /// Wait until saves are durable; fails if one failed
    Wait(WaitArgs),
}

/// Parallelism and the node.
#[derive(Debug, Clone, Args)]
pub(crate) struct WorkArgs {
    /// How many threads read and compute at once
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=64))]
    pub(crate) jobs: u16,
    #[command(flatten)]
    pub(crate) node: NodeArg,
}

#[derive(Debug, Args)]
pub(crate) struct LsArgs {
    /// The run: forebay://bucket/run, a lake URL or a folder
    #[arg(value_name = "RUN")]
    pub(crate) run: StepName,
    #[command(flatten)]
    pub(crate) node: NodeArg,
}

#[derive(Debug, Args)]
pub(crate) struct ShowArgs {
    /// The step: RUN@STEP; RUN alone is its newest
    #[arg(value_name = "RUN[@STEP]")]
    pub(crate) step: StepName,
    #[command(flatten)]
    pub(crate) node: NodeArg,
}

#[derive(Debug, Args)]
pub(crate) struct VerifyArgs {
    /// The step: RUN@STEP; RUN alone is its newest. Or a file: .safetensors, .pt, .pth, .bin, .ckpt; its
    /// digests are kept beside it
    #[arg(value_name = "RUN[@STEP]|FILE")]
    pub(crate) step: StepName,
    /// Look only whether every file is there with its size, or at the structure of a file; reads no data
    #[arg(long)]
    pub(crate) quick: bool,
    /// Of a file: keep the digests of what it is now, whatever it was
    #[arg(long, conflicts_with = "quick")]
    pub(crate) renew: bool,
    #[command(flatten)]
    pub(crate) work: WorkArgs,
}

#[derive(Debug, Args)]
pub(crate) struct DiffArgs {
    /// One step: RUN@STEP
    #[arg(value_name = "A")]
    pub(crate) before: StepName,
    /// The other: RUN@STEP, or @STEP of the same run
    #[arg(value_name = "B")]
    pub(crate) after: StepName,
    #[command(flatten)]
    pub(crate) work: WorkArgs,
}

/// Format of an export.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ExportFormat {
    /// One safetensors file
    Safetensors,
    /// A folder that `from_pretrained` opens
    Hf,
    /// A folder that `torch.distributed.checkpoint` loads
    Dcp,
}

#[derive(Debug, Args)]
pub(crate) struct ExportArgs {
    /// The step: RUN@STEP; RUN alone is its newest
    #[arg(value_name = "RUN[@STEP]")]
    pub(crate) step: StepName,
    /// Where to, on this machine: a file for safetensors, else a folder
    #[arg(value_name = "PATH")]
    pub(crate) target: PathBuf,
    /// What to write
    #[arg(long, value_name = "FORMAT")]
    pub(crate) format: ExportFormat,
    /// Only tensors whose names start so, and without it: model. for the weights alone
    #[arg(long, value_name = "TEXT", default_value = "")]
    pub(crate) prefix: String,
    /// How long a file of a folder may be, if no tensor is longer
    #[arg(long, value_name = "SIZE", default_value = "5GB")]
    pub(crate) file_size: Size,
    /// Replace what is there
    #[arg(long)]
    pub(crate) force: bool,
    #[command(flatten)]
    pub(crate) work: WorkArgs,
}

#[derive(Debug, Args)]
pub(crate) struct ImportArgs {
    /// A safetensors file or a folder of them: a path, forebay://bucket/key or a lake URL
    #[arg(value_name = "SRC")]
    pub(crate) source: String,
    /// The step that it becomes: RUN@STEP
    #[arg(value_name = "RUN@STEP")]
    pub(crate) step: StepName,
    /// Put this before every name: model. for weights alone
    #[arg(long, value_name = "TEXT", default_value = "")]
    pub(crate) prefix: String,
    /// Replace the step if it is there; the older generation stays until it is pruned
    #[arg(long)]
    pub(crate) supersede: bool,
    #[command(flatten)]
    pub(crate) work: WorkArgs,
}

/// Confirmation: do it, or only say it.
#[derive(Debug, Clone, Args)]
pub(crate) struct ReallyArgs {
    /// Really do it
    #[arg(long)]
    pub(crate) yes: bool,
    /// Say what would be removed, do nothing
    #[arg(long, conflicts_with = "yes")]
    pub(crate) dry_run: bool,
}

#[derive(Debug, Args)]
pub(crate) struct PruneArgs {
    /// The run: forebay://bucket/run, a lake URL or a folder
    #[arg(value_name = "RUN")]
    pub(crate) run: StepName,
    /// Keep the newest so many steps
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) keep_last: u32,
    /// Keep steps that are multiples of this as well
    #[arg(long, value_name = "STEPS", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) keep_every: Option<u64>,
    /// Collect what a crash left only if it is older
    #[arg(long, value_name = "TIME", default_value = "1h")]
    pub(crate) age: Period,
    #[command(flatten)]
    pub(crate) really: ReallyArgs,
    #[command(flatten)]
    pub(crate) node: NodeArg,
}

#[derive(Debug, Args)]
pub(crate) struct RmArgs {
    /// Steps of one run: RUN@STEP, and more as @STEP
    #[arg(value_name = "RUN@STEP", required = true)]
    pub(crate) steps: Vec<StepName>,
    #[command(flatten)]
    pub(crate) really: ReallyArgs,
    #[command(flatten)]
    pub(crate) node: NodeArg,
}

#[derive(Debug, Args)]
pub(crate) struct WaitArgs {
    /// The run, or one step of it: RUN@STEP
    #[arg(value_name = "RUN[@STEP]")]
    pub(crate) step: StepName,
    /// How long to wait
    #[arg(long, value_name = "TIME", default_value = "30m")]
    pub(crate) timeout: Period,
    #[command(flatten)]
    pub(crate) node: NodeArg,
}
