//! `embed`: texts to vectors.

mod cached;
mod deliver;
mod encode;
mod own;
mod pace;
mod run;

use std::path::{Path, PathBuf};

use clap::ValueEnum;
use kin_infer::Prompt;
use kin_infer::embedder::Role;

use crate::common::{Compute, Model, Pooling, PrecisionArg};
use crate::encoder::{Kind, Request};
use crate::failure::{Failure, Result};
use crate::input::{InputArgs, Split};
use crate::rows::{Extras, Format};
use crate::talk::LogFormat;
pub use run::run;

#[derive(clap::Args)]
#[command(after_help = "\
Vectors come in the order of the texts. A text that fails is reported on stderr with its id and left out; the others
are delivered and the exit code is 1.

A run into a file can be long. Every second or so, what it has made is put on disk for good in FILE.partial, and noted
in FILE.journal; the file gets its name when it is whole. After a crash, a kill or a full disk, the same command with
--resume goes on, and ends with the same bytes as if nothing had happened. It refuses when the input, the model or an
option has changed. Two runs on one output never mix: the second is refused. Too little memory or a device that fails is
no text's fault: it ends the run, and --resume goes on. docs/operations.md says what is guaranteed.

Ctrl-C ends a run into a file once what was made is on disk, with exit code 130; a second one ends the program at once.

--input FOLDER embeds a code base: its text files in the order of their paths, without hidden ones and what .gitignore
leaves out, cut at line boundaries into pieces that fit the model. Ids are PATH:FIRST-LAST, with the lines from 1.

What a text becomes is what modules.json says, or --pooling:
  one vector     {\"id\": ..., \"embedding\": [...]}
  one a token    {\"id\": ..., \"token_ids\": [...], \"tokens\": [...], \"embeddings\": [[...], ...]}
                 for late interaction (ColBERT, PyLate): special tokens included, what MultiVectorMask leaves out is not
                 there. --prompt query and --prompt document also set what the folder says of queries and documents:
                 their lengths, the tokens that fill up queries, the tokens that are left out
  sparse         {\"id\": ..., \"indices\": [...], \"values\": [...]}
                 for SPLADE: ids of vocabulary entries, ascending, and their weights; zeros are left out

Examples:
  kin-infer embed --model M \"one text\" \"another\"          ids 0, 1, ...
  kin-infer embed --model M < lines.txt                   ids 1, 2, ...: the line numbers
  kin-infer embed --model M --input docs.jsonl --prompt document --output docs.jsonl.vectors
  kin-infer embed --model M --input docs.jsonl --output docs.npy    ids in docs.npy.ids, one a line
  kin-infer embed --model M --input ~/src/project --output project.parquet --resume
  kin-infer embed --model M --input ~/src/project --output project.parquet --restart --cache ~/.cache/project.rows
  kin-infer embed --model M --pooling none --normalize --input docs.jsonl --output tokens.npy
  kin-infer embed --model SPLADE --top-k 100 --terms \"one text\"")]
pub struct Args {
    #[command(flatten)]
    model: Model,
    #[command(flatten)]
    input: InputArgs,
    /// Write to FILE instead of stdout. The file is FILE.partial until it is whole; a FILE that was there is replaced
    /// only then
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// How vectors are written. Default: by the ending of --output, .npy or .parquet, else jsonl. All keep every bit
    #[arg(long, value_enum)]
    format: Option<Format>,
    /// Go on with the unfinished run into --output, or begin one. FILE.journal stays beside the finished file, so that
    /// the same command finds it finished and does nothing
    #[arg(long, requires = "output", conflicts_with = "restart")]
    resume: bool,
    /// Begin anew even where an unfinished run into --output is there: what it made is lost
    #[arg(long, requires = "output")]
    restart: bool,
    /// Put what was made on disk for good after N texts at the latest; it is done every second in any case. A kill
    /// costs what came after
    #[arg(long, value_name = "N", default_value_t = 4096, value_parser = clap::value_parser!(u32).range(1..))]
    checkpoint: u32,
    /// Keep what texts become in FILE, by a hash of the model, the options and the text, and take from it what is
    /// known: unchanged texts are not embedded again, in this run and the next ones. One run at a time has it
    #[arg(long, value_name = "FILE")]
    cache: Option<PathBuf>,
    /// How long texts are cut. Default: the files of a folder into lines, else none
    #[arg(long, value_enum)]
    split: Option<Split>,
    /// Cut into pieces of at most N tokens, prompt and special tokens included, instead of the model's window
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    split_tokens: Option<u32>,
    /// What happens to a text with more tokens than the model's window
    #[arg(long, value_enum, default_value_t = OnLong::Cut)]
    on_long: OnLong,
    /// What a text becomes, in place of what modules.json says; without modules.json the mean, normalised, is assumed.
    /// The modules after the folder's pooling stay; with `none` and `splade` they take no part
    #[arg(long, value_enum, value_name = "POOLING")]
    pooling: Option<Pooling>,
    /// Give each vector length 1, so that dot products are cosine similarities. Most folders do so by themselves; with
    /// `--pooling none` it is each token's vector. Not for sparse vectors
    #[arg(long)]
    normalize: bool,
    /// Put the model's prompt of this name (such as `query` or `document`) before each text. Without any of the three
    /// prompt options, the model's default prompt is used if it has one
    #[arg(long, value_name = "NAME", conflicts_with_all = ["prompt_text", "no_prompt"])]
    prompt: Option<String>,
    /// Put TEXT before each text, as it stands
    #[arg(long, value_name = "TEXT", conflicts_with = "no_prompt")]
    prompt_text: Option<String>,
    /// Put nothing before the texts, even where the model has a default prompt
    #[arg(long)]
    no_prompt: bool,
    /// Keep the first N values of each vector and normalise again: smaller and less exact, only good with models
    /// trained for it (Matryoshka). For one vector a text
    #[arg(long, value_name = "N")]
    dimensions: Option<usize>,
    /// Keep the K largest values of each sparse vector
    #[arg(long, value_name = "K", value_parser = clap::value_parser!(u32).range(1..))]
    top_k: Option<u32>,
    /// Add "terms" to the lines of sparse vectors: the vocabulary entry of each index
    #[arg(long)]
    terms: bool,
    /// Add "token_count" and "truncated" to each line: how many tokens the model saw, and whether the text had more
    /// than its window
    #[arg(long)]
    counts: bool,
    /// How stderr is written
    #[arg(long, value_enum, default_value_t = LogFormat::Text)]
    log_format: LogFormat,
    #[command(flatten)]
    precision: PrecisionArg,
    #[command(flatten)]
    compute: Compute,
    /// Texts to embed; a text that starts with `-` goes after `--`
    #[arg(value_name = "TEXT", conflicts_with_all = ["input", "input_format"])]
    texts: Vec<String>,
}

/// What happens to a text that is too long.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum OnLong {
    /// It is cut at the end, and counted
    Cut,
    /// It fails, and is left out
    Error,
}

