//! `bench`: how fast a model runs here, as shares of what the machine can do in the same minute.

mod decoder;
mod encoder;
mod machine;
mod report;
mod serve;

use std::path::PathBuf;
use std::sync::Arc;

use clap::ValueEnum;
use kin_infer::BertConfig;
use kin_infer::cpu::CpuCompute;
use kin_infer::gpu::Profiled;
use kin_infer::modules::ModelFolder;
use kin_infer::resource::ResourcePlan;

use crate::common::{Model, PrecisionArg};
use crate::failure::{Done, Failure, Result};

#[derive(clap::Args)]
#[command(after_help = "\
The CPU computes. An encoder runs texts of --input, from text to vector, or else sequences of --lengths; a decoder a
prompt at once, then token by token. Rounds of all rows are interleaved, each between two measurements of the machine's peak (f32
multiply-adds, or bytes read), so that a share is a ratio within a moment: shares can be compared, seconds of a busy or
throttled machine cannot. The median, the lowest and the highest rate of all rounds are printed.

--profile adds where the time goes: for each operation its calls, share of the time, multiplications and additions a
second and their share of the peak, and bytes of operands a second.

Examples:
  kin-infer bench --model models/all-MiniLM-L6-v2 --input texts.jsonl --threads 1,2
  kin-infer bench --model models/all-MiniLM-L6-v2 --lengths 16,128,512 --profile
  kin-infer bench --model DECODER.gguf --prompt-tokens 512 --new-tokens 64 --format json")]
pub struct Args {
    #[command(flatten)]
    model: Model,
    /// Texts of FILE: JSON lines {"text": ...} where its name ends in .jsonl, else one a line
    #[arg(long, value_name = "FILE", conflicts_with = "lengths")]
    input: Option<PathBuf>,
    /// Sequences of so many made-up tokens, 1,024 tokens or more of each length
    #[arg(long, value_name = "N,...", value_delimiter = ',', default_value = "16,128,512",
        value_parser = clap::value_parser!(u32).range(1..))]
    lengths: Vec<u32>,
    /// Numbers of threads to run with. Default: what `kin-infer plan` says
    #[arg(long, value_name = "N,...", value_delimiter = ',', value_parser = clap::value_parser!(u16).range(1..))]
    threads: Vec<u16>,
    /// Rounds of all rows
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// What runs: by default a decoder generates when config.json names it as a language model
    #[arg(long, value_enum, default_value_t = Work::Auto)]
    work: Work,
    /// Tokens of a decoder's prompt
    #[arg(long, value_name = "N", default_value_t = 512, value_parser = clap::value_parser!(u32).range(1..))]
    prompt_tokens: u32,
    /// Tokens that a decoder adds to it, one by one
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..))]
    new_tokens: u32,
    #[command(flatten)]
    precision: PrecisionArg,
    /// Add where the time goes, operation by operation
    #[arg(long)]
    profile: bool,
    /// How results are printed
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
    /// Measure nothing; embed corpora that JSON lines on stdin name, for programs that time several engines:
    /// {"cmd": "corpus", "path": FILE}, {"cmd": "run", "out": FILE}, {"cmd": "quit"}
    #[arg(long, conflicts_with_all = ["input", "profile"])]
    serve: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Work {
    Auto,
    Embed,
    Generate,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    /// Tables in Markdown
    Text,
    /// One JSON object
    Json,
}

pub fn run(args: &Args) -> Result<Done> {
    let folder = args.model.folder()?;
    let threads = match args.threads.as_slice() {
        [] => vec![ResourcePlan::current()?.embedding.threads.value],
        some => some.iter().map(|n| usize::from(*n)).collect(),
    };
    if args.serve {
        let [threads] = threads[..] else {
            return Err(Failure::Usage("--serve runs with one number of threads".into()));
        };
        return serve::run(&folder, threads, args.precision.get());
    }
    let compute = Arc::new(Profiled::new(Arc::new(CpuCompute::new()?)));
    let generate = match args.work {
        Work::Auto => {
            let config = BertConfig::from_folder(&ModelFolder::read(&folder)?.transformer_dir)?;
            let named = config.architectures.unwrap_or_default();
            named.iter().any(|class| class.ends_with("ForCausalLM") || class.ends_with("LMHeadModel"))
        }
        work => work == Work::Generate,
    };
    let mut rows = match generate {
        true => decoder::rows(args, &folder, &compute)?,
        false => encoder::rows(args, &folder, &compute)?,
    };
    let mut pools = threads.iter().map(|n| machine::Pool::new(*n)).collect::<Result<Vec<_>>>()?;
    let table = report::measure(&mut rows, &mut pools, &compute, args.rounds)?;
    report::print(&table, &args.model.model, args.profile, args.format == Format::Json)?;
    Ok(Done::Whole)
}
