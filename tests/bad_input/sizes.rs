//! Keys of the wrong type, and sizes that cannot be: typed errors, without a panic or memory for them.

use kin_infer::{InferError, Result};
use serde_json::{Value, json};

use crate::folder::{Copy, says, typed};
use crate::keys::FAMILIES;

/// The sizes that every configuration has, by the names a family may have for them.
const SIZES: [&[&str]; 5] = [
    &["hidden_size", "n_embd", "d_model", "dim"],
    &["num_hidden_layers", "n_layer", "num_layers", "n_layers"],
    &["num_attention_heads", "n_head", "num_heads", "n_heads"],
    &["vocab_size"],
    &["intermediate_size", "n_inner", "d_ff", "hidden_dim"],
];

/// The name of a size in a configuration. The hub's own names are the stronger where both stand.
fn name_in<'a>(config: &Value, names: &[&'a str]) -> &'a str {
    names.iter().rev().find(|name| config.get(**name).is_some()).unwrap()
}

/// Further keys that a family reads, and what a fixture needs for them to be read.
const KEYS: [(&str, &[&str]); 19] = [
    ("albert-base", &["embedding_size", "num_hidden_groups", "inner_group_num"]),
    ("bert-base", &["max_position_embeddings", "type_vocab_size", "layer_norm_eps", "hidden_act"]),
    ("bert-base", &["position_embedding_type", "architectures", "is_decoder", "add_cross_attention"]),
    ("bert-classifier-3", &["id2label", "num_labels"]),
    ("deberta-base", &["relative_attention", "max_relative_positions", "position_biased_input", "pos_att_type"]),
    ("deberta-base", &["talking_head", "embedding_size"]),
    ("deberta-classifier-1", &["pooler_hidden_size", "pooler_hidden_act"]),
    ("deberta-v2-conv", &["position_buckets", "norm_rel_ebd", "share_att_key", "attention_head_size"]),
    ("deberta-v2-conv", &["conv_kernel_size", "conv_groups", "conv_act"]),
    ("distilbert-base", &["activation"]),
    ("electra-base", &["embedding_size"]),
    ("gte-base", &["logn_attention_scale", "layer_norm_type", "pack_qkv", "rope_theta", "rope_scaling", "head_dim"]),
    ("gte-native", &["rope_parameters"]),
    ("jina-geglu", &["feed_forward_type"]),
    ("modernbert-base", &["global_attn_every_n_layers", "local_attention", "layer_types", "rope_parameters"]),
    (
        "modernbert-base",
        &["norm_bias", "attention_bias", "mlp_bias", "global_rope_theta", "local_rope_theta", "norm_eps"],
    ),
    ("modernbert-classifier-cls", &["classifier_pooling", "classifier_activation", "classifier_bias"]),
    ("nomic-base", &["rotary_emb_fraction", "rotary_emb_base", "rotary_emb_interleaved", "rotary_scaling_factor"]),
    ("t5-base", &["d_kv", "feed_forward_proj", "is_gated_act", "dense_act_fn", "relative_attention_max_distance"]),
];

#[test]
fn a_key_of_the_wrong_type_is_named_with_its_value() {
    for name in FAMILIES {
        for names in SIZES {
            let copy = Copy::new(name);
            let key = name_in(&copy.config(), names);
            for value in [json!("wide"), json!(-1), json!(1.5), json!([7]), json!(true)] {
                copy.edit_config(key, value.clone());
                let case = format!("{name}: {key} = {value}");
                says(copy.refused(&case), &["config.json", &format!("`{key}"), &value.to_string()], &case);
            }
        }
    }
    let more = [
        (
            "nomic-base",
            ["qkv_proj_bias", "mlp_fc1_bias", "mlp_fc2_bias", "prenorm", "causal", "pad_vocab_size_multiple"],
        ),
        (
            "mpnet-base",
            ["relative_attention_num_buckets", "hidden_act", "layer_norm_eps", "is_decoder", "vocab_size", "head_dim"],
        ),
    ];
    let keys = KEYS.iter().copied().chain(more.iter().map(|(name, keys)| (*name, &keys[..])));
    for (name, key) in keys.flat_map(|(name, keys)| keys.iter().map(move |key| (name, *key))) {
        let copy = Copy::new(name);
        copy.edit_config(key, json!([7]));
        let case = format!("{name}: {key} = [7]");
        says(copy.refused(&case), &["config.json", &format!("`{key}"), "7"], &case);
    }
    for (kind, value) in [("full_attention", json!(7)), ("sliding_attention", json!({"rope_theta": "wide"}))] {
        let copy = Copy::new("modernbert-base");
        copy.edit_config("rope_parameters", json!({kind: value}));
        says(copy.refused(kind), &[&format!("`rope_parameters.{kind}")], kind);
    }
}

#[test]
fn a_size_that_is_absent_is_named() {
    for name in FAMILIES {
        for names in &SIZES[..4] {
            let copy = Copy::new(name);
            let mut config = copy.config();
            let key = name_in(&config, names);
            names.iter().for_each(|n| drop(config.as_object_mut().unwrap().remove(*n)));
            copy.write_config(&config);
            says(copy.refused(name), &["config.json", &format!("`{key}`"), "is missing"], name);
        }
    }
}

