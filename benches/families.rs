//! Whole forward passes of every encoder family, one thread: time per floating-point operation, relative to BERT's.
//!
//! `cargo bench --bench families [-- [--rounds N] [--layers N] [words that a row's label must hold]]`. The models have
//! the proportions of their base sizes (768 features, 12 heads), few layers and random weights. Every sample of a family
//! lies between two samples of BERT at the same length, in thread CPU time, and counts relative to their mean.
//! Operations are the multiply-adds of linear layers and attention: those that the mathematics needs, so a window counts
//! the keys it shows. Run by `cargo test --benches`, it loads small models and checks that their vectors are finite.

mod checkpoints;
mod clock;

use std::sync::Arc;

use checkpoints::{Family, Size, Values, families};
use clock::{median, now};
use kin_infer::BertModel;
use kin_infer::arch::{DistanceMap, LayerSpec, ModelSpec, ScorePositions};
use kin_infer::cpu::CpuCompute;

const TOKENS: [usize; 2] = [128, 512];

/// Times per operation that are wanted at most, relative to BERT's.
const BOUND: f64 = 1.25;
const DISENTANGLED_BOUND: f64 = 1.5;

const BASE: Size = Size { hidden: 768, heads: 12, layers: 3, vocab: 1000, tokens: 512 };

/// Query and key pairs of a layer over `tokens` neighbouring tokens.
fn pairs(layer: &LayerSpec, tokens: usize) -> usize {
    let reach = layer.window.map_or(tokens, |w| w as usize);
    (0..tokens).map(|i| tokens.min(i + reach + 1) - i.saturating_sub(reach)).sum()
}

/// Rows of the position tables that `tokens` neighbouring tokens use.
fn rows_in_use(map: &DistanceMap, tokens: usize) -> usize {
    let reach = map.reach.min(tokens - 1);
    (map.rows[map.reach + reach] - map.rows[map.reach - reach]) as usize + 1
}

/// Floating-point operations of a forward pass: two a multiply-add.
fn operations(s: &ModelSpec, tokens: usize) -> f64 {
    let (h, i, a) = (s.hidden_size, s.feed_forward.intermediate_size, &s.attention);
    let (q, kv) = (a.heads * a.head_dim, a.kv_heads * a.head_dim);
    let linear = tokens * (h * (q + 2 * kv) + q * h + h * i * if s.feed_forward.gated { 3 } else { 2 });
    let terms = match &a.positions {
        ScorePositions::Disentangled(d) => {
            let kinds = usize::from(d.content_to_position) + usize::from(d.position_to_content);
            kinds * tokens * rows_in_use(&d.map(), tokens) * q
        }
        _ => 0,
    };
    let layers: usize = s.layers.iter().map(|l| linear + terms + 2 * pairs(l, tokens) * q).sum();
    let projection = if s.embedding.width == h { 0 } else { tokens * s.embedding.width * h };
    let convolution = s.convolution.map_or(0, |c| tokens * c.taps * h * h);
    2.0 * (layers + projection + convolution) as f64
}

/// A family at one length.
struct Row {
    name: &'static str,
    tokens: usize,
    model: usize,
    operations: f64,
    bound: f64,
    /// Seconds, and time per operation relative to BERT's.
    samples: Vec<(f64, f64)>,
}

impl Row {
    fn new(name: &'static str, model: usize, spec: &ModelSpec, tokens: usize) -> Self {
        let disentangled = matches!(spec.attention.positions, ScorePositions::Disentangled(_));
        let bound = if disentangled { DISENTANGLED_BOUND } else { BOUND };
        Self { name, tokens, model, operations: operations(spec, tokens), bound, samples: Vec::new() }
    }

