//! MiniLM's vectors from smaller weights and faster arithmetic keep near those of f32: docs/accuracy.md has the figures
//! over more texts.

mod common;
#[path = "accuracy/measure.rs"]
mod measure;

use kin_infer::Embedder;
use measure::{KINDS, agreement, load, snippets};

/// What is demanded of a kind.
struct Demand {
    /// The least mean of the cosines with f32.
    mean: f64,
    /// The least of the cosines.
    smallest: f64,
    /// The least share of the ten nearest texts that f32 finds too.
    overlap: f64,
}

/// By the order of the kinds. Neighbours change places where their cosines differ by less than a kind moves them, so that
/// the overlap goes with one minus the mean cosine: about 1e-6 for f16, where only ties can change, 4e-4 for q8_0, 5e-2 for
/// q4_0, which is as much as neighbours differ, and 1e-3 for int8. Among 48 texts one neighbour is 1/480 of the share.
const DEMANDS: [Demand; KINDS.len()] = [
    Demand { mean: 0.999_99, smallest: 0.999_9, overlap: 0.99 },
    Demand { mean: 0.999_5, smallest: 0.999, overlap: 0.95 },
    Demand { mean: 0.94, smallest: 0.9, overlap: 0.78 },
    Demand { mean: 0.998, smallest: 0.995, overlap: 0.93 },
];

#[test]
fn minilm_stays_near_f32_in_every_kind() {
    let Some(model) = common::minilm("minilm_stays_near_f32_in_every_kind") else { return };
    let scratch = std::env::temp_dir().join(format!("kin-infer-accuracy-test-{}", std::process::id()));
    let texts = snippets(48).unwrap();
    let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    let reference = Embedder::load(&model).unwrap().embed(&texts).unwrap();
    for ((kind, name), Demand { mean, smallest, overlap }) in KINDS.into_iter().zip(DEMANDS) {
        let found = load(kind, &model, &scratch).unwrap().embed(&texts).unwrap();
        assert!(found != reference, "{name}: the same as f32");
        let of = agreement(&reference, &found);
        assert!(of.mean >= mean && of.smallest >= smallest, "{name}: mean {}, smallest {}", of.mean, of.smallest);
        assert!(of.overlap >= overlap, "{name}: {} of the nearest texts", of.overlap);
    }
    std::fs::remove_dir_all(&scratch).unwrap();
}
