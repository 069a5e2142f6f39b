//! `quantize`: a smaller copy of a model, its linear weights in blocks.

use std::io::IsTerminal;
use std::path::PathBuf;

use clap::ValueEnum;
use indicatif::{ProgressBar, ProgressStyle};
use kin_infer::quantize::{QuantizeOptions, QuantizeReport, quantize_folder};
use kin_infer::weights::Dtype;

use crate::common::{Model, tell};
use crate::failure::{Done, Result};

#[derive(clap::Args)]
#[command(after_help = "\
The copy is a complete model folder that every command takes: settings, vocabularies and modules are copied; weights of
linear layers become blocks; norms, biases and matrices whose rows are no whole number of blocks stay as they are. Its
bytes are the same on every machine. docs/formats.md describes the files.

Example:
  kin-infer quantize --model models/all-MiniLM-L6-v2 --type q8_0 --output models/minilm-q8")]
pub struct Args {
    #[command(flatten)]
    model: Model,
    /// What 32 weights become: `q8_0` 34 bytes, `q4_0` 18 bytes
    #[arg(long = "type", value_enum)]
    kind: Kind,
    /// The folder to write; it must not exist, or be empty. It is .DIR.partial-PID beside it until it is whole
    #[arg(long, value_name = "DIR")]
    output: PathBuf,
    /// Make blocks of embedding tables too. A table that also is a language model's head counts as an embedding
    #[arg(long)]
    embeddings: bool,
    /// Threads that compute. Default: what `kin-infer plan` says
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    threads: Option<u16>,
    /// Tell nothing on stderr but errors
    #[arg(long)]
    quiet: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Kind {
    #[value(name = "q8_0")]
    Q8_0,
    #[value(name = "q4_0")]
    Q4_0,
}

impl From<Kind> for Dtype {
    fn from(kind: Kind) -> Self {
        match kind {
            Kind::Q8_0 => Dtype::Q8_0,
            Kind::Q4_0 => Dtype::Q4_0,
        }
    }
}

pub fn run(args: &Args) -> Result<Done> {
    match args.threads {
        Some(n) => kin_infer::init_threads(n.into()),
        None => kin_infer::init_performance_threads(),
    };
    let source = args.model.folder()?;
    let bar = if args.quiet || !std::io::stderr().is_terminal() { ProgressBar::hidden() } else { ProgressBar::new(1) };
    if let Ok(style) = ProgressStyle::with_template("{wide_bar} {percent}% {msg}") {
        bar.set_style(style);
    }
    let options = QuantizeOptions { dtype: args.kind.into(), embeddings: args.embeddings };
    let report = quantize_folder(&source, &args.output, &options, &mut |progress| {
        bar.set_length(progress.total);
        bar.set_position(progress.done);
        bar.set_message(progress.tensor.to_string());
    });
    bar.finish_and_clear();
    let report = report?;
    if !args.quiet {
        report_lines(args, &report).iter().for_each(|line| tell(line));
    }
    Ok(Done::Whole)
}

fn report_lines(args: &Args, report: &QuantizeReport) -> Vec<String> {
    let megabytes = |bytes: u64| bytes as f64 / 1e6;
    let mut lines = vec![format!(
        "wrote {}: {} tensors in blocks of {}, {} as they were; {:.1} MB of weights, were {:.1} MB",
        args.output.display(),
        report.quantised.len(),
        Dtype::from(args.kind),
        report.kept.len(),
        megabytes(report.bytes_after),
        megabytes(report.bytes_before),
    )];
    if !report.uneven.is_empty() {
        lines.push(format!("rows that are no whole number of blocks, kept: {}", report.uneven.join(", ")));
    }
    if !report.left_out.is_empty() {
        lines.push(format!("not copied: {}", report.left_out.join(", ")));
    }
    lines
}
