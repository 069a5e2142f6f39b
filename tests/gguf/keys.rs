//! Metadata that changes the mathematics is used or refused by its name, never passed over.

use std::path::PathBuf;

use kin_infer::{BertConfig, BertModel, InferError};

use super::models::assert_same;
use super::writer::Changed;
use super::{Folder, fixture};

fn file_of(name: &str) -> PathBuf {
    fixture(&format!("gguf-{name}.gguf"))
}

/// A changed copy of a fixture.
fn changed(folder: &Folder, name: &str, change: Change) -> PathBuf {
    let mut file = Changed::of(&file_of(name));
    change(&mut file);
    folder.write("m.gguf", &file.bytes())
}

/// Changes of a fixture that must be refused, with what the error says.
type Change = fn(&mut Changed) -> &mut Changed;
type Case = (&'static str, Change, &'static str);

fn assert_refused(cases: &[Case]) {
    let folder = Folder::new();
    for (name, change, expected) in cases {
        let path = changed(&folder, name, *change);
        let loaded = BertConfig::from_folder(&path).and_then(|config| BertModel::load(&path, config));
        let Err(error) = loaded else { panic!("{name}: no error: {expected}") };
        assert!(matches!(error, InferError::ModelError { .. } | InferError::TensorError { .. }), "{name}: {error:?}");
        let text = error.to_string();
        assert!(text.contains(expected) && text.contains("m.gguf"), "{name}: {expected}: {text}");
    }
}

/// Changes of a fixture that leave its outputs as they are.
fn assert_the_same(cases: &[(&str, Change)]) {
    let folder = Folder::new();
    for (name, change) in cases {
        assert_same(&changed(&folder, name, *change), &fixture(name));
    }
}

#[test]
fn a_copy_is_the_file() {
    assert_the_same(&[("llama-gqa", |f| f), ("bert-base", |f| f), ("gemma2-base", |f| f)]);
}

/// Query, key and value projections as one tensor.
fn fuse<'a>(file: &'a mut Changed, layers: usize, kinds: &[&str]) -> &'a mut Changed {
    for l in 0..layers {
        for kind in kinds {
            let parts = ["q", "k", "v"].map(|part| file.take(&format!("blk.{l}.attn_{part}.{kind}")));
            let mut shape = parts[0].0.clone();
            shape[0] = parts.iter().map(|(shape, _)| shape[0]).sum();
            let values = parts.into_iter().flat_map(|(_, values)| values).collect();
            file.tensor(&format!("blk.{l}.attn_qkv.{kind}"), &shape, values);
        }
    }
    file
}

#[test]
fn fused_projections_are_the_three_apart() {
    assert_the_same(&[
        ("llama-gqa", |f| fuse(f, 2, &["weight"])),
        ("mistral-window", |f| fuse(f, 3, &["weight"])),
        ("qwen2-base", |f| fuse(f, 2, &["weight", "bias"])),
        ("phi-base", |f| fuse(f, 2, &["weight", "bias"])),
        ("bert-base", |f| fuse(f, 2, &["weight", "bias"])),
    ]);
    assert_refused(&[
        (
            "llama-gqa",
            |f| fuse(f, 2, &["weight"]).tensor("blk.1.attn_qkv.weight", &[59, 36], vec![0.5; 59 * 36]),
            "tensor `blk.1.attn_qkv.weight`: expected shape [60, 36]",
        ),
        (
            "bert-base",
            |f| fuse(f, 2, &["weight", "bias"]).without_tensor("blk.0.attn_qkv.bias"),
            "tensor `blk.0.attn_q.bias`",
        ),
    ]);
}

