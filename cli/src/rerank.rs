//! `rerank`: a cross-encoder's scores of documents for a query.

use kin_infer::Reranker;
use serde_json::{Value, json};

use crate::common::{Compute, Model};
use crate::failure::{Done, Result, item_detail};
use crate::input::{InputArgs, Item, Items, field, id_field};
use crate::output::{ListFormat, Sink};
use crate::progress::Progress;

#[derive(clap::Args)]
#[command(after_help = "\
Scores are the model's raw outputs, before any sigmoid or softmax; the order is the same. Equal scores keep the order of
the documents. Of a pair too long for the model, the longer text is cut. A document that fails is reported on stderr
with its id and left out; the exit code is then 1.

Examples:
  kin-infer rerank --model M --query \"open a file\" \"File::open(path)\" \"socket.close()\"
  kin-infer rerank --model M --query \"open a file\" --input candidates.jsonl --format json | head -3")]
pub struct Args {
    #[command(flatten)]
    model: Model,
    /// What the documents are scored against
    #[arg(long, value_name = "QUERY")]
    query: String,
    #[command(flatten)]
    input: InputArgs,
    /// How results are printed, best first: score, tab, id, tab, the document's first line; or
    /// {"id": ..., "score": ...} a line. A model with several labels is sorted by the first; json then has all of them
    /// in "scores"
    #[arg(long, value_enum, default_value_t = ListFormat::Text)]
    format: ListFormat,
    #[command(flatten)]
    compute: Compute,
    /// Documents to score; one that starts with `-` goes after `--`
    #[arg(value_name = "DOC", conflicts_with_all = ["input", "input_format"])]
    documents: Vec<String>,
}

struct Scored {
    id: Value,
    scores: Vec<f32>,
    first_line: String,
}

pub fn run(mut args: Args) -> Result<Done> {
    let mut items = Items::open(std::mem::take(&mut args.documents), &args.input)?;
    let compute = args.compute.open()?;
    let reranker = Reranker::load_with_compute(&args.model.folder()?, compute)?;
    if reranker.labels() > 1 {
        args.compute.note(&format!("note: the model has {} labels; sorted by the first", reranker.labels()));
    }
    let mut progress = Progress::new(&args.compute, items.total_bytes);
    let mut ranked = Vec::new();
    let mut failed = 0;
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
        let scores = reranker.score(&args.query, &texts);
        let before = ranked.len();
        for (Item { id, text }, scores) in good.into_iter().zip(scores) {
            match scores {
                Ok(scores) => {
                    let first_line = field(text.lines().next().unwrap_or_default());
                    ranked.push(Scored { id, scores, first_line });
                }
                Err(e) => {
                    failed += 1;
                    progress.error(&format!("id {}: {}", id_field(&id), item_detail(&e)));
                }
            }
        }
        progress.advance(ranked.len() - before, items.read_bytes);
    }
    ranked.sort_by(|a, b| b.scores[0].total_cmp(&a.scores[0]));
    let rest = if failed == 0 { String::new() } else { format!(", {failed} failed") };
    progress.finish("scored", &rest);
    print(&ranked, args.format)?;
    Ok(Done::with_failures(failed))
}

fn print(ranked: &[Scored], format: ListFormat) -> Result<()> {
    let mut out = Sink::stdout();
    for Scored { id, scores, first_line } in ranked {
        let score = scores[0];
        match format {
            ListFormat::Text => out.line(&format!("{score}\t{}\t{first_line}", id_field(id)))?,
            ListFormat::Json if scores.len() == 1 => out.json(&json!({"id": id, "score": score}))?,
            ListFormat::Json => out.json(&json!({"id": id, "score": score, "scores": scores}))?,
        }
    }
    out.commit()
}
