//! Models in GGUF files against the same models in safetensors.

use std::fs;
use std::path::Path;

use kin_infer::gpu::{GpuBackend, create_compute};
use kin_infer::modules::{ModelFolder, Module, PoolingMode, Task};
use kin_infer::quantize::{QuantizeOptions, quantize_folder};
use kin_infer::weights::{Checkpoint, Dtype, GgufFile};
use kin_infer::{BertConfig, BertModel, LoadOptions, Sequence, WeightForm};

use super::writer::{Changed, Gguf};
use super::{Folder, fixture};

pub fn load(path: &Path) -> BertModel {
    BertModel::load(path, BertConfig::from_folder(path).unwrap_or_else(|e| panic!("{e}")))
        .unwrap_or_else(|e| panic!("{e}"))
}

pub fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|v| v.to_bits()).collect()
}

/// Token vectors, labels and, of decoders, scores of the next token.
pub fn outputs(model: &BertModel) -> Vec<Vec<f32>> {
    let ids = |n: u32| (0..n).map(|i| 5 + i * 7 % 33).collect();
    let sequences: Vec<Sequence> =
        [1, 9, 31].map(|n| Sequence { ids: ids(n), type_ids: Vec::new(), positions: Vec::new() }).to_vec();
    let mut all = Vec::new();
    for encoded in model.encode(&sequences) {
        let encoded = encoded.unwrap();
        all.extend([encoded.hidden, encoded.labels]);
    }
    if matches!(model.spec().head, kin_infer::arch::HeadSpec::CausalLm { .. }) {
        all.extend(model.token_scores(&sequences).into_iter().map(Result::unwrap));
    }
    all
}

pub fn assert_same(gguf: &Path, reference: &Path) {
    let (found, expected) = (load(gguf), load(reference));
    // A RoBERTa is a BERT in its file, whose positions begin at row 0.
    let roberta = reference.ends_with("xlm-roberta-classifier-1");
    let words = |model: &BertModel| {
        let mut words = model.spec().words();
        words.retain(|(name, _)| !roberta || !["family", "positions", "longest sequence"].contains(name));
        words
    };
    assert_eq!(words(&found), words(&expected), "{}", gguf.display());
    let (found, expected) = (outputs(&found), outputs(&expected));
    assert_eq!(found.len(), expected.len());
    for (i, (found, expected)) in found.iter().zip(&expected).enumerate() {
        assert_eq!(bits(found), bits(expected), "{} output {i}", gguf.display());
    }
}

#[test]
fn every_family_gives_the_bits_of_its_checkpoint() {
    for name in [
        "llama-gqa",
        "llama-linear",
        "llama-yarn",
        "mistral-window",
        "qwen2-base",
        "qwen3-base",
        "gemma-base",
        "gemma2-base",
        "gemma3-base",
        "phi-base",
        "phi3-base",
        "phi3-longrope",
        "gpt2-base",
        "bert-base",
        "bert-f16",
        "bert-bf16",
        "xlm-roberta-classifier-1",
        "nomic-base",
        "t5-base",
        "t5-gated-gelu",
    ] {
        assert_same(&fixture(&format!("gguf-{name}.gguf")), &fixture(name));
    }
    assert_same(&fixture("gguf-bert-base-fused.gguf"), &fixture("bert-base"));
}

#[test]
fn quantised_files_give_the_bits_of_quantised_folders() {
    let folder = Folder::new();
    for (name, kind, dtype) in [
        ("llama-linear", "q8_0", Dtype::Q8_0),
        ("llama-linear", "q4_0", Dtype::Q4_0),
        ("bert-base", "q8_0", Dtype::Q8_0),
        ("gpt2-base", "q4_0", Dtype::Q4_0),
        ("phi3-base", "q8_0", Dtype::Q8_0),
    ] {
        let copy = folder.0.join(format!("{name}-{kind}"));
        let options = QuantizeOptions { dtype, embeddings: false };
        quantize_folder(&fixture(name), &copy, &options, &mut |_| {}).unwrap();
        assert_same(&fixture(&format!("gguf-{name}-{kind}.gguf")), &copy);
    }
}

#[test]
fn blocks_that_are_not_computed_with_are_widened_and_named() {
    let folder = fixture("gguf-k-llama");
    assert_same(&folder.join("model.gguf"), &folder);
    let model = load(&folder.join("model.gguf"));
    let widened = ["blk.0.attn_k", "blk.0.attn_q", "blk.0.attn_v", "blk.0.ffn_gate", "blk.0.ffn_up", "output"];
    assert_eq!(model.report().widened, widened.map(|name| format!("{name}.weight")));
    assert!(load(&fixture("gguf-bert-base-q8_0.gguf")).report().widened.is_empty());
}

