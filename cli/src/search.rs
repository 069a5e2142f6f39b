//! `search`: the stored vectors nearest to a query.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use kin_infer::{EmbedOptions, Embedder, Prompt, dot_product};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::common::{Compute, Model};
use crate::failure::{Done, Failure, Result};
use crate::input::{checked_id, id_field};
use crate::npy;
use crate::output::{ListFormat, Sink, with_suffix};

#[derive(clap::Args)]
#[command(after_help = "\
The score is the dot product: of vectors of length 1 (what most models give) their cosine similarity. Equal scores keep
the order of the file. The file is read as a stream, so it may be larger than memory.

Examples:
  kin-infer embed  --model M --input docs.jsonl --output docs.npy
  kin-infer search --model M --embeddings docs.npy --top 3 \"how do I open a file?\"")]
pub struct Args {
    /// Vectors that `embed` wrote: JSON lines, or an .npy file with its ids in FILE.ids. They have to be of the same
    /// model, or the scores mean nothing
    #[arg(long, value_name = "FILE")]
    embeddings: PathBuf,
    #[command(flatten)]
    model: Model,
    /// Print the K best
    #[arg(long, value_name = "K", default_value_t = 5)]
    top: usize,
    /// Length of the stored vectors, if they were made with `embed --dimensions`
    #[arg(long, value_name = "N")]
    dimensions: Option<usize>,
    /// How results are printed: score, tab, id; or {"id": ..., "score": ...} a line
    #[arg(long, value_enum, default_value_t = ListFormat::Text)]
    format: ListFormat,
    #[command(flatten)]
    compute: Compute,
    /// What to look for. The model's `query` prompt is put before it where the model has one
    query: String,
}

pub fn run(args: &Args) -> Result<Done> {
    let file = File::open(&args.embeddings).map_err(|e| Failure::io(&args.embeddings, &e))?;
    let compute = args.compute.open()?;
    let embedder = Embedder::load_with_compute(&args.model.folder()?, compute)?;
    for assumption in embedder.assumptions() {
        args.compute.note(&format!("note: {assumption}"));
    }
    let mut best = Best { query: embed_query(&embedder, args)?, top: args.top, kept: Vec::new() };
    let reader = BufReader::with_capacity(1 << 16, file);
    let at = |why: String| Failure::Failed(format!("{}: {why}", args.embeddings.display()));
    if args.embeddings.extension().is_some_and(|e| e == "npy") {
        read_npy(reader, &args.embeddings, &mut best)?;
    } else {
        read_jsonl(reader, &mut best).map_err(at)?;
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

fn embed_query(embedder: &Embedder, args: &Args) -> Result<Vec<f32>> {
    if args.dimensions.is_none() {
        return Ok(embedder.embed_query(&args.query)?);
    }
    let known = embedder.folder().prompts.contains_key("query");
    let prompt = if known { Prompt::Named("query".to_string()) } else { Prompt::Default };
    let options = EmbedOptions { prompt, dimensions: args.dimensions };
    Ok(embedder.embed_with(&[&args.query], &options)?.swap_remove(0))
}

/// The best so far, best first.
struct Best {
    query: Vec<f32>,
    top: usize,
    kept: Vec<(f32, Value)>,
}

impl Best {
    fn offer(&mut self, vector: &[f32], id: impl FnOnce() -> Value) -> std::result::Result<(), String> {
        let wanted = self.query.len();
        if vector.len() != wanted {
            let found = vector.len();
            return Err(format!(
                "a vector of {found} dimensions, but the query has {wanted}: made by another model, or with \
                 `embed --dimensions {found}`, which this command takes too"
            ));
        }
        let score = dot_product(&self.query, vector);
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
}

#[derive(Deserialize)]
struct Line {
    id: Value,
    embedding: Vec<f32>,
}

fn read_jsonl(reader: impl BufRead, best: &mut Best) -> std::result::Result<(), String> {
    for (i, line) in reader.lines().enumerate() {
        let at = |why: String| format!("line {}: {why}", i + 1);
        let line = line.map_err(|e| at(e.to_string()))?;
        if line.trim().is_empty() {
            continue;
        }
        let Line { id, embedding } = serde_json::from_str(&line)
            .map_err(|e| at(format!("expected {{\"id\": ..., \"embedding\": [...]}}: {e}")))?;
        let id = checked_id(id).map_err(at)?;
        best.offer(&embedding, || id).map_err(at)?;
    }
    Ok(())
}

fn read_npy(mut reader: impl Read, path: &Path, best: &mut Best) -> Result<()> {
    let at = |why: String| Failure::Failed(format!("{}: {why}", path.display()));
    let (rows, cols) = npy::read_header(&mut reader).map_err(at)?;
    let ids_path = with_suffix(path, ".ids");
    let ids_file = File::open(&ids_path).map_err(|e| Failure::io(&ids_path, &e))?;
    let mut ids = BufReader::new(ids_file).lines();
    let bad_ids = |row: usize, why: &str| Failure::Failed(format!("{}: line {}: {why}", ids_path.display(), row + 1));
    // The shape is the file's word: nothing is allocated by it before it is compared.
    if rows > 0 && cols != best.query.len() {
        best.offer(&vec![0.0; cols.min(1 << 20)], || Value::Null).map_err(at)?;
    }
    let mut bytes = vec![0; best.query.len() * 4];
    for row in 0..rows {
        reader.read_exact(&mut bytes).map_err(|e| at(format!("row {row} of {rows}: {e}")))?;
        let vector: Vec<f32> = bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect();
        let line = ids.next().ok_or_else(|| bad_ids(row, "missing; the array has more rows"))?;
        let line = line.map_err(|e| Failure::io(&ids_path, &e))?;
        let id: Value = serde_json::from_str(&line).map_err(|e| bad_ids(row, &e.to_string()))?;
        best.offer(&vector, || id).map_err(|why| at(format!("row {row}: {why}")))?;
    }
    if ids.next().is_some() {
        return Err(bad_ids(rows, &format!("one id too many; the array has {rows} rows")));
    }
    Ok(())
}
