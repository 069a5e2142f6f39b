//! `kin-infer`: text to vectors, search, reranking and a look inside models, thin over the library.
//!
//! stdout is data, stderr is talk. Exit codes: 0 done, 1 failed (or some inputs failed), 2 wrong usage, 130 interrupted.

mod bench;
mod common;
mod devices;
mod download;
mod embed;
mod encoder;
mod failure;
mod fingerprint;
mod forward;
mod generate;
mod input;
mod inspect;
mod interrupt;
mod npy;
mod output;
mod plan;
mod progress;
mod quantize;
mod rerank;
mod rows;
mod search;
mod stored;
mod talk;
mod tensors;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use failure::{Done, Failure};

/// Transformer inference in pure Rust: the same bits on every CPU, with any number of threads.
#[derive(Parser)]
#[command(name = "kin-infer", version, after_help = EXAMPLES)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

const EXAMPLES: &str = "\
A model is a folder (config.json beside the weights), a GGUF file, or a hub id that lies in the local hub cache.
Data goes to stdout, everything else to stderr. Exit codes: 0 done, 1 failed or some inputs failed, 2 wrong usage,
130 interrupted by Ctrl-C.

Examples:
  kin-infer embed --model models/all-MiniLM-L6-v2 \"fn main() {}\" \"the entry point\"
  kin-infer embed --model models/all-MiniLM-L6-v2 --input docs.jsonl --output docs.npy
  kin-infer search --model models/all-MiniLM-L6-v2 --embeddings docs.npy \"where does it start?\"
  kin-infer inspect models/all-MiniLM-L6-v2";

#[derive(Subcommand)]
enum Command {
    /// Turn texts into vectors: one a text, one a token, or sparse
    Embed(Box<embed::Args>),
    /// Find the nearest of stored vectors to a query
    Search(search::Args),
    /// Score documents against a query with a cross-encoder
    Rerank(rerank::Args),
    /// Continue texts, token ids or a conversation with a decoder
    Generate(Box<generate::Args>),
    /// Run a model on given token ids and write its raw outputs
    Forward(forward::Args),
    /// Say what a model computes, what of its files is used, and what it takes
    Inspect(inspect::Args),
    /// Write a smaller copy of a model, its linear weights in blocks of 8 or 4 bits
    Quantize(quantize::Args),
    /// Hash a model's outputs on fixed inputs: equal on every machine
    Fingerprint(fingerprint::Args),
    /// Measure a model on this machine: texts and tokens a second, share of the peak, memory
    Bench(bench::Args),
    /// List the devices and instruction sets this build can use here
    Devices(devices::Args),
    /// Say what runs take of this machine and why, and whether a model fits
    Plan(plan::Args),
    /// List the environment variables that are read, and their values
    Env(devices::EnvArgs),
}

fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Embed(args) => embed::run(*args),
        Command::Search(args) => search::run(&args),
        Command::Rerank(args) => rerank::run(args),
        Command::Generate(args) => generate::run(&args),
        Command::Forward(args) => forward::run(&args),
        Command::Inspect(args) => inspect::run(&args),
        Command::Quantize(args) => quantize::run(&args),
        Command::Fingerprint(args) => fingerprint::run(&args),
        Command::Bench(args) => bench::run(&args),
        Command::Devices(args) => devices::run(&args),
        Command::Plan(args) => plan::run(&args),
        Command::Env(args) => devices::run_env(&args),
    };
    match result {
        Ok(Done::Whole) | Err(Failure::ClosedPipe) => ExitCode::SUCCESS,
        Ok(Done::InPart) => ExitCode::from(1),
        Err(Failure::Failed(why)) => {
            talk::error(&why);
            ExitCode::from(1)
        }
        Err(Failure::Interrupted(why)) => {
            talk::error(&why);
            ExitCode::from(interrupt::STATUS)
        }
        Err(Failure::Usage(why)) => {
            talk::error(&format!("{why}\n\nFor more information, try '--help'."));
            ExitCode::from(2)
        }
    }
}
