//! `cargo xtask`: the commands that keep the house in order.
//!
//! `check` is what must hold for every commit, `test` is everything that runs, `fuzz NAME` runs a fuzz
//! target, `wheel` builds the Python package, `bench NAME` writes a page under docs/benchmarks/. Nothing here
//! is part of the product, and nothing here needs more than Rust, Python 3.11 and the registries of both:
//! tools are fetched into `target/tools/`.

mod bench;
mod check;
mod command;
mod fuzz;
mod seaweed;
mod test;
mod tools;
mod wheel;
mod workspace;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use workspace::Workspace;

#[derive(Parser)]
#[command(name = "cargo xtask", about = "Checks, tests and benchmarks of Forebay")]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Format, lints, crate direction, licences, spelling, generated pages.
    Check(check::CheckArgs),
    /// All tests: Rust, doc tests, and real S3 clients against the binary.
    Test(test::TestArgs),
    /// Feeds one parser with what breaks parsers, for a while.
    Fuzz(fuzz::FuzzArgs),
    /// Builds the Python package: target/wheels/forebay-*.whl.
    Wheel(wheel::WheelArgs),
    /// Measures and writes a page under docs/benchmarks/.
    Bench(bench::BenchArgs),
}

fn main() -> ExitCode {
    let args = Args::parse();
    let outcome = match args.command {
        Command::Check(args) => Workspace::find().and_then(|workspace| check::run(&workspace, &args)),
        Command::Test(args) => Workspace::find().and_then(|workspace| test::run(&workspace, &args)),
        Command::Fuzz(args) => Workspace::find().and_then(|workspace| fuzz::run(&workspace, &args)),
        Command::Wheel(args) => Workspace::find().and_then(|workspace| wheel::run(&workspace, &args)),
        Command::Bench(args) => bench::run(&args),
    };
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}
