//! `embed`: texts to vectors.

use std::path::PathBuf;

use kin_infer::{EmbedOptions, Embedder, Prompt};

use crate::common::{Compute, Model};
use crate::failure::{Done, Result, item_detail};
use crate::input::{InputArgs, Item, Items, id_field};
use crate::output::{Format, VectorWriter};
use crate::progress::Progress;

#[derive(clap::Args)]
#[command(after_help = "\
Vectors come in the order of the texts. A text that fails is reported on stderr with its id and left out; the others
are delivered and the exit code is 1.

Examples:
  kin-infer embed --model M \"one text\" \"another\"          ids 0, 1, ...
  kin-infer embed --model M < lines.txt                   ids 1, 2, ...: the line numbers
  kin-infer embed --model M --input docs.jsonl --prompt document --output docs.jsonl.vectors
  kin-infer embed --model M --input docs.jsonl --output docs.npy    ids in docs.npy.ids, one a line")]
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
    /// trained for it (Matryoshka)
    #[arg(long, value_name = "N")]
    dimensions: Option<usize>,
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

    fn options(&self) -> EmbedOptions {
        let prompt = match (&self.prompt, &self.prompt_text) {
            (Some(name), _) => Prompt::Named(name.clone()),
            (None, Some(text)) => Prompt::Text(text.clone()),
            (None, None) if self.no_prompt => Prompt::None,
            (None, None) => Prompt::Default,
        };
        EmbedOptions { prompt, dimensions: self.dimensions }
    }
}

pub fn run(mut args: Args) -> Result<Done> {
    let mut items = Items::open(std::mem::take(&mut args.texts), &args.input)?;
    let mut writer = VectorWriter::open(args.format(), args.output.as_deref())?;
    let compute = args.compute.open()?;
    let embedder = Embedder::load_with_compute(&args.model.folder()?, compute)?;
    let options = args.options();
    // Options the model cannot serve fail here, before any text.
    embedder.embed_each(&[], &options)?;
    for assumption in embedder.assumptions() {
        args.compute.note(&format!("note: {assumption}"));
    }
    let mut progress = Progress::new(&args.compute, items.total_bytes);
    let (mut failed, mut cut) = (0, 0);
    loop {
        let window = items.window()?;
        if window.is_empty() {
            break;
        }
        let (good, bad): (Vec<_>, Vec<_>) = window.into_iter().partition(std::result::Result::is_ok);
        failed += bad.len();
        bad.into_iter().filter_map(std::result::Result::err).for_each(|line| progress.error(&line.0));
        let good: Vec<Item> = good.into_iter().flatten().collect();
        let texts: Vec<&str> = good.iter().map(|i| i.text.as_str()).collect();
        let longer = too_long(&embedder, &options.prompt, &texts);
        if let (0, Some(first)) = (cut, longer.first()) {
            let (window, id) = (embedder.window(), id_field(&good[*first].id));
            let rule = format!("texts longer than {} tokens ({}) are cut", window.limit, window.source);
            progress.note(&format!("note: {rule}, the first is id {id}"));
        }
        cut += longer.len();
        let vectors = embedder.embed_each(&texts, &options)?;
        let mut delivered = 0;
        for (item, vector) in good.iter().zip(vectors) {
            match vector {
                Ok(vector) => {
                    writer.write(&item.id, &vector)?;
                    delivered += 1;
                }
                Err(e) => {
                    failed += 1;
                    progress.error(&format!("id {}: {}", id_field(&item.id), item_detail(&e)));
                }
            }
        }
        writer.flush()?;
        progress.advance(delivered, items.read_bytes);
    }
    let dimension = options.dimensions.unwrap_or(embedder.dimension());
    writer.commit(dimension)?;
    let part = |n: usize, what: &str| if n == 0 { String::new() } else { format!(", {n} {what}") };
    let rest = format!(", {dimension} dimensions{}{}", part(cut, "cut to the window"), part(failed, "failed"));
    progress.finish("embedded", &rest);
    Ok(Done::with_failures(failed))
}

/// Which texts have more tokens than the model's window.
fn too_long(embedder: &Embedder, prompt: &Prompt, texts: &[&str]) -> Vec<usize> {
    let prompts = &embedder.folder().prompts;
    let named = |name: &String| prompts.get(name).cloned().unwrap_or_default();
    let prompt = match prompt {
        Prompt::None => String::new(),
        Prompt::Text(text) => text.clone(),
        Prompt::Named(name) => named(name),
        Prompt::Default => embedder.folder().default_prompt_name.as_ref().map(named).unwrap_or_default(),
    };
    let (limit, tokenizer) = (embedder.window().limit, embedder.tokenizer());
    // A token is a byte at least, so most texts need no second look.
    let room = limit.saturating_sub(tokenizer.num_special_tokens() + prompt.len());
    let suspects: Vec<usize> = (0..texts.len()).filter(|i| texts[*i].len() > room).collect();
    let whole: Vec<String> = suspects.iter().map(|i| format!("{prompt}{}", texts[*i])).collect();
    let whole: Vec<&str> = whole.iter().map(String::as_str).collect();
    let encodings = tokenizer.encode_batch(&whole, usize::MAX).into_iter().zip(suspects);
    encodings.filter(|(e, _)| e.as_ref().is_ok_and(|e| e.ids.len() > limit)).map(|(_, i)| i).collect()
}
