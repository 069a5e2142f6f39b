//! `generate`: continue texts, token ids or a conversation with a decoder.

mod chat;
mod record;
mod session;

use std::path::{Path, PathBuf};

use clap::ValueEnum;
use kin_infer::generate::{ChatOptions, Messages};
use serde::Deserialize;

use crate::common::{Compute, Model};
use crate::failure::{Done, Failure, Result, item_detail};
use crate::interrupt::{self, Interrupt};
use crate::output::Sink;
use crate::talk::error;
use record::{Record, Timing};
use session::Session;

#[derive(clap::Args)]
#[command(after_help = "\
Text comes as it is made, and ends with a newline. --format json prints one line at the end, {\"sequences\": [{\"tokens\":
[new ids], \"text\": ..., \"finish_reason\": ...}]}, in the order of the prompts; a stop token is the last of the ids and
has no text, and \"text\" is null where the model has no tokenizer. finish_reason is stop_token, stop_text, length, window
or cancelled; a sequence that fails is {\"error\": ...}, also told on stderr, and the exit code is then 1. The tokens file
is {\"sequences\": [[1, 450, 1556], ...]}; nothing is added to its ids.

What the model's generation_config.json says holds where no option says otherwise; without it the choice is greedy. A
seed gives the same tokens on every machine, whatever else is in the batch; every sequence starts its own numbers from
the seed.

Ctrl-C ends the generation with what was made so far; a second one ends the program. The exit code is then 0, or 130
where nothing had been made. In a chat it ends the answer, and at the prompt the program, with 130.

Examples:
  kin-infer generate --model M --prompt \"fn main() {\" --max-new-tokens 64
  kin-infer generate --model M --chat --temperature 0.7 --top-p 0.9 --seed 1
  kin-infer generate --model m.Q4_0.gguf --weights f32 --prompt \"Once upon\"
  kin-infer generate --model M --tokens ids.json --format json")]
pub struct Args {
    #[command(flatten)]
    model: Model,
    #[command(flatten)]
    source: Source,
    /// Most new tokens of a sequence. Default: the model's max_new_tokens, else 256. Prompt and new tokens never pass
    /// the window the model was trained with
    #[arg(long, value_name = "N")]
    max_new_tokens: Option<usize>,
    #[command(flatten)]
    sampling: Sampling,
    /// End where the text holds S, which is cut off; may be given several times. In place of the model's stop_strings
    #[arg(long, value_name = "S", allow_hyphen_values = true)]
    stop: Vec<String>,
    /// Go on after the tokens that end a text
    #[arg(long)]
    ignore_eos: bool,
    /// With each token its log-probability and those of the N likeliest, of the model's scores before any option
    /// changes them. Needs --format json
    #[arg(long, value_name = "N")]
    logprobs: Option<usize>,
    /// What is computed with where the model has weights in blocks of 8 or 4 bits
    #[arg(long, value_enum, default_value_t = Weights::Stored)]
    weights: Weights,
    /// How results are printed
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
    /// Sequences that are generated side by side. More is faster in all and takes more memory; results are the same
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..))]
    batch_size: u16,
    #[command(flatten)]
    compute: Compute,
}

/// What is continued.
#[derive(clap::Args)]
#[group(required = true)]
struct Source {
    /// Continue TEXT; may be given several times
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true, conflicts_with_all = ["tokens", "chat", "messages"])]
    prompt: Vec<String>,
    /// Continue the token ids of a JSON file
    #[arg(long, value_name = "FILE", conflicts_with_all = ["chat", "messages"])]
    tokens: Option<PathBuf>,
    /// Talk: each line of stdin is a message, in the model's chat template
    #[arg(long)]
    chat: bool,
    /// Answer the conversation in FILE once, a JSON list [{"role": "user", "content": "..."}, ...], and read no lines
    #[arg(long, value_name = "FILE")]
    messages: Option<PathBuf>,
}