#[test]
fn a_rotation_is_of_whole_heads_except_in_phi() {
    assert_the_same(&[
        ("qwen2-base", |f| f.size("qwen2.rope.dimension_count", 8)),
        ("llama-gqa", |f| f.without("llama.rope.dimension_count")),
        ("nomic-base", |f| f.size("nomic-bert.rope.dimension_count", 8)),
    ]);
    assert_refused(&[
        ("llama-gqa", |f| f.size("llama.rope.dimension_count", 4), "`llama.rope.dimension_count` is 4, expected 6"),
        ("qwen2-base", |f| f.size("qwen2.rope.dimension_count", 4), "`qwen2.rope.dimension_count` is 4, expected 8"),
        ("gemma-base", |f| f.size("gemma.rope.dimension_count", 0), "`gemma.rope.dimension_count` is 0"),
        ("nomic-base", |f| f.size("nomic-bert.rope.dimension_count", 4), "`nomic-bert.rope.dimension_count` is 4"),
        ("phi-base", |f| f.size("phi2.rope.dimension_count", 3), "`phi2.rope.dimension_count` is 3"),
        ("phi-base", |f| f.size("phi2.rope.dimension_count", 10), "`phi2.rope.dimension_count` is 10"),
        (
            "llama-gqa",
            |f| f.size("llama.attention.key_length", 5).size("llama.rope.dimension_count", 5),
            "`llama.rope.dimension_count` is 5",
        ),
        (
            "llama-gqa",
            |f| f.size("llama.attention.key_length", 5).without("llama.rope.dimension_count"),
            "`llama.attention.key_length` is 5, expected an even number",
        ),
    ]);
}

#[test]
fn factors_of_frequencies_are_refused_where_the_family_has_none() {
    let cases: [Case; 7] = [
        ("bert-base", |f| f.tensor("rope_freqs.weight", &[4], vec![2.0; 4]), "tensor `rope_freqs.weight`"),
        ("nomic-base", |f| f.tensor("rope_freqs.weight", &[4], vec![2.0; 4]), "tensor `rope_freqs.weight`"),
        ("gpt2-base", |f| f.tensor("rope_freqs.weight", &[4], vec![2.0; 4]), "tensor `rope_freqs.weight`"),
        ("qwen2-base", |f| f.tensor("rope_freqs.weight", &[4], vec![2.0; 4]), "tensor `rope_freqs.weight`"),
        ("gemma3-base", |f| f.tensor("rope_freqs.weight", &[6], vec![2.0; 6]), "tensor `rope_freqs.weight`"),
        ("phi3-base", |f| f.tensor("rope_freqs.weight", &[4], vec![2.0; 4]), "tensor `rope_freqs.weight`"),
        ("t5-base", |f| f.tensor("rope_factors_long.weight", &[4], vec![2.0; 4]), "tensor `rope_factors_long.weight`"),
    ];
    assert_refused(&cases);
    assert_refused(&[
        (
            "llama-gqa",
            |f| f.tensor("rope_freqs.weight", &[2], vec![2.0; 2]),
            "tensor `rope_freqs.weight`: expected shape [3]",
        ),
        (
            "llama-gqa",
            |f| f.tensor("rope_freqs.weight", &[3], vec![2.0, 0.0, 1.0]),
            "tensor `rope_freqs.weight`: expected positive",
        ),
        (
            "llama-gqa",
            |f| f.tensor("rope_freqs.weight", &[3], vec![2.0, f32::NAN, 1.0]),
            "tensor `rope_freqs.weight`: expected finite",
        ),
        ("phi3-longrope", |f| f.without_tensor("rope_factors_short.weight"), "tensor `rope_factors_short.weight`"),
        ("phi3-longrope", |f| f.without_tensor("rope_factors_long.weight"), "tensor `rope_factors_long.weight`"),
        (
            "llama-gqa",
            |f| {
                for name in ["rope_freqs.weight", "rope_factors_short.weight", "rope_factors_long.weight"] {
                    f.tensor(name, &[3], vec![2.0; 3]);
                }
                f
            },
            "tensor `rope_freqs.weight`",
        ),
    ]);
}

#[test]
fn a_linear_scaling_has_three_spellings() {
    assert_the_same(&[
        ("llama-linear", |f| f.without("llama.rope.scaling.type")),
        ("llama-linear", |f| {
            f.without("llama.rope.scaling.type").without("llama.rope.scaling.factor");
            f.number("llama.rope.scale_linear", 2.5)
        }),
        ("llama-gqa", |f| f.number("llama.rope.scale_linear", 0.0).number("llama.rope.scaling.attn_factor", 1.0)),
        ("llama-gqa", |f| f.text("llama.rope.scaling.type", "none").number("llama.rope.scaling.factor", 1.0)),
        ("llama-yarn", |f| f.number("llama.rope.scaling.yarn_ext_factor", 1.0)),
        ("llama-yarn", |f| f.number("llama.rope.scaling.yarn_beta_fast", 32.0)),
        ("nomic-base", |f| f.text("nomic-bert.rope.scaling.type", "none")),
    ]);
}

