//! `rerank`: a cross-encoder's scores of documents for a query.

use kin_infer::Reranker;
use kin_infer::embedder::Counted;
use serde_json::{Value, json};

use crate::common::{Compute, Model, PrecisionArg};
use crate::failure::{Done, Result, item_detail};
use crate::input::{Amount, InputArgs, Item, Pieces, Records, field, id_field};
use crate::output::{ListFormat, Sink};
use crate::progress::{Count, Cut, Progress};

#[derive(clap::Args)]
#[command(after_help = "\
Scores are the model's raw outputs, before any sigmoid or softmax; the order is the same. Equal scores keep the order of
the documents. Of a pair too long for the model, the longer text is cut: stderr tells how many pairs were, --counts which. A
document that fails is reported on stderr with its id and left out; the exit code is then 1.

Examples:
  kin-infer rerank --model M --query \"open a file\" \"File::open(path)\" \"socket.close()\"
  kin-infer rerank --model M --query \"open a file\" --input candidates.jsonl --format json | head -3
  kin-infer rerank --model M --query \"open a file\" --input candidates.jsonl --format json --counts")]
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
    /// Add to each result the number of tokens of its pair and whether the pair was cut: "token_count" and "truncated",
    /// or two fields before the document's first line
    #[arg(long)]
    counts: bool,
    #[command(flatten)]
    precision: PrecisionArg,
    #[command(flatten)]
    compute: Compute,
    /// Documents to score; one that starts with `-` goes after `--`
    #[arg(value_name = "DOC", conflicts_with_all = ["input", "input_format"])]
    documents: Vec<String>,
}

struct Scored {
    id: Value,
    scores: Vec<f32>,
    tokens: usize,
    truncated: bool,
    first_line: String,
}

/// Documents that are scored at once.
const WINDOW: usize = 512;

pub fn run(mut args: Args) -> Result<Done> {
    let mut items = Pieces::new(Records::open(&std::mem::take(&mut args.documents), &args.input, &[])?, None);
    let precision = args.precision.get();
    let reranker = Reranker::load_with(&args.model.folder()?, args.compute.open_for(precision)?, precision)?;
    if reranker.labels() > 1 {
        args.compute.note(&format!("note: the model has {} labels; sorted by the first", reranker.labels()));
    }
    let mut progress = Progress::new(&args.compute, false);
    progress.begin("scoring", items.records().total_bytes, Count::default());
    let mut ranked = Vec::new();
    let (mut failed, mut cut) = (0, Cut::default());
    loop {
        let window = items.window(Amount::texts(WINDOW), str::len)?;
        if window.is_empty() {
            break;
        }
        let (good, bad): (Vec<_>, Vec<_>) = window.into_iter().partition(std::result::Result::is_ok);
        failed += bad.len();
        bad.into_iter().filter_map(std::result::Result::err).for_each(|line| progress.error(&line.0));
        let good: Vec<Item> = good.into_iter().flatten().collect();
        let texts: Vec<&str> = good.iter().map(|i| i.text.as_str()).collect();
        let scores = reranker.score_counted(&args.query, &texts);
        let (before, mut tokens) = (ranked.len(), 0);
        for (Item { id, text }, scores) in good.into_iter().zip(scores) {
            match scores {
                Ok(Counted { value: scores, tokens: own, truncated }) => {
                    tokens += own;
                    if truncated {
                        cut.tell(&progress, "pairs", reranker.window(), &id);
                    }
                    let first_line = field(text.lines().next().unwrap_or_default());
                    ranked.push(Scored { id, scores, tokens: own, truncated, first_line });
                }
                Err(e) => {
                    failed += 1;
                    progress.error(&format!("id {}: {}", id_field(&id), item_detail(&e)));
                }
            }
        }
        progress.advance(ranked.len() - before, tokens, items.records().read_bytes);
    }
    ranked.sort_by(|a, b| b.scores[0].total_cmp(&a.scores[0]));
    progress.finish("scored", &[("cut to the window", cut.count), ("failed", failed)]);
    print(&ranked, &args)?;
    Ok(Done::with_failures(failed))
}

fn print(ranked: &[Scored], args: &Args) -> Result<()> {
    let mut out = Sink::stdout();
    for Scored { id, scores, tokens, truncated, first_line } in ranked {
        let score = scores[0];
        if args.format == ListFormat::Text {
            let counts = if args.counts { format!("{tokens}\t{truncated}\t") } else { String::new() };
            out.line(&format!("{score}\t{}\t{counts}{first_line}", id_field(id)))?;
            continue;
        }
        let mut row = json!({"id": id, "score": score});
        if scores.len() > 1 {
            row["scores"] = json!(scores);
        }
        if args.counts {
            row["token_count"] = json!(tokens);
            row["truncated"] = json!(truncated);
        }
        out.json(&row)?;
    }
    out.commit()
}