/// How tokens are chosen; the library's `SamplingParams`.
#[derive(clap::Args)]
struct Sampling {
    /// Divide the scores by T: below 1 likely tokens become likelier. 0 takes the likeliest
    #[arg(long, value_name = "T")]
    temperature: Option<f64>,
    /// Draw from the K likeliest tokens; 0 from all
    #[arg(long, value_name = "K")]
    top_k: Option<usize>,
    /// Draw from the likeliest tokens that reach the probability P together
    #[arg(long, value_name = "P")]
    top_p: Option<f64>,
    /// Draw from tokens at least P times as likely as the likeliest
    #[arg(long, value_name = "P")]
    min_p: Option<f64>,
    /// Make tokens that were there before less likely (above 1)
    #[arg(long, value_name = "R")]
    repetition_penalty: Option<f64>,
    /// Where the random numbers start
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Weights {
    /// The blocks, beside inputs rounded to 8 bits: fast and small
    Stored,
    /// The values of the blocks, beside inputs in f32: as near the file's values as f32 comes, and slower
    F32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    /// The text alone; ids where the model has no tokenizer
    Text,
    /// One line of JSON
    Json,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Tokens {
    sequences: Vec<Vec<u32>>,
}

pub fn run(args: &Args) -> Result<Done> {
    if args.logprobs.is_some() && args.format == Format::Text {
        return Err(Failure::Usage("--logprobs needs --format json".to_string()));
    }
    let ids = args.source.tokens.as_deref().map(read_tokens).transpose()?;
    let messages = args.source.messages.as_deref().map(read_messages).transpose()?;
    let interrupt = Interrupt::install()?;
    let session = Session::open(args, ids.is_some(), &interrupt)?;
    let prompts = if let Some(ids) = ids {
        ids
    } else if let Some(messages) = messages {
        vec![session.text()?.chat_prompt(&messages, &ChatOptions::new())?]
    } else if args.source.chat {
        return chat::run(args, &session, &interrupt);
    } else {
        let generator = session.text()?;
        args.source.prompt.iter().map(|prompt| generator.encode(prompt)).collect::<kin_infer::Result<_>>()?
    };
    let mut out = Sink::stdout();
    let mut timing = Timing::default();
    interrupt.begin();
    let records = match prompts.as_slice() {
        [prompt] if args.format == Format::Text && session.text().is_ok() => {
            let mut cache = session.model().kv_cache()?;
            let print = |piece: &str| out.put(piece.as_bytes()).and_then(|()| out.flush());
            let record = session.stream(&mut cache, prompt, &mut timing, print)?;
            out.line("")?;
            vec![Ok(record)]
        }
        _ => run_batches(args, &session, &prompts, &mut timing, &mut out)?,
    };
    interrupt.end();
    let failed = records.iter().filter(|r| r.is_err()).count();
    let made = records.iter().flatten().map(|r| r.tokens.len()).sum::<usize>();
    if args.format == Format::Json {
        out.json(&record::Sequences::new(&records))?;
    }
    out.commit()?;
    timing.tell(&args.compute);
    if interrupt.cancelled() && made == 0 {
        std::process::exit(interrupt::STATUS.into());
    }
    Ok(Done::with_failures(failed))
}

/// Batch after batch; in text each sequence's text in its turn.
fn run_batches(
    args: &Args,
    session: &Session,
    prompts: &[Vec<u32>],
    timing: &mut Timing,
    out: &mut Sink,
) -> Result<Vec<std::result::Result<Record, String>>> {
    let mut records = Vec::new();
    for batch in prompts.chunks(args.batch_size.into()) {
        for result in session.batch(batch, timing) {
            let i = records.len();
            let record = result.map_err(|e| item_detail(&e));
            match &record {
                Err(why) => error(&format!("sequence {i}: {why}")),
                Ok(record) if args.format == Format::Text => out.line(&record.shown())?,
                Ok(_) => {}
            }
            records.push(record);
        }
        out.flush()?;
    }
    Ok(records)
}

fn read_tokens(file: &Path) -> Result<Vec<Vec<u32>>> {
    let tokens: Tokens = serde_json::from_str(&read(file)?).map_err(|e| at(file, &e))?;
    Ok(tokens.sequences)
}

fn read_messages(file: &Path) -> Result<Messages> {
    Messages::from_json(&read(file)?).map_err(|e| at(file, &e))
}

fn read(file: &Path) -> Result<String> {
    std::fs::read_to_string(file).map_err(|e| Failure::io(file, &e))
}

fn at(file: &Path, why: &dyn std::fmt::Display) -> Failure {
    Failure::Failed(format!("{}: {why}", file.display()))
}
