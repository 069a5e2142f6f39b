//! `embed`: texts to vectors.

use std::path::PathBuf;

use kin_infer::Prompt;
use kin_infer::embedder::{Counted, Role};

use crate::common::{Compute, Model, Pooling, PrecisionArg};
use crate::encoder::{Encoded, Encoder, Kind, Plan, Request};
use crate::failure::{Done, Failure, Result, item_detail};
use crate::input::{InputArgs, Item, Items, id_field};
use crate::progress::{Cut, Progress};
use crate::rows::{Extras, Format, RowWriter};

#[derive(clap::Args)]
#[command(after_help = "\
Vectors come in the order of the texts. A text that fails is reported on stderr with its id and left out; the others
are delivered and the exit code is 1.

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
    /// How vectors are written. Default: npy when --output ends in .npy, else jsonl. Both keep every bit
    #[arg(long, value_enum)]
    format: Option<Format>,
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
    #[command(flatten)]
    precision: PrecisionArg,
    #[command(flatten)]
    compute: Compute,
    /// Texts to embed; a text that starts with `-` goes after `--`
    #[arg(value_name = "TEXT", conflicts_with_all = ["input", "input_format"])]
    texts: Vec<String>,
}

impl Args {
    fn format(&self) -> Format {
        let npy = self.output.as_ref().and_then(|p| p.extension()).is_some_and(|e| e == "npy");
        self.format.unwrap_or(if npy { Format::Npy } else { Format::Jsonl })
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

pub fn run(mut args: Args) -> Result<Done> {
    let mut items = Items::open(std::mem::take(&mut args.texts), &args.input)?;
    let plan = Plan::new(&args.model.folder()?, args.pooling)?;
    args.check(plan.kind)?;
    let extras = Extras { counts: args.counts, terms: args.terms };
    let mut writer = RowWriter::open(args.format(), args.output.as_deref(), plan.kind, extras)?;
    let encoder = plan.load(args.compute.open_for(args.precision.get())?, args.precision.get())?;
    let request = encoder.adapt(args.request());
    // Options the model cannot serve fail here, before any text.
    encoder.encode(&[], &request)?;
    let dimension = request.dimensions.unwrap_or(encoder.dimension());
    writer.set_dimension(dimension);
    encoder.notes(&request).iter().for_each(|note| args.compute.note(&format!("note: {note}")));
    let mut run = Run {
        encoder,
        request,
        writer,
        progress: Progress::new(&args.compute, items.total_bytes),
        failed: 0,
        cut: Cut::default(),
    };
    loop {
        let window = items.window()?;
        if window.is_empty() {
            break;
        }
        let delivered = run.window(window)?;
        run.writer.flush()?;
        run.progress.advance(delivered, items.read_bytes);
    }
    run.writer.commit()?;
    let part = |n: usize, what: &str| if n == 0 { String::new() } else { format!(", {n} {what}") };
    let rest =
        format!(", {dimension} dimensions{}{}", part(run.cut.count, "cut to the window"), part(run.failed, "failed"));
    run.progress.finish("embedded", &rest);
    Ok(Done::with_failures(run.failed))
}

/// What is carried from window to window.
struct Run {
    encoder: Encoder,
    request: Request,
    writer: RowWriter,
    progress: Progress,
    failed: usize,
    cut: Cut,
}

impl Run {
    /// Encodes and writes a window of texts, and gives the number that was delivered.
    fn window(&mut self, window: Vec<std::result::Result<Item, crate::input::BadLine>>) -> Result<usize> {
        let (good, bad): (Vec<_>, Vec<_>) = window.into_iter().partition(std::result::Result::is_ok);
        self.failed += bad.len();
        bad.into_iter().filter_map(std::result::Result::err).for_each(|line| self.progress.error(&line.0));
        let good: Vec<Item> = good.into_iter().flatten().collect();
        let mut delivered = 0;
        for piece in pieces(&good, self.encoder.kind()) {
            let texts: Vec<&str> = piece.iter().map(|i| i.text.as_str()).collect();
            for (item, row) in piece.iter().zip(self.encoder.encode(&texts, &self.request)?) {
                delivered += usize::from(self.deliver(item, row)?);
            }
        }
        Ok(delivered)
    }

    /// Writes a text's row, or tells why there is none.
    fn deliver(&mut self, item: &Item, row: kin_infer::Result<Counted<Encoded>>) -> Result<bool> {
        let row = match row {
            Ok(row) => row,
            Err(e) => {
                self.failed += 1;
                self.progress.error(&format!("id {}: {}", id_field(&item.id), item_detail(&e)));
                return Ok(false);
            }
        };
        if row.truncated {
            let window = &self.encoder.window_of(&self.request);
            self.cut.tell(&self.progress, "texts", window, &item.id);
        }
        self.writer.write(&item.id, &row, |id| self.encoder.term(id))?;
        Ok(true)
    }
}

/// Bytes of text whose token vectors are held at once: there are fewer tokens than bytes.
const TOKEN_BYTES: usize = 32 << 10;

/// A window in pieces whose results fit memory: one vector a token is a hundred times the text.
fn pieces(items: &[Item], kind: Kind) -> Vec<&[Item]> {
    if kind != Kind::Tokens {
        return vec![items];
    }
    let (mut pieces, mut start, mut bytes) = (Vec::new(), 0, 0);
    for (i, item) in items.iter().enumerate() {
        bytes += item.text.len();
        if bytes > TOKEN_BYTES && i > start {
            pieces.push(&items[start..i]);
            (start, bytes) = (i, item.text.len());
        }
    }
    pieces.push(&items[start..]);
    pieces
}
