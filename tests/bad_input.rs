//! What a user gets for input and files that are wrong: a typed error that names the place, never a panic.

mod common;
#[path = "bad_input/families.rs"]
mod families;
#[path = "bad_input/folder.rs"]
mod folder;
#[path = "bad_input/keys.rs"]
mod keys;
#[path = "bad_input/sequences.rs"]
mod sequences;
#[path = "bad_input/sizes.rs"]
mod sizes;

use std::path::Path;
use std::sync::Arc;

use common::fixture;
use folder::Copy;
use kin_infer::cpu::CpuCompute;
use kin_infer::{BertConfig, BertModel, Embedder, InferError, LoadOptions, Precision, Reranker, Sequence};
use serde_json::{Value, json};

fn base() -> BertModel {
    let folder = fixture("bert-base");
    BertModel::load(&folder, BertConfig::from_folder(&folder).unwrap()).unwrap()
}

#[test]
fn a_checkpoint_that_does_not_fit_its_config_names_the_tensor() {
    // One layer more than there is, one less, another vocabulary, a head that is not there.
    let cases = [
        ("num_hidden_layers", json!(3), "encoder.layer.2.attention.self.query.weight", "no such tensor"),
        ("num_hidden_layers", json!(1), "encoder.layer.1.", "nothing in config.json asks for"),
        ("vocab_size", json!(77), "embeddings.word_embeddings.weight", "shape [101, 32]"),
        ("architectures", json!(["BertForSequenceClassification"]), "classifier.weight", "no such tensor"),
    ];
    for (key, value, tensor, found) in cases {
        let copy = Copy::new("bert-base");
        copy.edit_config(key, value.clone());
        let error = copy.load().err().unwrap_or_else(|| panic!("{key} = {value} loads"));
        assert!(matches!(error, InferError::TensorError { .. }), "{error:?}");
        let message = error.to_string();
        assert!(message.contains(tensor) && message.contains(found), "{key} = {value}: {message}");
    }
}

/// Replaces the first value of a tensor in a checkpoint.
fn poison(folder: &Path, tensor: &str, value: f32) {
    let file = folder.join("model.safetensors");
    let mut bytes = std::fs::read(&file).unwrap();
    let header = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let json: Value = serde_json::from_slice(&bytes[8..8 + header]).unwrap();
    let start = 8 + header + json[tensor]["data_offsets"][0].as_u64().unwrap() as usize;
    bytes[start..start + 4].copy_from_slice(&value.to_le_bytes());
    std::fs::write(&file, bytes).unwrap();
}

#[test]
fn a_weight_that_is_not_finite_is_refused_at_load() {
    let tensors = [
        "encoder.layer.1.intermediate.dense.weight",
        "encoder.layer.0.attention.self.key.bias",
        "encoder.layer.0.output.LayerNorm.weight",
    ];
    for (i, tensor) in tensors.into_iter().enumerate() {
        let copy = Copy::new("bert-base");
        poison(&copy.0, tensor, if i == 1 { f32::INFINITY } else { f32::NAN });
        let message = copy.load().err().unwrap().to_string();
        assert!(message.contains(tensor) && message.contains("NaN or an infinity"), "{message}");
    }
}

/// A row of an embedding table is looked at when it is used: the error names the item and the stage, and the other
/// items of the call keep their bits.
#[test]
fn a_non_finite_result_names_item_and_stage_and_spares_the_others() {
    let copy = Copy::new("bert-base");
    poison(&copy.0, "embeddings.word_embeddings.weight", f32::NAN); // token 0
    let sequences: Vec<_> = [vec![5, 6], vec![7, 0, 8], vec![9]].into_iter().map(Sequence::new).collect();
    for precision in [Precision::Exact, Precision::Int8] {
        let model = load_as(&copy.0, precision);
        let results = model.encode(&sequences);
        let clean = load_as(&fixture("bert-base"), precision).encode(&sequences);
        assert_eq!(results[0].as_ref().unwrap(), clean[0].as_ref().unwrap());
        assert_eq!(results[2].as_ref().unwrap(), clean[2].as_ref().unwrap());
        match &results[1] {
            Err(InferError::NonFiniteOutput { item: 1, stage }) => assert_eq!(stage, "embeddings"),
            other => panic!("{precision}: {other:?}"),
        }
        let ids = [vec![5, 6], vec![7, 0, 8]];
        let error = model.forward(&ids, &[vec![1; 2], vec![1; 3]]).unwrap_err();
        assert!(matches!(error, InferError::NonFiniteOutput { item: 1, .. }), "{error:?}");
    }
}

fn load_as(folder: &Path, precision: Precision) -> BertModel {
    let (config, compute) = (BertConfig::from_folder(folder).unwrap(), Arc::new(CpuCompute::new().unwrap()));
    BertModel::load_with_options(folder, config, compute, LoadOptions { precision, ..LoadOptions::default() }).unwrap()
}