/// Asked for in f32, quantised weights are computed with as their values would be, and the CPU keeps them in blocks.
#[test]
fn weights_in_blocks_are_widened_where_f32_is_asked_for() {
    let folder = Folder::new();
    let options = LoadOptions { weights: WeightForm::F32, ..LoadOptions::default() };
    for name in ["llama-linear-q8_0", "gpt2-base-q4_0", "bert-base-q8_0"] {
        let path = fixture(&format!("gguf-{name}.gguf"));
        let plain = load(&folder.write("m.gguf", &Changed::of(&path).bytes()));
        let config = BertConfig::from_folder(&path).unwrap();
        let widened = BertModel::load_with_options(&path, config, create_compute().unwrap(), options).unwrap();
        let checkpoint = Checkpoint::open(&path).unwrap();
        let in_blocks = |name: &&str| checkpoint.get(name).unwrap().dtype().unwrap().is_block();
        let blocks: Vec<&str> = checkpoint.names().filter(in_blocks).collect();
        assert!(blocks.len() >= 8 && widened.report().widened == blocks, "{name}: {blocks:?}");
        let stored = load(&path);
        let in_memory = if widened.compute().backend() == GpuBackend::Cpu { &stored } else { &plain };
        assert_eq!(widened.weight_bytes(), in_memory.weight_bytes(), "{name}");
        let [found, expected, stored] = [&widened, &plain, &stored].map(outputs);
        assert_ne!(found, stored, "{name}");
        for (found, expected) in found.iter().zip(&expected) {
            assert_eq!(bits(found), bits(expected), "{name}");
        }
    }
}

#[test]
fn llama_3s_factors_are_near_its_formula() {
    let [found, expected] = ["gguf-llama-llama3.gguf", "llama-llama3"].map(|name| outputs(&load(&fixture(name))));
    for (found, expected) in found.iter().zip(&expected) {
        let largest = expected.iter().fold(0f32, |m, v| m.max(v.abs()));
        let error = found.iter().zip(expected).map(|(a, b)| (a - b).abs()).fold(0f32, f32::max);
        assert!(error <= 2e-6 * largest, "{error} of {largest}");
    }
    let words = load(&fixture("gguf-llama-llama3.gguf")).spec().words();
    let positions = words.iter().find(|(name, _)| *name == "positions").unwrap();
    assert_eq!(positions.1, "rotary, 16 features in halves, base 10000, divided by factors of the file");
}

#[test]
fn a_folder_with_one_gguf_file_stands_for_it() {
    let folder = Folder::new();
    let copy = folder.0.join("model.gguf");
    fs::copy(fixture("gguf-bert-base.gguf"), &copy).unwrap();
    assert_eq!(GgufFile::find(&folder.0).unwrap(), Some(copy.clone()));
    assert_same(&folder.0, &fixture("bert-base"));
    assert_eq!(ModelFolder::read(&folder.0).unwrap().transformer_dir, copy);
    assert_eq!(kin_infer::hub::resolve(copy.to_str().unwrap()).unwrap(), copy);
    fs::copy(fixture("gguf-bert-f16.gguf"), folder.0.join("other.GGUF")).unwrap();
    let error = Checkpoint::open(&folder.0).unwrap_err().to_string();
    assert!(error.contains("several GGUF files: model.gguf, other.GGUF"), "{error}");
    // Safetensors in the folder are what counts.
    fs::copy(fixture("bert-base").join("model.safetensors"), folder.0.join("model.safetensors")).unwrap();
    assert_eq!(GgufFile::find(&folder.0).unwrap(), None);
    assert!(Checkpoint::open(&folder.0).unwrap().gguf().is_none());
    let error = kin_infer::hub::resolve(folder.0.join("model.safetensors").to_str().unwrap()).unwrap_err().to_string();
    assert!(error.contains("or a GGUF file"), "{error}");
    let options = QuantizeOptions { dtype: Dtype::Q8_0, embeddings: false };
    let error = quantize_folder(&copy, &folder.0.join("new"), &options, &mut |_| {}).unwrap_err().to_string();
    assert!(error.contains("GGUF"), "{error}");
}

#[test]
fn the_pooling_is_what_the_file_says() {
    let folder = Folder::new();
    let normalised = |mode| {
        let spec = kin_infer::modules::PoolingSpec { modes: vec![mode], include_prompt: true, dimension: None };
        vec![Module::Pooling(spec), Module::Normalize]
    };
    for (kind, modules, task) in [
        (0, Vec::new(), Task::Features),
        (1, normalised(PoolingMode::Mean), Task::Features),
        (2, normalised(PoolingMode::Cls), Task::Features),
        (3, normalised(PoolingMode::LastToken), Task::Features),
        (4, Vec::new(), Task::Classification),
    ] {
        let path = folder.write("m.gguf", &Gguf::new("bert").size("bert.pooling_type", kind).bytes());
        let read = ModelFolder::read(&path).unwrap();
        assert_eq!((&read.modules, read.task, read.assumed_pooling), (&modules, task, false), "{kind}");
    }
    let path = folder.write("m.gguf", &Gguf::new("bert").bytes());
    let read = ModelFolder::read(&path).unwrap();
    assert_eq!((read.modules, read.assumed_pooling), (normalised(PoolingMode::Mean), true));
    let path = folder.write("m.gguf", &Gguf::new("bert").size("bert.pooling_type", 5).bytes());
    assert!(ModelFolder::read(&path).unwrap_err().to_string().contains("`bert.pooling_type` is 5"));
}

