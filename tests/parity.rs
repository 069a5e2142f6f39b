//! Every fixture against the reference implementation in float64, intermediate by intermediate.

mod common;

use std::sync::Arc;

use common::{Reference, assert_close, encoders, fixture};
use kin_infer::arch::HeadChoice;
use kin_infer::gpu::create_compute;
use kin_infer::model::SparsePooling;
use kin_infer::{BertConfig, BertModel, Sequence};

/// Largest error allowed, relative to the largest reference value of a tensor.
const BOUND: f64 = 2e-5;

fn load(name: &str) -> BertModel {
    load_with(name, HeadChoice::Configured)
}

fn load_with(name: &str, head: HeadChoice) -> BertModel {
    let folder = fixture(name);
    let config = BertConfig::from_folder(&folder).unwrap_or_else(|e| panic!("{name}: {e}"));
    let compute = create_compute().unwrap();
    BertModel::load_with_head(&folder, config, Arc::clone(&compute), head).unwrap_or_else(|e| panic!("{name}: {e}"))
}

fn sequences(reference: &Reference) -> Vec<Sequence> {
    (0..)
        .map_while(|i| {
            let ids = reference.ids(&format!("input.{i}.ids"))?;
            let type_ids = reference.ids(&format!("input.{i}.types")).unwrap_or_default();
            Some(Sequence { ids, type_ids, positions: Vec::new() })
        })
        .collect()
}

