//! MiniLM's vectors from smaller weights and faster arithmetic keep near those of f32: docs/accuracy.md has the figures
//! over more texts.

mod common;
#[path = "accuracy/measure.rs"]
mod measure;

use kin_infer::Embedder;
use measure::{DEMANDS, Demand, agreement, load, snippets};

#[test]
fn minilm_stays_near_f32_in_every_kind() {
    let Some(model) = common::minilm("minilm_stays_near_f32_in_every_kind") else { return };
    let scratch = std::env::temp_dir().join(format!("kin-infer-accuracy-test-{}", std::process::id()));
    let texts = snippets(48).unwrap();
    let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    let reference = Embedder::load(&model).unwrap().embed(&texts).unwrap();
    for Demand { kind, name, mean, smallest, overlap } in DEMANDS {
        let found = load(kind, &model, &scratch).unwrap().embed(&texts).unwrap();
        assert!(found != reference, "{name}: the same as f32");
        let of = agreement(&reference, &found);
        assert!(of.mean >= mean && of.smallest >= smallest, "{name}: mean {}, smallest {}", of.mean, of.smallest);
        assert!(of.overlap >= overlap, "{name}: {} of the nearest texts", of.overlap);
    }
    std::fs::remove_dir_all(&scratch).unwrap();
}