/// Keys that ask for mathematics that is not there.
#[test]
fn what_is_not_computed_is_refused_by_its_key() {
    let folder = Folder::new();
    type Change = fn(&mut Gguf) -> &mut Gguf;
    let cases: [(&str, Change, &str); 12] = [
        ("mamba", |f| f, "`general.architecture` is \"mamba\", supported: llama,"),
        ("llama", |f| f.size("llama.expert_count", 8), "`llama.expert_count` is 8, expected none, or 0"),
        ("llama", |f| f.number("llama.logit_scale", 2.0), "`llama.logit_scale` is 2"),
        ("llama", |f| f.size("split.count", 3), "`split.count` is 3"),
        ("llama", |f| f.size("llama.attention.value_length", 5), "expected 2, the features of a key"),
        ("llama", |f| f.pair("llama.attention.causal", super::writer::BOOL, &[0]), "`llama.attention.causal` is false"),
        ("qwen2", |f| f.size("qwen2.attention.sliding_window", 5), "`qwen2.attention.sliding_window` is 5"),
        ("llama", |f| f.pair("llama.rope.scaling.type", 8, &super::writer::text("ntk")), "\"ntk\", expected none"),
        ("llama", |f| f.number("llama.rope.scaling.attn_factor", 1.5), "`llama.rope.scaling.attn_factor` is 1.5"),
        ("bert", |f| f.pair("bert.attention.causal", super::writer::BOOL, &[1]), "`bert.attention.causal` is true"),
        ("llama", |f| f.size("llama.block_count", 4_000_000_000), "`llama.block_count` is 4000000000, expected"),
        ("llama", |f| f.size("llama.attention.key_length", 1 << 30), "`llama.attention.key_length` is 1073741824"),
    ];
    for (architecture, change, expected) in cases {
        let mut file = Gguf::new(architecture);
        let own = |key: &str| format!("{architecture}.{key}");
        let known: Vec<(&str, u32)> = vec![
            ("context_length", 8),
            ("embedding_length", 4),
            ("block_count", 1),
            ("attention.head_count", 2),
            ("feed_forward_length", 4),
        ];
        change(&mut file);
        let changed = |key: &str| file.pairs.iter().any(|p| p.windows(key.len()).any(|w| w == key.as_bytes()));
        let missing: Vec<_> = known.into_iter().filter(|(key, _)| !changed(&own(key))).collect();
        for (key, value) in missing {
            file.size(&own(key), value);
        }
        let eps = if architecture == "bert" { "layer_norm_epsilon" } else { "layer_norm_rms_epsilon" };
        file.number(&own(&format!("attention.{eps}")), 1e-5).floats("token_embd.weight", &[4, 3], &[0.5; 12]);
        let path = folder.write("m.gguf", &file.bytes());
        let error = BertConfig::from_folder(&path).unwrap_err().to_string();
        assert!(error.contains(expected), "{architecture}: {error}");
    }
}

#[test]
fn tensors_that_are_missing_or_too_many_are_refused() {
    let folder = Folder::new();
    let refused = |change: &dyn Fn(&mut Changed), expected: &str| {
        let mut file = Changed::of(&fixture("gguf-bert-base.gguf"));
        change(&mut file);
        let path = folder.write("m.gguf", &file.bytes());
        let Err(error) = BertModel::load(&path, BertConfig::from_folder(&path).unwrap()) else { panic!("{expected}") };
        assert!(error.to_string().contains(expected), "{expected}: {error}");
    };
    refused(
        &|file| drop(file.take("blk.1.ffn_down.weight")),
        "tensor `blk.1.ffn_down.weight`: expected shape [32, 96], found no such tensor",
    );
    refused(
        &|file| {
            file.tensor("blk.1.ffn_dawn.weight", &[32, 96], vec![0.5; 32 * 96]);
        },
        "tensor `blk.1.ffn_dawn.weight`: expected only tensors this model uses, found one that nothing in the metadata",
    );
    refused(
        &|file| {
            let (_, values) = file.take("blk.1.ffn_down.weight");
            file.tensor("blk.1.ffn_down.weight", &[96, 32], values);
        },
        "tensor `blk.1.ffn_down.weight`: expected shape [32, 96], found shape [96, 32]",
    );
}