/// The most address space this process has had, in bytes, where the system tells.
fn address_space() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|l| l.strip_prefix("VmPeak:"))?;
    line.trim().strip_suffix(" kB")?.parse::<u64>().ok().map(|kib| kib << 10)
}

/// Loads, or is refused with a typed error; nothing else.
#[track_caller]
fn loads_or_refused(result: Result<kin_infer::BertModel>, case: &str) {
    if result.is_err() {
        typed(result, case);
    }
}

#[test]
fn sizes_that_cannot_be_are_refused_without_memory_for_them() {
    let before = address_space();
    let absurd = [1 << 32, 1_000_000_000_000, 1 << 60, 1 << 63, u64::MAX - 1, u64::MAX];
    for name in FAMILIES {
        for (i, names) in SIZES.iter().enumerate() {
            let copy = Copy::new(name);
            let key = name_in(&copy.config(), names);
            copy.edit_config(key, json!(0));
            // Some take 0 for "as the others say".
            if i < 4 {
                says(copy.refused(key), &[&format!("`{key}` is 0")], name);
            } else {
                loads_or_refused(copy.load(), key);
            }
            for size in absurd {
                copy.edit_config(key, json!(size));
                let case = format!("{name}: {key} = {size}");
                says(copy.refused(&case), &[&format!("`{key}` is {size}")], &case);
            }
        }
    }
    for (name, key) in KEYS.iter().flat_map(|(name, keys)| keys.iter().map(move |key| (*name, *key))) {
        let copy = Copy::new(name);
        for size in [0, 1 << 16, 1 << 20].into_iter().chain(absurd) {
            copy.edit_config(key, json!(size));
            loads_or_refused(copy.load(), &format!("{name}: {key} = {size}"));
        }
    }
    // Two sizes whose product is no number, each as large as it may be.
    for (name, keys) in [
        ("t5-base", ["d_kv", "num_heads"]),
        ("deberta-v2-base", ["attention_head_size", "intermediate_size"]),
        ("bert-base", ["hidden_size", "num_attention_heads"]),
        ("gte-base", ["hidden_size", "intermediate_size"]),
        ("nomic-base", ["n_embd", "pad_vocab_size_multiple"]),
        ("modernbert-base", ["hidden_size", "vocab_size"]),
        ("albert-base", ["num_hidden_layers", "inner_group_num"]),
        ("distilbert-base", ["n_layers", "dim"]),
    ] {
        for size in [1u64 << 12, 1 << 20, 1 << 32, 1 << 60, u64::MAX] {
            let copy = Copy::new(name);
            keys.iter().for_each(|key| copy.edit_config(key, json!(size)));
            copy.refused(&format!("{name}: {keys:?} = {size}"));
        }
    }
    if let (Some(before), Some(after)) = (before, address_space()) {
        assert!(after - before < 1 << 30, "{} MiB more than before", (after - before) >> 20);
    }
}

/// A reach of 10^12 distances would be a map of as many rows: DeBERTa takes it from the positions where no key of its
/// own states it.
#[test]
fn a_reach_that_cannot_be_is_refused() {
    let copy = Copy::new("deberta-v2-base");
    assert_eq!(copy.config()["position_biased_input"], false);
    copy.edit_config("max_relative_positions", json!(-1));
    copy.edit_config("max_position_embeddings", json!(4_000_000_000u32));
    says(copy.refused("reach"), &["`max_position_embeddings` is 4000000000"], "reach");
}

#[test]
fn an_eps_that_is_no_small_number_is_refused() {
    for (name, key) in
        [("bert-base", "layer_norm_eps"), ("t5-base", "layer_norm_epsilon"), ("modernbert-base", "norm_eps")]
    {
        for value in [json!(-1e-12), json!(1e39), json!("1e-12")] {
            let copy = Copy::new(name);
            copy.edit_config(key, value.clone());
            says(copy.refused(key), &[&format!("`{key}`")], &format!("{name}: {value}"));
        }
    }
}

#[test]
fn label_counts_that_contradict_are_refused() {
    let copy = Copy::new("bert-classifier-3");
    copy.edit_config("num_labels", json!(2));
    says(copy.refused("num_labels"), &["`num_labels` is 2", "id2label", "3"], "num_labels");
    copy.edit_config("num_labels", json!(3));
    assert_eq!(copy.load().unwrap().labels(), 3);
    copy.edit_config("id2label", Value::Null);
    assert_eq!(copy.load().unwrap().labels(), 3);
    for (key, value) in [("num_labels", json!(0)), ("id2label", json!({}))] {
        let copy = Copy::new("bert-classifier-3");
        copy.edit_config("id2label", Value::Null);
        copy.edit_config(key, value);
        says(copy.refused(key), &["num_labels", "0"], key);
    }
    // A count that the classifier's tensor does not have.
    let copy = Copy::new("bert-classifier-3");
    copy.edit_config("id2label", json!({"0": "a", "1": "b"}));
    let error = copy.refused("two labels");
    assert!(matches!(error, InferError::TensorError { .. }), "{error:?}");
    says(error, &["classifier.weight", "[2, 36]", "[3, 36]"], "two labels");
}