#[test]
fn scalings_that_are_not_computed_are_refused() {
    assert_refused(&[
        ("llama-linear", |f| f.text("llama.rope.scaling.type", "none"), "`llama.rope.scaling.factor` is 2.5, expected"),
        ("llama-linear", |f| f.number("llama.rope.scale_linear", 2.0), "`llama.rope.scale_linear` is 2, expected"),
        ("llama-linear", |f| f.number("llama.rope.scaling.factor", -2.0), "`llama.rope.scaling.factor` is -2"),
        (
            "llama-linear",
            |f| f.number("llama.rope.scaling.attn_factor", 1.5),
            "`llama.rope.scaling.attn_factor` is 1.5",
        ),
        (
            "llama-linear",
            |f| f.number("llama.rope.scaling.yarn_ext_factor", 0.5),
            "`llama.rope.scaling.yarn_ext_factor` is 0.5",
        ),
        (
            "llama-linear",
            |f| f.number("llama.rope.scaling.yarn_beta_fast", 16.0),
            "`llama.rope.scaling.yarn_beta_fast` is 16",
        ),
        ("llama-llama3", |f| f.number("llama.rope.scaling.factor", 2.0), "`llama.rope.scaling.factor` is 2"),
        ("llama-llama3", |f| f.number("llama.rope.scale_linear", 2.0), "`llama.rope.scale_linear` is 2"),
        ("llama-llama3", |f| f.number("llama.rope.scaling.attn_factor", 2.0), "`llama.rope.scaling.attn_factor` is 2"),
        ("llama-yarn", |f| f.without("llama.rope.scaling.factor"), "`llama.rope.scaling.factor` is absent"),
        (
            "llama-yarn",
            |f| f.number("llama.rope.scaling.yarn_ext_factor", 0.5),
            "`llama.rope.scaling.yarn_ext_factor` is 0.5",
        ),
        (
            "llama-yarn",
            |f| f.number("llama.rope.scaling.yarn_attn_factor", 1.0),
            "`llama.rope.scaling.yarn_attn_factor` is 1",
        ),
        ("llama-yarn", |f| f.number("llama.rope.scaling.yarn_log_multiplier", 0.1), "yarn_log_multiplier` is 0.1"),
        ("llama-yarn", |f| f.number("llama.rope.scaling.yarn_beta_fast", -1.0), "yarn_beta_fast` is -1"),
        ("llama-yarn", |f| f.number("llama.rope.scaling.yarn_beta_slow", 0.0), "yarn_beta_slow` is 0"),
        ("llama-yarn", |f| f.number("llama.rope.scaling.attn_factor", 1.5), "attn_factor` is 1.5"),
        ("llama-yarn", |f| f.size("llama.rope.scaling.original_context_length", 0), "original_context_length` is 0"),
        ("llama-gqa", |f| f.text("llama.rope.scaling.type", "longrope"), "`llama.rope.scaling.type` is \"longrope\""),
        ("llama-gqa", |f| f.number("llama.rope.freq_base", 0.0), "`llama.rope.freq_base` is 0"),
        ("phi3-longrope", |f| f.number("phi3.rope.scaling.factor", 2.0), "`phi3.rope.scaling.factor` is 2"),
        ("phi3-longrope", |f| f.text("phi3.rope.scaling.type", "linear"), "`phi3.rope.scaling.type` is \"linear\""),
        ("phi3-longrope", |f| f.without("phi3.rope.scaling.attn_factor"), "`phi3.rope.scaling.attn_factor` is absent"),
        ("nomic-base", |f| f.number("nomic-bert.rope.scaling.factor", 2.0), "`nomic-bert.rope.scaling.factor` is 2"),
        ("nomic-base", |f| f.number("nomic-bert.rope.scale_linear", 2.0), "`nomic-bert.rope.scale_linear` is 2"),
        ("nomic-base", |f| f.number("nomic-bert.rope.scaling.attn_factor", 2.0), "attn_factor` is 2"),
        ("nomic-base", |f| f.text("nomic-bert.rope.scaling.type", "linear"), "scaling.type` is \"linear\""),
    ]);
}

