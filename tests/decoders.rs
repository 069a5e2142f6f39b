//! Every decoder fixture against the reference implementation in float64, and prefill against single steps, bit by bit.

mod common;

use common::{Reference, assert_close, decoders, fixture};
use kin_infer::{BertConfig, BertModel, Sequence};

/// Largest error allowed, relative to the largest reference value of a tensor.
const BOUND: f64 = 2e-5;

fn load(name: &str) -> BertModel {
    let folder = fixture(name);
    let config = BertConfig::from_folder(&folder).unwrap_or_else(|e| panic!("{name}: {e}"));
    BertModel::load(&folder, config).unwrap_or_else(|e| panic!("{name}: {e}"))
}

/// The names whose check fails; each says why.
fn failures(names: Vec<String>, check: impl Fn(&str) + std::panic::RefUnwindSafe) -> Vec<String> {
    let failed = |name: &String| std::panic::catch_unwind(|| check(name)).is_err();
    names.into_iter().filter(failed).collect()
}

fn inputs(reference: &Reference) -> Vec<Sequence> {
    (0..).map_while(|i| reference.ids(&format!("input.{i}.ids")).map(Sequence::new)).collect()
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|v| v.to_bits()).collect()
}

/// Index of the largest value, the first of equal ones.
fn largest(scores: &[f32]) -> u32 {
    let mut best = 0;
    for (i, score) in scores.iter().enumerate() {
        if *score > scores[best] {
            best = i;
        }
    }
    best as u32
}

#[test]
fn every_fixture_agrees_with_the_reference() {
    let names = decoders();
    assert!(names.len() >= 60, "fixtures are missing: {names:?}");
    let failed = failures(names, |name| {
        let (model, reference) = (load(name), Reference::open(name));
        let inputs = inputs(&reference);
        let expected = reference.names().iter().filter(|n| n.contains(".layer.") || n.contains(".embeddings")).count();
        let mut compared = 0;
        for (i, sequence) in inputs.iter().enumerate() {
            model
                .observe(sequence, &mut |stage, buffer| {
                    if let Some(expected) = reference.values(&format!("seq.{i}.{stage}")) {
                        let mut found = vec![0.0; buffer.len()];
                        model.compute().read(buffer, &mut found)?;
                        assert_close(&format!("{name}: sequence {i}, {stage}"), &found, &expected, BOUND);
                        compared += 1;
                    }
                    Ok(())
                })
                .unwrap();
        }
        assert_eq!(compared, expected, "{name}: intermediates compared");
        for (i, encoded) in model.encode(&inputs).into_iter().enumerate() {
            let expected = reference.values(&format!("seq.{i}.hidden")).unwrap();
            assert_close(&format!("{name}: sequence {i}, hidden"), &encoded.unwrap().hidden, &expected, BOUND);
        }
        if reference.names().contains(&"seq.0.logits".to_string()) {
            for (i, scores) in model.token_scores(&inputs).into_iter().enumerate() {
                let expected = reference.values(&format!("seq.{i}.logits")).unwrap();
                assert_close(&format!("{name}: sequence {i}, logits"), &scores.unwrap(), &expected, BOUND);
            }
        }
    });
    assert!(failed.is_empty(), "{failed:?}");
}

/// Greedy continuations: the reference's tokens, and its logits at every step.
#[test]
fn greedy_continuations_agree_with_the_reference() {
    let mut compared = 0;
    for name in decoders() {
        let reference = Reference::open(&name);
        if !reference.names().contains(&"greedy.0.prompt".to_string()) {
            continue;
        }
        let model = load(&name);
        for i in 0.. {
            let Some(mut ids) = reference.ids(&format!("greedy.{i}.prompt")) else { break };
            // Where a growing length changes the rotation, the reference that keeps nothing is the one to agree with.
            let anew = format!("greedy.{i}.recomputed_");
            let kind = if reference.ids(&format!("{anew}tokens")).is_some() { anew } else { format!("greedy.{i}.") };
            let tokens = reference.ids(&format!("{kind}tokens")).unwrap();
            let logits = reference.values(&format!("{kind}logits")).unwrap();
            let mut cache = model.kv_cache().unwrap();
            let mut scores = model.prefill(&mut cache, &ids).unwrap();
            for (step, token) in tokens.iter().enumerate() {
                let expected = &logits[step * scores.len()..][..scores.len()];
                assert_close(&format!("{name}: prompt {i}, step {step}"), &scores, expected, BOUND);
                assert_eq!(largest(&scores), *token, "{name}: prompt {i}, step {step}");
                ids.push(*token);
                scores = model.extend(&mut cache, &[*token]).unwrap();
            }
            compared += 1;
        }
    }
    assert!(compared >= 100, "only {compared} continuations");
}

/// A cold prefill of n tokens gives the bits of a prefill of n - k and k single steps, for every k; a batch gives each
/// sequence the bits it gets alone.
#[test]
fn prefill_and_steps_have_the_same_bits() {
    let failed = failures(decoders(), |name| {
        let (model, reference) = (load(name), Reference::open(name));
        if model.spec().head == kin_infer::arch::HeadSpec::None || !model.spec().attention.causal {
            return;
        }
        let ids: Vec<u32> = inputs(&reference).into_iter().map(|s| s.ids).max_by_key(Vec::len).unwrap();
        let ids = &ids[..ids.len().min(24)];
        let cold: Vec<Vec<u32>> =
            (1..=ids.len()).map(|n| bits(&model.prefill(&mut model.kv_cache().unwrap(), &ids[..n]).unwrap())).collect();
        let whole = model.token_scores(&[Sequence::new(ids.to_vec())]).pop().unwrap().unwrap();
        let vocab = model.spec().embedding.vocab_size;
        for start in 1..ids.len() {
            let mut cache = model.kv_cache().unwrap();
            assert_eq!(bits(&model.prefill(&mut cache, &ids[..start]).unwrap()), cold[start - 1], "{name}");
            for n in start..ids.len() {
                let found = model.extend(&mut cache, &ids[n..=n]).unwrap();
                assert_eq!(bits(&found), cold[n], "{name}: {start} tokens, then single ones up to {}", n + 1);
            }
        }
        assert_eq!(bits(&whole[(ids.len() - 1) * vocab..]), cold[ids.len() - 1], "{name}: without a cache");
        let mut caches: Vec<_> = (0..4).map(|_| model.kv_cache().unwrap()).collect();
        let cuts = [3, ids.len(), 1, 7.min(ids.len())];
        let mut items: Vec<_> = caches.iter_mut().zip(cuts).map(|(c, n)| (c, &ids[..n])).collect();
        for (scores, n) in model.extend_all(&mut items).into_iter().zip(cuts) {
            assert_eq!(bits(&scores.unwrap()), cold[n - 1], "{name}: {n} tokens in a batch");
        }
        let mut items: Vec<_> = caches.iter_mut().zip(cuts).map(|(c, n)| (c, &ids[n % ids.len()..][..1])).collect();
        let stepped: Vec<_> = model.extend_all(&mut items).into_iter().map(Result::unwrap).collect();
        for ((scores, cache), n) in stepped.iter().zip(&caches).zip(cuts) {
            let alone = model.prefill(&mut model.kv_cache().unwrap(), cache.ids()).unwrap();
            assert_eq!(bits(scores), bits(&alone), "{name}: one more token after {n} in a batch");
        }
    });
    assert!(failed.is_empty(), "{failed:?}");
}
