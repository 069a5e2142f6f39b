//! `forward`: raw outputs for given token ids.

use std::path::PathBuf;

use kin_infer::arch::HeadSpec;
use kin_infer::{BertModel, Encoded, Sequence};
use serde::Deserialize;

use crate::common::{Compute, Head, Model, PrecisionArg};
use crate::failure::{Done, Failure, Result, item_detail};
use crate::output::real_path;
use crate::talk::error;
use crate::tensors::TensorFile;

#[derive(clap::Args)]
#[command(after_help = "\
The tokens file: {\"sequences\": [[101, 7592, 102], ...]}, and where the model tells segments apart
\"type_ids\": [[0, 0, 0], ...]. The output holds float32 tensors, by the index of the sequence: hidden.<i> [tokens,
hidden size], the last layer's token vectors; for classifiers labels.<i> [labels], the raw scores; with --head masked-lm
or causal-lm logits.<i> [tokens, vocabulary], the raw scores of every vocabulary entry. A sequence that fails is reported
on stderr and left out; the exit code is then 1. Outputs are written as they come: a file may be larger than memory.

Examples:
  kin-infer forward --model M --tokens ids.json --output out.safetensors
  kin-infer forward --model M --head masked-lm --tokens ids.json --output out.safetensors")]
pub struct Args {
    #[command(flatten)]
    model: Model,
    /// JSON file with the token ids, special tokens included: nothing is added to them
    #[arg(long, value_name = "FILE")]
    tokens: PathBuf,
    /// Where the outputs are written. The file is FILE.partial until it is whole
    #[arg(long, value_name = "FILE")]
    output: PathBuf,
    /// Which head the model is loaded with, besides the classifier that config.json names. `auto` loads no other
    #[arg(long, value_enum, default_value_t = Head::Auto)]
    head: Head,
    #[command(flatten)]
    precision: PrecisionArg,
    #[command(flatten)]
    compute: Compute,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Tokens {
    sequences: Vec<Vec<u32>>,
    type_ids: Option<Vec<Vec<u32>>>,
}

/// Values of outputs that are held at once, and tokens below which a batch is not filled.
const HELD_VALUES: usize = 1 << 25;
const LEAST_TOKENS: usize = 1024;

pub fn run(args: &Args) -> Result<Done> {
    if real_path(&args.tokens) == real_path(&args.output) {
        return Err(Failure::Usage("--output is the --tokens file, which would be written over".to_string()));
    }
    let sequences = read_tokens(args)?;
    let model = args.compute.load_transformer(&args.model, args.head, &args.precision)?;
    let outputs = Outputs::of(&model);
    let shapes: Vec<_> = sequences.iter().map(|s| outputs.shapes(s.ids.len())).collect();
    let named =
        shapes.iter().enumerate().flat_map(|(i, shapes)| shapes.iter().map(move |(n, s)| (format!("{n}.{i}"), &s[..])));
    let mut file = TensorFile::create(&args.output, named)?;
    let (mut first, mut failed) = (0, 0);
    while first < sequences.len() {
        let batch = &sequences[first..first + outputs.batch(&sequences[first..])];
        for (i, tensors) in (first..).zip(outputs.run(&model, batch)) {
            match tensors {
                Ok(tensors) => {
                    for ((name, shape), values) in shapes[i].iter().zip(tensors) {
                        file.write(&format!("{name}.{i}"), shape, &values)?;
                    }
                }
                Err(e) => {
                    failed += 1;
                    error(&format!("sequence {i}: {}", item_detail(&e)));
                }
            }
        }
        first += batch.len();
    }
    file.commit()?;
    let tokens: usize = sequences.iter().map(|s| s.ids.len()).sum();
    args.compute.note(&format!("{} sequences of {tokens} tokens in all, {failed} failed", sequences.len()));
    Ok(Done::with_failures(failed))
}

/// What a model gives for each sequence.
struct Outputs {
    hidden: usize,
    labels: usize,
    /// Vocabulary entries that the head scores, 0 without one.
    vocabulary: usize,
}

impl Outputs {
    fn of(model: &BertModel) -> Self {
        let spec = model.spec();
        let scores = matches!(spec.head, HeadSpec::MaskedLm { .. } | HeadSpec::CausalLm { .. });
        let vocabulary = if scores { spec.embedding.vocab_size } else { 0 };
        Self { hidden: spec.hidden_size, labels: model.labels(), vocabulary }
    }

    /// Name and shape of each tensor of a sequence.
    fn shapes(&self, tokens: usize) -> Vec<(&'static str, Vec<usize>)> {
        let mut shapes = vec![("hidden", vec![tokens, self.hidden])];
        if self.labels > 0 {
            shapes.push(("labels", vec![self.labels]));
        }
        if self.vocabulary > 0 {
            shapes.push(("logits", vec![tokens, self.vocabulary]));
        }
        shapes
    }

    /// How many of the next sequences run together: one at least, and as many as their outputs may be held.
    fn batch(&self, next: &[Sequence]) -> usize {
        let most = (HELD_VALUES / (self.hidden + self.vocabulary)).max(LEAST_TOKENS);
        let ends = next.iter().scan(0, |sum, s| {
            *sum += s.ids.len();
            Some(*sum)
        });
        ends.take_while(|end| *end <= most).count().max(1)
    }

    /// The tensors of each sequence, in the order of [`shapes`](Self::shapes).
    fn run(&self, model: &BertModel, batch: &[Sequence]) -> Vec<kin_infer::Result<Vec<Vec<f32>>>> {
        let encoded = model.encode(batch);
        let mut scores = if self.vocabulary > 0 { model.token_scores(batch) } else { Vec::new() }.into_iter();
        let one = |encoded: kin_infer::Result<Encoded>| {
            let scores = scores.next().transpose()?;
            let Encoded { hidden, labels } = encoded?;
            let labels = if self.labels > 0 { Some(labels) } else { None };
            Ok([Some(hidden), labels, scores].into_iter().flatten().collect())
        };
        encoded.into_iter().map(one).collect()
    }
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