impl Args {
    /// Where vectors go, if not to stdout.
    fn file(&self) -> Option<&Path> {
        self.output.as_deref().filter(|p| *p != Path::new("-"))
    }

    fn format(&self) -> Format {
        let by_name = match self.output.as_ref().and_then(|p| p.extension()).and_then(|e| e.to_str()) {
            Some("npy") => Format::Npy,
            Some("parquet") => Format::Parquet,
            _ => Format::Jsonl,
        };
        self.format.unwrap_or(by_name)
    }

    fn extras(&self) -> Extras {
        Extras { counts: self.counts, terms: self.terms }
    }

    fn request(&self) -> Request {
        let prompt = match (&self.prompt, &self.prompt_text) {
            (Some(name), _) => Prompt::Named(name.clone()),
            (None, Some(text)) => Prompt::Text(text.clone()),
            (None, None) if self.no_prompt => Prompt::None,
            (None, None) => Prompt::Default,
        };
        let role = match self.prompt.as_deref() {
            Some("query") => Role::Query,
            Some("document" | "passage" | "corpus") => Role::Document,
            _ => Role::Neither,
        };
        let top = self.top_k.map(|k| k as usize);
        Request { prompt, role, dimensions: self.dimensions, normalize: self.normalize, top }
    }

    /// Refuses options that have no meaning for what is made.
    fn check(&self, kind: Kind) -> Result<()> {
        let options = [
            ("--dimensions", self.dimensions.is_some(), kind == Kind::Vector, "one vector a text"),
            ("--normalize", self.normalize, kind != Kind::Sparse, "dense vectors"),
            ("--top-k", self.top_k.is_some(), kind == Kind::Sparse, "sparse vectors"),
            ("--terms", self.terms, kind == Kind::Sparse, "sparse vectors"),
        ];
        match options.iter().find(|(_, given, fits, _)| *given && !fits) {
            Some((name, _, _, of)) => Err(Failure::Usage(format!("{name} is for {of}; this makes {}", kind.words()))),
            None => Ok(()),
        }
    }
}