#[test]
fn keys_that_say_nothing_of_the_computation_pass() {
    assert_the_same(&[
        ("llama-gqa", |f| {
            f.size("llama.vocab_size", 40).size("llama.expert_count", 0).size("llama.expert_used_count", 0);
            f.number("llama.logit_scale", 1.0).flag("llama.rope.scaling.finetuned", false);
            f.text("llama.tensor_data_layout", "Meta AI original pth").flag("llama.attention.causal", true);
            f.number("llama.attention.scale", 0.0).size("llama.attention.sliding_window", 0);
            f.text("general.name", "a name").size("general.file_type", 1)
        }),
        ("bert-base", |f| f.texts("bert.classifier.output_labels", &["A", "B"]).size("bert.pooling_type", 1)),
        ("t5-base", |f| {
            f.size("t5encoder.decoder_block_count", 2).size("t5encoder.decoder_start_token_id", 0);
            f.number("t5encoder.attention.layer_norm_epsilon", f64::from(1e-6f32))
        }),
        ("gemma3-base", |f| f.number("gemma3.attn_logit_softcapping", 0.0).size("gemma3.mm.tokens_per_image", 256)),
        ("gemma2-base", |f| f.size("gemma2.attention.sliding_window_pattern", 2)),
        ("bert-base", |f| f.size("bert.attention.head_count_kv", 4).size("bert.attention.key_length", 8)),
    ]);
}

#[test]
fn keys_that_nobody_knows_are_refused_by_name() {
    assert_refused(&[
        ("llama-gqa", |f| f.size("llama.made_up", 1), "`llama.made_up` is 1, expected none"),
        ("llama-gqa", |f| f.number("llama.rope.scaling.made_up", 1.0), "`llama.rope.scaling.made_up` is 1"),
        ("llama-yarn", |f| f.number("llama.rope.scaling.yarn_made_up", 1.0), "`llama.rope.scaling.yarn_made_up` is 1"),
        ("bert-base", |f| f.flag("bert.made_up", false), "`bert.made_up` is false"),
        ("bert-base", |f| f.number("bert.rope.freq_base", 1e4), "`bert.rope.freq_base` is 10000"),
        ("gpt2-base", |f| f.text("gpt2.hidden_act", "relu"), "`gpt2.hidden_act` is \"relu\""),
        ("t5-base", |f| f.size("t5encoder.made_up", 1), "`t5encoder.made_up` is 1"),
        ("qwen3-base", |f| f.size("qwen3.expert_used_count", 8), "`qwen3.expert_used_count` is 8, expected none, or 0"),
        ("gemma3-base", |f| f.number("gemma3.rope.global.freq_base", 1e6), "`gemma3.rope.global.freq_base` is"),
        ("gemma-base", |f| f.size("gemma.attention.sliding_window", 4), "`gemma.attention.sliding_window` is 4"),
        ("phi-base", |f| f.size("phi2.attention.sliding_window", 4), "`phi2.attention.sliding_window` is 4"),
        ("gemma-base", |f| f.number("gemma.final_logit_softcapping", 30.0), "`gemma.final_logit_softcapping` is 30"),
        ("llama-gqa", |f| f.number("llama.attention.scale", 0.5), "`llama.attention.scale` is 0.5"),
        ("llama-gqa", |f| f.number("llama.rope.freq_base_swa", 1e4), "`llama.rope.freq_base_swa` is"),
        (
            "llama-gqa",
            |f| f.text("llama.tensor_data_layout", "reference"),
            "`llama.tensor_data_layout` is \"reference\"",
        ),
        ("qwen2-base", |f| f.text("qwen2.tensor_data_layout", "Meta AI original pth"), "`qwen2.tensor_data_layout` is"),
        ("bert-base", |f| f.size("bert.attention.head_count_kv", 2), "`bert.attention.head_count_kv` is 2, expected 4"),
        ("gpt2-base", |f| f.size("gpt2.attention.key_length", 4), "`gpt2.attention.key_length` is 4, expected 8"),
        ("gpt2-base", |f| f.flag("gpt2.attention.causal", false), "`gpt2.attention.causal` is false"),
        ("t5-base", |f| f.flag("t5encoder.attention.causal", true), "`t5encoder.attention.causal` is true"),
        (
            "llama-gqa",
            |f| f.without("llama.attention.layer_norm_rms_epsilon").number("llama.attention.layer_norm_epsilon", 1e-5),
            "`llama.attention.layer_norm_rms_epsilon` is absent",
        ),
        (
            "bert-base",
            |f| f.number("bert.attention.layer_norm_rms_epsilon", 0.5),
            "`bert.attention.layer_norm_rms_epsilon` is 0.5",
        ),
        (
            "bert-base",
            |f| f.number("bert.attention.layer_norm_epsilon", -0.5),
            "`bert.attention.layer_norm_epsilon` is -0.5",
        ),
    ]);
}

