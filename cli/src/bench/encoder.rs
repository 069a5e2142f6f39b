//! Rows of an encoder: texts to vectors, or sequences of given lengths to token vectors.

use std::path::Path;
use std::sync::Arc;

use kin_infer::arch::HeadChoice;
use kin_infer::gpu::Profiled;
use kin_infer::modules::ModelFolder;
use kin_infer::{BertConfig, BertModel, LoadOptions, Sequence};

use super::Args;
use super::machine::Limit;
use super::report::{Done, Row};
use crate::encoder::{Encoder, Plan, Request};
use crate::failure::{Failure, Result};
use crate::input::{Amount, InputArgs, InputFormat, Pieces, Records};

/// Tokens of a row of sequences, at least.
const TOKENS: usize = 1024;

pub fn rows(args: &Args, folder: &Path, compute: &Arc<Profiled>) -> Result<Vec<Row>> {
    let Some(input) = &args.input else { return of_lengths(args, folder, compute) };
    let texts = texts(input)?;
    let encoder = Plan::new(folder, None)?.load(compute.clone(), args.precision.get())?;
    Ok(vec![Row {
        name: format!("{} texts of {}", texts.len(), input.display()),
        limit: Limit::Flops,
        run: Box::new(move || embed(&encoder, &texts)),
    }])
}

/// The texts of a file; the first that cannot be read fails.
pub fn texts(input: &Path) -> Result<Vec<String>> {
    let args = InputArgs { input: Some(input.to_path_buf()), input_format: InputFormat::Auto };
    let mut items = Pieces::new(Records::open(&[], &args, &[])?, None);
    let mut texts = Vec::new();
    loop {
        let window = items.window(Amount::texts(512), str::len)?;
        if window.is_empty() {
            break;
        }
        for item in window {
            texts.push(item.map_err(|bad| Failure::Failed(bad.0))?.text);
        }
    }
    if texts.is_empty() {
        return Err(Failure::Failed(format!("{}: no texts", input.display())));
    }
    Ok(texts)
}

fn embed(encoder: &Encoder, texts: &[String]) -> Result<Done> {
    let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    let mut tokens = 0;
    for row in encoder.encode(&texts, &Request::default())? {
        tokens += row?.tokens;
    }
    Ok(Done { texts: texts.len(), tokens })
}

fn of_lengths(args: &Args, folder: &Path, compute: &Arc<Profiled>) -> Result<Vec<Row>> {
    let folder = ModelFolder::read(folder)?.transformer_dir;
    let config = BertConfig::from_folder(&folder)?;
    let options = LoadOptions { head: HeadChoice::Vectors, precision: args.precision.get(), ..LoadOptions::default() };
    let model = Arc::new(BertModel::load_with_options(&folder, config, compute.clone(), options)?);
    let vocabulary = model.spec().embedding.vocab_size as u32;
    let row = |&length: &u32| {
        let length = length as usize;
        let sequence = |i: usize| Sequence::new((0..length).map(|t| made_up(i * length + t, vocabulary)).collect());
        let sequences: Vec<Sequence> = (0..TOKENS.div_ceil(length)).map(sequence).collect();
        let model = model.clone();
        Row {
            name: format!("{} sequences of {length} tokens", sequences.len()),
            limit: Limit::Flops,
            run: Box::new(move || {
                model.encode(&sequences).into_iter().collect::<kin_infer::Result<Vec<_>>>()?;
                Ok(Done { texts: sequences.len(), tokens: sequences.len() * length })
            }),
        }
    };
    Ok(args.lengths.iter().map(row).collect())
}

/// A token id that no model treats in its own way: past the first thousand, where special tokens lie.
pub fn made_up(i: usize, vocabulary: u32) -> u32 {
    let first = 1000.min(vocabulary / 2);
    first + (i as u32).wrapping_mul(2_654_435_761) % (vocabulary - first).max(1)
}