/// Walks the intermediates in the order of computation and fails at the first that diverges.
fn check_intermediates(name: &str, model: &BertModel, reference: &Reference) -> usize {
    let mut compared = 0;
    for (i, sequence) in sequences(reference).iter().enumerate() {
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
    compared
}

/// The names whose check fails, with the reason: all of them are shown, not the first alone.
fn failures(names: Vec<String>, check: impl Fn(&str) + std::panic::RefUnwindSafe) -> Vec<String> {
    let failed = |name: &String| std::panic::catch_unwind(|| check(name)).is_err();
    names.into_iter().filter(failed).collect()
}

#[test]
fn every_fixture_agrees_with_the_reference() {
    let names = encoders();
    assert!(names.len() >= 100, "fixtures are missing: {names:?}");
    let failed = failures(names, |name| {
        let (model, reference) = (load(name), Reference::open(name));
        let expected = reference.names().iter().filter(|n| n.contains(".layer.") || n.contains(".embeddings")).count();
        assert!(expected >= 7 || name.contains("long"), "{name}: only {expected} intermediates in the reference");
        assert_eq!(check_intermediates(name, &model, &reference), expected, "{name}: intermediates compared");
        let inputs = sequences(&reference);
        let (mut found, mut labels) = (Vec::new(), Vec::new());
        for (i, encoded) in model.encode(&inputs).into_iter().enumerate() {
            let encoded = encoded.unwrap_or_else(|e| panic!("{name}: {e}"));
            let expected = reference.values(&format!("seq.{i}.hidden")).unwrap();
            assert_close(&format!("{name}: sequence {i}, hidden"), &encoded.hidden, &expected, BOUND);
            found.extend(encoded.labels);
            labels.extend(reference.values(&format!("seq.{i}.labels")).unwrap_or_default());
        }
        assert_close(&format!("{name}: labels"), &found, &labels, BOUND);
    });
    assert!(failed.is_empty(), "{failed:?}");
}

/// The masked language models: scores of every vocabulary entry, and the sparse vectors made of them.
#[test]
fn masked_language_models_agree_with_the_reference() {
    let mut families = Vec::new();
    for name in encoders() {
        let reference = Reference::open(&name);
        if !reference.names().contains(&"seq.0.splade".to_string()) {
            continue;
        }
        let model = load_with(&name, HeadChoice::MaskedLm);
        let inputs = sequences(&reference);
        let (scores, sparse) = (model.token_scores(&inputs), model.sparse(&inputs, SparsePooling::default()));
        let mut compared = 0;
        for (i, (scores, sparse)) in scores.into_iter().zip(sparse).enumerate() {
            if let Some(expected) = reference.values(&format!("seq.{i}.mlm")) {
                assert_close(&format!("{name}: sequence {i}, scores"), &scores.unwrap(), &expected, BOUND);
                compared += 1;
            }
            let expected = reference.values(&format!("seq.{i}.splade")).unwrap();
            assert_close(&format!("{name}: sequence {i}, sparse"), &sparse.unwrap(), &expected, BOUND);
        }
        assert!(compared > 0, "{name}: no scores were compared");
        families.push(name);
    }
    assert!(families.len() >= 12, "masked language models: {families:?}");
}

/// Padding on either side or in the middle: kept tokens have the reference's values at their own positions.
#[test]
fn masked_rows_agree_with_the_reference() {
    let with_padding = |n: &String| Reference::open(n).names().contains(&"padded.ids".to_string());
    let names: Vec<String> = encoders().into_iter().filter(with_padding).collect();
    assert!(names.len() >= 100, "padded batches are missing: {names:?}");
    let failed = failures(names, |name| {
        let (model, reference) = (load(name), Reference::open(name));
        let (ids, width) = reference.rows("padded.ids");
        let (mask, _) = reference.rows("padded.mask");
        let hidden = reference.values("padded.hidden").unwrap();
        let size = model.spec().hidden_size;
        let rows: Vec<Sequence> =
            ids.iter().zip(&mask).map(|(i, m)| Sequence::from_masked(0, i, m, None).unwrap()).collect();
        for (r, encoded) in model.encode(&rows).into_iter().enumerate() {
            let kept = (0..width).filter(|t| mask[r][*t] != 0);
            let expected: Vec<f64> =
                kept.flat_map(|t| hidden[(r * width + t) * size..][..size].iter().copied()).collect();
            assert_close(&format!("{name}: padded row {r}"), &encoded.unwrap().hidden, &expected, BOUND);
        }
        // The public entry point drops padding too: the bits of the unpadded rows.
        let padded = model.forward(&ids, &mask).unwrap();
        for (r, vector) in padded.iter().enumerate() {
            let alone = model.forward(&ids[r..=r], &mask[r..=r]).unwrap();
            assert_eq!(&alone[0], vector, "{name}: padded row {r} alone");
            let norm: f32 = vector.iter().map(|v| v * v).sum::<f32>().sqrt();
            assert!((norm - 1.0).abs() < 1e-6, "{name}: row {r} has norm {norm}");
        }
    });
    assert!(failed.is_empty(), "{failed:?}");
}

#[test]
fn mean_pooling_of_forward_is_the_mean_of_the_kept_tokens() {
    let (model, reference) = (load("bert-base"), Reference::open("bert-base"));
    let (ids, width) = reference.rows("padded.ids");
    let (mask, _) = reference.rows("padded.mask");
    let hidden = reference.values("padded.hidden").unwrap();
    let size = model.spec().hidden_size;
    for (r, vector) in model.forward_batched(&ids, &mask).unwrap().iter().enumerate() {
        let mut mean = vec![0f64; size];
        for t in (0..width).filter(|t| mask[r][*t] != 0) {
            mean.iter_mut().zip(&hidden[(r * width + t) * size..]).for_each(|(m, x)| *m += x);
        }
        let norm = mean.iter().map(|m| m * m).sum::<f64>().sqrt();
        mean.iter_mut().for_each(|m| *m /= norm);
        assert_close(&format!("forward, row {r}"), vector, &mean, BOUND);
    }
}

#[test]
fn cross_encoder_scores_agree_with_the_reference() {
    for name in ["bert-classifier-1", "bert-classifier-3"] {
        let (model, reference) = (load(name), Reference::open(name));
        let inputs = sequences(&reference);
        let ids: Vec<_> = inputs.iter().map(|s| s.ids.clone()).collect();
        let types: Vec<_> = inputs.iter().map(|s| s.type_ids.clone()).collect();
        let masks: Vec<_> = ids.iter().map(|i| vec![1; i.len()]).collect();
        let scores = model.forward_cross_encoder_batched(&ids, &masks, &types).unwrap();
        let expected: Vec<f64> =
            (0..ids.len()).flat_map(|i| reference.values(&format!("seq.{i}.labels")).unwrap()).collect();
        assert_close(name, &scores, &expected, BOUND);
    }
}