#[test]
fn gemmas_keys_are_in_range() {
    assert_refused(&[
        ("gemma2-base", |f| f.number("gemma2.attention.scale", 0.0), "`gemma2.attention.scale` is 0"),
        ("gemma2-base", |f| f.number("gemma2.attention.scale", -0.25), "`gemma2.attention.scale` is -0.25"),
        ("gemma2-base", |f| f.number("gemma2.attention.scale", 1e-200), "`gemma2.attention.scale` is 0.0000"),
        ("gemma2-base", |f| f.number("gemma2.attention.scale", 1e200), "`gemma2.attention.scale` is 1000"),
        ("gemma2-base", |f| f.number("gemma2.attn_logit_softcapping", -1.0), "`gemma2.attn_logit_softcapping` is -1"),
        ("gemma2-base", |f| f.number("gemma2.final_logit_softcapping", -1.0), "`gemma2.final_logit_softcapping` is -1"),
        ("gemma2-base", |f| f.size("gemma2.attention.sliding_window", 0), "`gemma2.attention.sliding_window` is 0"),
        ("gemma2-base", |f| f.size("gemma2.attention.sliding_window_pattern", 3), "sliding_window_pattern` is 3"),
        ("gemma3-base", |f| f.number("gemma3.attn_logit_softcapping", 50.0), "`gemma3.attn_logit_softcapping` is 50"),
        ("gemma3-base", |f| f.number("gemma3.rope.freq_base_swa", 0.0), "`gemma3.rope.freq_base_swa` is 0"),
    ]);
}

/// A configuration that is not the file's.
#[test]
fn rows_that_cannot_be_put_back_are_refused() {
    let path = file_of("llama-gqa");
    let mut config = BertConfig::from_folder(&path).unwrap();
    config.extra.insert("head_dim".into(), 5.into());
    config.extra.insert("partial_rotary_factor".into(), 0.4.into());
    let error = BertModel::load(&path, config).err().unwrap().to_string();
    assert!(error.contains("tensor `blk.0.attn_q.weight`: expected 6 heads of an even number of rows"), "{error}");
}

/// Errors of what the families ask for name the file and its key, not a config.json that there is not.
#[test]
fn errors_name_the_key_of_the_file() {
    assert_refused(&[
        ("llama-gqa", |f| f.size("llama.attention.head_count_kv", 4), "`llama.attention.head_count_kv` is 4"),
        ("bert-base", |f| f.size("bert.attention.head_count", 5), "`bert.embedding_length` is 32"),
        ("llama-gqa", |f| f.size("llama.feed_forward_length", 0), "`llama.feed_forward_length` is 0"),
        ("llama-gqa", |f| f.size("llama.context_length", 0), "`llama.context_length` is 0"),
        ("llama-gqa", |f| f.size("llama.block_count", 0), "`llama.block_count` is 0"),
        ("llama-gqa", |f| f.tensor("blk.7.made_up", &[1], vec![0.0]), "one that nothing in the metadata asks for"),
    ]);
    let path = file_of("llama-gqa");
    let config = BertConfig::from_folder(&path).unwrap();
    let compute = kin_infer::gpu::create_compute().unwrap();
    let loaded = BertModel::load_with_head(&path, config, compute, kin_infer::arch::HeadChoice::MaskedLm);
    let error = loaded.err().unwrap().to_string();
    assert!(error.contains("gguf-llama-gqa.gguf") && error.contains("`general.architecture`"), "{error}");
}
