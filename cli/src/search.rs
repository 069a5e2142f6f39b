//! `search`: the stored vectors nearest to a query.

use std::fs::File;
use std::io::BufReader;
use std::path::PathBuf;

use kin_infer::dot_product;
use kin_infer::embedder::max_sim;
use serde_json::{Value, json};

use crate::common::{Compute, Model, Pooling, PrecisionArg};
use crate::encoder::{Encoded, Encoder, Kind, Plan, Request};
use crate::failure::{Done, Failure, Result};
use crate::input::id_field;
use crate::output::{ListFormat, Sink};
use crate::stored::{Vectors, read_jsonl, read_npy, read_parquet};

#[derive(clap::Args)]
#[command(after_help = "\
The score of one vector a text is the dot product: of vectors of length 1 (what most models give) their cosine
similarity. Of one vector a token it is MaxSim: the sum over the query's vectors of the largest dot product with one of
the document's. Of sparse vectors it is the dot product over the indices both have. Equal scores keep the order of the
file. The file is read as a stream, so it may be larger than memory.

Examples:
  kin-infer embed  --model M --input docs.jsonl --output docs.npy
  kin-infer search --model M --embeddings docs.npy --top 3 \"how do I open a file?\"
  kin-infer embed  --model SPLADE --input docs.jsonl --output docs.sparse.jsonl
  kin-infer search --model SPLADE --embeddings docs.sparse.jsonl \"how do I open a file?\"")]
pub struct Args {
    /// Vectors that `embed` wrote: JSON lines, an .npy file with its ids in FILE.ids, or a .parquet
    /// file. They have to be of the same
    /// model, or the scores mean nothing
    #[arg(long, value_name = "FILE")]
    embeddings: PathBuf,
    #[command(flatten)]
    model: Model,
    /// Print the K best
    #[arg(long, value_name = "K", default_value_t = 5)]
    top: usize,
    /// What the query becomes, if the stored vectors were made with `embed --pooling`
    #[arg(long, value_enum, value_name = "POOLING")]
    pooling: Option<Pooling>,
    /// Give the query's vectors length 1, if the stored ones were made with `embed --normalize`
    #[arg(long)]
    normalize: bool,
    /// Length of the stored vectors, if they were made with `embed --dimensions`
    #[arg(long, value_name = "N")]
    dimensions: Option<usize>,
    /// How results are printed: score, tab, id; or {"id": ..., "score": ...} a line
    #[arg(long, value_enum, default_value_t = ListFormat::Text)]
    format: ListFormat,
    #[command(flatten)]
    precision: PrecisionArg,
    #[command(flatten)]
    compute: Compute,
    /// What to look for. The model's `query` prompt is put before it where the model has one
    query: String,
}

pub fn run(args: &Args) -> Result<Done> {
    let file = File::open(&args.embeddings).map_err(|e| Failure::io(&args.embeddings, &e))?;
    let plan = Plan::new(&args.model.folder()?, args.pooling)?;
    if args.dimensions.is_some() && plan.kind != Kind::Vector {
        return Err(Failure::Usage(format!("--dimensions is for one vector a text; this makes {}", plan.kind.words())));
    }
    if args.normalize && plan.kind == Kind::Sparse {
        return Err(Failure::Usage("--normalize is for dense vectors; this makes sparse vectors".to_string()));
    }
    let encoder = plan.load(args.compute.open_for(args.precision.get())?, args.precision.get())?;
    encoder.assumptions().iter().for_each(|assumed| args.compute.note(&format!("note: {assumed}")));
    let mut best = Best { query: query(&encoder, args)?, top: args.top, kept: Vec::new() };
    let reader = |file| BufReader::with_capacity(1 << 16, file);
    let at = |why: String| Failure::Failed(format!("{}: {why}", args.embeddings.display()));
    match args.embeddings.extension().and_then(|e| e.to_str()) {
        Some("npy") => read_npy(reader(file), &args.embeddings, &mut best)?,
        Some("parquet") => read_parquet(file, &mut best).map_err(at)?,
        _ => read_jsonl(reader(file), &mut best).map_err(at)?,
    }
    let mut out = Sink::stdout();
    for (score, id) in best.kept {
        match args.format {
            ListFormat::Text => out.line(&format!("{score}\t{}", id_field(&id)))?,
            ListFormat::Json => out.json(&json!({"id": id, "score": score}))?,
        }
    }
    out.commit()?;
    Ok(Done::Whole)
}

fn query(encoder: &Encoder, args: &Args) -> Result<Vectors> {
    let request = Request { dimensions: args.dimensions, normalize: args.normalize, ..encoder.query() };
    let row = encoder.encode(&[&args.query], &request)?.swap_remove(0)?;
    Ok(match row.value {
        Encoded::Vector(values) => Vectors::One(values),
        Encoded::Tokens(tokens) => Vectors::Many { values: tokens.vectors, dimension: encoder.dimension() },
        Encoded::Sparse(vector) => Vectors::Sparse(vector),
    })
}

/// The best so far, best first.
pub struct Best {
    query: Vectors,
    top: usize,
    kept: Vec<(f32, Value)>,
}

impl Best {
    pub fn query(&self) -> &Vectors {
        &self.query
    }

    /// Scores a document's vectors, and keeps them if they are among the best.
    pub fn offer(&mut self, document: &Vectors, id: impl FnOnce() -> Value) -> std::result::Result<(), String> {
        let score = match (&self.query, document) {
            (Vectors::One(query), Vectors::One(values)) => {
                self.expect(query.len(), values.len())?;
                dot_product(query, values)
            }
            (Vectors::Many { values: query, dimension }, Vectors::Many { values, dimension: found }) => {
                if !values.is_empty() {
                    self.expect(*dimension, *found)?;
                }
                max_sim(query, values, *dimension)
            }
            (Vectors::Sparse(query), Vectors::Sparse(vector)) => query.dot(vector),
            (query, found) => {
                let rule = "--pooling makes the query what the stored texts were made";
                return Err(format!("{}, but the query became {}; {rule}", found.words(), query.words()));
            }
        };
        if !score.is_finite() {
            return Err("a value that is not finite".to_string());
        }
        let place = self.kept.partition_point(|(kept, _)| *kept >= score);
        if place < self.top {
            self.kept.insert(place, (score, id()));
            self.kept.truncate(self.top);
        }
        Ok(())
    }

    fn expect(&self, wanted: usize, found: usize) -> std::result::Result<(), String> {
        if found == wanted {
            return Ok(());
        }
        Err(format!(
            "a vector of {found} dimensions, but the query has {wanted}: made by another model, or with \
             `embed --dimensions {found}`, which this command takes too"
        ))
    }
}
