//! `forward`: raw outputs for given token ids.

use std::borrow::Cow;
use std::path::PathBuf;

use kin_infer::Sequence;
use safetensors::{Dtype, View};
use serde::Deserialize;

use crate::common::{Compute, Model, tell};
use crate::failure::{Done, Failure, Result, item_detail};
use crate::output::PendingFile;

#[derive(clap::Args)]
#[command(after_help = "\
The tokens file: {\"sequences\": [[101, 7592, 102], ...]}, and where the model tells segments apart
\"type_ids\": [[0, 0, 0], ...]. The output holds float32 tensors, by the index of the sequence: hidden.<i> [tokens,
hidden size], the last layer's token vectors; for classifiers labels.<i> [labels], the raw scores. A sequence that fails
is reported on stderr and left out; the exit code is then 1.

Example:
  kin-infer forward --model M --tokens ids.json --output out.safetensors")]
pub struct Args {
    #[command(flatten)]
    model: Model,
    /// JSON file with the token ids, special tokens included: nothing is added to them
    #[arg(long, value_name = "FILE")]
    tokens: PathBuf,
    /// Where the outputs are written. The file is FILE.partial until it is whole
    #[arg(long, value_name = "FILE")]
    output: PathBuf,
    #[command(flatten)]
    compute: Compute,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Tokens {
    sequences: Vec<Vec<u32>>,
    type_ids: Option<Vec<Vec<u32>>>,
}

struct Floats {
    shape: Vec<usize>,
    values: Vec<f32>,
}

impl View for Floats {
    fn dtype(&self) -> Dtype {
        Dtype::F32
    }
    fn shape(&self) -> &[usize] {
        &self.shape
    }
    fn data(&self) -> Cow<'_, [u8]> {
        self.values.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>().into()
    }
    fn data_len(&self) -> usize {
        self.values.len() * 4
    }
}

pub fn run(args: &Args) -> Result<Done> {
    let sequences = read_tokens(args)?;
    let pending = PendingFile::new(&args.output)?;
    let model = args.compute.load_transformer(&args.model)?;
    let mut tensors = Vec::new();
    let mut failed = 0;
    for (i, encoded) in model.encode(&sequences).into_iter().enumerate() {
        match encoded {
            Ok(encoded) => {
                let shape = vec![sequences[i].ids.len(), model.spec().hidden_size];
                tensors.push((format!("hidden.{i}"), Floats { shape, values: encoded.hidden }));
                if model.labels() > 0 {
                    let shape = vec![model.labels()];
                    tensors.push((format!("labels.{i}"), Floats { shape, values: encoded.labels }));
                }
            }
            Err(e) => {
                failed += 1;
                tell(&format!("error: sequence {i}: {}", item_detail(&e)));
            }
        }
    }
    safetensors::serialize_to_file(tensors, None, pending.partial())
        .map_err(|e| Failure::Failed(format!("{}: {e}", pending.partial().display())))?;
    pending.commit()?;
    let tokens: usize = sequences.iter().map(|s| s.ids.len()).sum();
    args.compute.note(&format!("{} sequences of {tokens} tokens in all, {failed} failed", sequences.len()));
    Ok(Done::with_failures(failed))
}

fn read_tokens(args: &Args) -> Result<Vec<Sequence>> {
    let text = std::fs::read_to_string(&args.tokens).map_err(|e| Failure::io(&args.tokens, &e))?;
    let at = |why: String| Failure::Failed(format!("{}: {why}", args.tokens.display()));
    let tokens: Tokens = serde_json::from_str(&text).map_err(|e| at(e.to_string()))?;
    let type_ids = tokens.type_ids.unwrap_or_else(|| vec![Vec::new(); tokens.sequences.len()]);
    if type_ids.len() != tokens.sequences.len() {
        return Err(at(format!("{} `sequences` but {} `type_ids`", tokens.sequences.len(), type_ids.len())));
    }
    let sequence = |(i, (ids, type_ids)): (usize, (Vec<u32>, Vec<u32>))| {
        if !type_ids.is_empty() && type_ids.len() != ids.len() {
            return Err(at(format!("sequence {i}: {} token ids but {} `type_ids`", ids.len(), type_ids.len())));
        }
        Ok(Sequence { ids, type_ids, positions: Vec::new() })
    };
    tokens.sequences.into_iter().zip(type_ids).enumerate().map(sequence).collect()
}
