//! `bench --serve`: texts to vectors on request, so that another program can time this engine among others.

use std::io::{BufRead, stdin};
use std::path::{Path, PathBuf};
use std::time::Instant;

use kin_infer::Precision;
use kin_infer::gpu::create_compute_for;
use serde::Deserialize;
use serde_json::json;

use super::encoder::texts;
use crate::encoder::{Encoded, Encoder, Plan, Request};
use crate::failure::{Done, Failure, Result};
use crate::output::Sink;

#[derive(Deserialize)]
#[serde(tag = "cmd", rename_all = "lowercase")]
enum Command {
    /// Reads the texts of a JSON lines file.
    Corpus {
        path: PathBuf,
    },
    /// Embeds them in one call, which plans its own batches, or with `sort` false in calls of `batch` texts in their order;
    /// `out` takes the vectors, little-endian f32 one after the other.
    Run {
        out: Option<PathBuf>,
        batch: Option<usize>,
        sort: Option<bool>,
    },
    Quit,
}

pub fn run(folder: &Path, threads: usize, precision: Precision) -> Result<Done> {
    kin_infer::init_threads(threads);
    let encoder = Plan::new(folder, None)?.load(create_compute_for(precision)?, precision)?;
    encode(&encoder, &["fn main() {}".to_string()])?;
    say(&json!({"event": "ready", "dim": encoder.dimension()}))?;
    let mut corpus = Vec::new();
    for line in stdin().lock().lines() {
        let line = line.map_err(|e| Failure::Failed(format!("stdin: {e}")))?;
        let command = serde_json::from_str(&line).map_err(|e| Failure::Failed(format!("stdin: {line}: {e}")))?;
        match command {
            Command::Corpus { path } => {
                corpus = texts(&path)?;
                say(&json!({"event": "corpus", "texts": corpus.len()}))?;
            }
            Command::Run { out, batch, sort } => {
                let batch = batch.filter(|_| sort == Some(false)).unwrap_or(corpus.len()).max(1);
                let (mut vectors, mut tokens) = (Vec::with_capacity(corpus.len()), 0);
                let start = Instant::now();
                for texts in corpus.chunks(batch) {
                    let (of_call, count) = encode(&encoder, texts)?;
                    vectors.extend(of_call);
                    tokens += count;
                }
                let seconds = start.elapsed().as_secs_f64();
                if let Some(out) = out {
                    let bytes: Vec<u8> = vectors.iter().flatten().flat_map(|v| v.to_le_bytes()).collect();
                    std::fs::write(&out, bytes).map_err(|e| Failure::io(&out, &e))?;
                }
                let texts = corpus.len();
                say(&json!({"event": "done", "seconds": seconds, "texts": texts, "tokens": tokens}))?;
            }
            Command::Quit => break,
        }
    }
    Ok(Done::Whole)
}

/// The vectors of texts and the number of their tokens.
fn encode(encoder: &Encoder, texts: &[String]) -> Result<(Vec<Vec<f32>>, usize)> {
    let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    let (mut vectors, mut tokens) = (Vec::with_capacity(texts.len()), 0);
    for row in encoder.encode(&texts, &Request::default())? {
        let row = row?;
        tokens += row.tokens;
        match row.value {
            Encoded::Vector(vector) => vectors.push(vector),
            _ => return Err(Failure::Failed("--serve: the model makes no vector of a text".into())),
        }
    }
    Ok((vectors, tokens))
}

/// One line on stdout, at once.
fn say(value: &serde_json::Value) -> Result<()> {
    let mut out = Sink::stdout();
    out.json(value)?;
    out.commit()
}