    fn print(&self) {
        let seconds = median(self.samples.iter().map(|s| s.0));
        let relative = median(self.samples.iter().map(|s| s.1));
        let least = self.samples.iter().map(|s| s.1).fold(f64::INFINITY, f64::min);
        let most = self.samples.iter().map(|s| s.1).fold(0.0, f64::max);
        let flag =
            if relative > self.bound { format!(" MISSED: at most {} is wanted", self.bound) } else { String::new() };
        let (gflop, rate) = (self.operations * 1e-9, self.operations / seconds * 1e-9);
        let (name, tokens, ms) = (self.name, self.tokens, seconds * 1e3);
        println!(
            "| {name} | {tokens} | {gflop:.2} | {ms:.1} | {rate:.1} | {relative:.3}{flag} | {least:.3} to {most:.3} |"
        );
    }
}

/// Seconds of one forward pass.
fn pass(model: &BertModel, tokens: usize) -> kin_infer::Result<f64> {
    let vocab = model.spec().embedding.vocab_size as u32;
    let ids: Vec<u32> = (0..tokens as u32).map(|i| 5 + i * 7 % (vocab - 5)).collect();
    let (ids, mask) = ([ids], [vec![1; tokens]]);
    let start = now();
    let vectors = model.forward(&ids, &mask)?;
    let seconds = now() - start;
    let length: f32 = vectors[0].iter().map(|v| v * v).sum();
    assert!((length - 1.0).abs() < 1e-3, "a vector of length {length}");
    Ok(seconds)
}

fn load(families: &[Family]) -> kin_infer::Result<Vec<BertModel>> {
    let values = Values::new(families);
    families.iter().map(|f| f.load(&values, Arc::new(CpuCompute::new()?))).collect()
}

fn bench(rounds: usize, layers: usize, words: &[String]) -> kin_infer::Result<()> {
    let families = families(Size { layers, ..BASE });
    let models = load(&families)?;
    let mut rows = Vec::new();
    for (model, family) in families.iter().enumerate() {
        rows.extend(TOKENS.map(|tokens| Row::new(family.name, model, models[model].spec(), tokens)));
    }
    rows.retain(|r| words.iter().all(|w| format!("{} {} ", r.name, r.tokens).contains(w.as_str())));
    rows.sort_by_key(|r| r.tokens);
    // The first passes map memory and bring the core to its clock.
    for row in &rows {
        pass(&models[row.model], row.tokens)?;
    }
    for _ in 0..rounds {
        for row in &mut rows {
            let before = pass(&models[0], row.tokens)?;
            let seconds = pass(&models[row.model], row.tokens)?;
            let bert = (before + pass(&models[0], row.tokens)?) / 2.0 / operations(models[0].spec(), row.tokens);
            row.samples.push((seconds, seconds / row.operations / bert));
        }
    }
    println!("| family | tokens | GFLOP | ms | GFLOP/s | time per FLOP / BERT's, median | range |\n|-|-|-|-|-|-|-|");
    rows.iter().for_each(Row::print);
    Ok(())
}

/// Small models of every family: that what is written loads, and gives finite vectors.
fn check() -> kin_infer::Result<()> {
    let families = families(Size { hidden: 48, heads: 4, layers: 2, vocab: 50, tokens: 32 });
    for (family, model) in families.iter().zip(load(&families)?) {
        pass(&model, 32)?;
        assert!(operations(model.spec(), 32) > 0.0, "{}", family.name);
    }
    Ok(())
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments: Vec<String> = std::env::args().skip(1).collect();
    let measure = arguments.iter().any(|a| a == "--bench");
    let mut number = |name: &str, default: usize| -> Result<usize, Box<dyn std::error::Error>> {
        let Some(at) = arguments.iter().position(|a| a == name) else { return Ok(default) };
        let value = arguments.get(at + 1).ok_or_else(|| format!("{name} takes a number"))?.parse()?;
        arguments.drain(at..at + 2);
        Ok(value)
    };
    let (rounds, layers) = (number("--rounds", 9)?, number("--layers", BASE.layers)?);
    let words: Vec<String> = arguments.into_iter().filter(|a| !a.starts_with("--")).collect();
    rayon::ThreadPoolBuilder::new()
        .num_threads(1)
        .build()?
        .install(|| if measure { bench(rounds.max(1), layers.max(1), &words) } else { check() })?;
    Ok(())
}