/// Weights that are finite but overflow f32 inside the model: the layer is named.
#[test]
fn an_overflow_names_its_layer() {
    let copy = Copy::new("bert-base");
    poison(&copy.0, "encoder.layer.1.output.dense.bias", 3e38);
    poison(&copy.0, "encoder.layer.1.output.LayerNorm.weight", 3e38);
    for precision in [Precision::Exact, Precision::Int8] {
        match load_as(&copy.0, precision).encode(&[Sequence::new(vec![1, 2, 3])]).remove(0) {
            Err(InferError::NonFiniteOutput { item: 0, stage }) => assert_eq!(stage, "layer.1.out"),
            other => panic!("{precision}: {other:?}"),
        }
    }
}

/// What overflows inside a layer overflows in int8 as well, and is not rounded to a number.
#[test]
fn an_overflow_inside_a_layer_shows_in_int8() {
    let copy = Copy::new("bert-base");
    poison(&copy.0, "encoder.layer.0.intermediate.dense.bias", 3e38);
    poison(&copy.0, "encoder.layer.0.output.dense.weight", 1e5);
    match load_as(&copy.0, Precision::Int8).encode(&[Sequence::new(vec![1, 2, 3])]).remove(0) {
        Err(InferError::NonFiniteOutput { item: 0, stage }) => assert_eq!(stage, "layer.0.out"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn ids_masks_and_lengths_are_checked_with_index_and_limit() {
    let model = base();
    let long: Vec<u32> = vec![1; 41];
    type Case<'a> = (Vec<Vec<u32>>, Vec<Vec<u32>>, &'a [&'a str]);
    let cases: [Case; 6] = [
        (vec![vec![1], vec![2, 101]], vec![vec![1], vec![1, 1]], &["input 1", "token id 101 at 1", "below 101"]),
        (vec![vec![1], long.clone()], vec![vec![1], vec![1; 41]], &["input 1", "position 40", "40 positions"]),
        (vec![vec![1, 2]], vec![vec![1]], &["input 0", "2 token ids", "1 mask values"]),
        (vec![vec![1], vec![1, 2]], vec![vec![1], vec![0, 0]], &["input 1", "none of its 2 tokens"]),
        (vec![vec![1]], vec![], &["1 rows of ids", "0 masks"]),
        (vec![vec![]], vec![vec![]], &["input 0", "none of its 0 tokens"]),
    ];
    for (ids, masks, words) in cases {
        let message = model.forward(&ids, &masks).unwrap_err().to_string();
        for word in words {
            assert!(message.contains(word), "`{message}` lacks `{word}`");
        }
    }
    assert!(model.forward(&[], &[]).unwrap().is_empty());
    let wrong_type = Sequence { ids: vec![1, 2], type_ids: vec![0, 2], positions: vec![] };
    let results = model.encode(&[Sequence::new(vec![3]), wrong_type, Sequence::default()]);
    assert!(results[0].is_ok());
    let message = |i: usize| results[i].as_ref().unwrap_err().to_string();
    assert!(message(1).contains("input 1: token type 2 at 1; they are below 2"), "{}", message(1));
    assert!(message(2).contains("input 2: it has no tokens"), "{}", message(2));
    let error = model.forward_cross_encoder_batched(&[vec![1]], &[vec![1]], &[vec![0]]).unwrap_err();
    assert!(error.to_string().contains("no classification head"), "{error}");
}

#[test]
fn texts_of_every_kind_get_a_vector_or_a_typed_error() {
    let embedder = Embedder::load(&fixture("st-tiny")).unwrap();
    let megabyte = "x".repeat(1 << 20);
    let texts = ["", " \t\n ", "\0", "a", "a\0b", &megabyte, "\u{1F600}\u{200D}", "plain words"];
    let results = embedder.embed_each(&texts, &Default::default()).unwrap();
    assert_eq!(results.len(), texts.len());
    for (text, result) in texts.iter().zip(&results) {
        let vector = result.as_ref().unwrap_or_else(|e| panic!("{:.20?}: {e}", text));
        assert!(vector.iter().all(|v| v.is_finite()) && vector.len() == embedder.dimension());
    }
    assert_eq!(results[0].as_ref().unwrap(), results[1].as_ref().unwrap(), "empty and blank texts are the same tokens");
    assert_eq!(embedder.embed(&[texts[7]]).unwrap()[0], *results[7].as_ref().unwrap());
    assert!(embedder.embed(&[]).unwrap().is_empty());
}

#[test]
fn options_the_model_cannot_serve_are_refused() {
    use kin_infer::{EmbedOptions, Prompt};
    let embedder = Embedder::load(&fixture("st-tiny")).unwrap();
    let unknown = EmbedOptions { prompt: Prompt::Named("title".into()), dimensions: None };
    let message = embedder.embed_with(&["a"], &unknown).unwrap_err().to_string();
    assert!(message.contains("`title`") && message.contains("query"), "{message}");
    for dimensions in [0, 25] {
        let options = EmbedOptions { dimensions: Some(dimensions), ..Default::default() };
        let message = embedder.embed_with(&["a"], &options).unwrap_err().to_string();
        assert!(message.contains(&dimensions.to_string()) && message.contains("24"), "{message}");
    }
    let error = Reranker::load(&fixture("st-tiny")).err().unwrap().to_string();
    assert!(error.contains("ForSequenceClassification"), "{error}");
}
