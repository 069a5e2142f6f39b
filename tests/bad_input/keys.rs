//! Configurations that ask for mathematics this version does not have: refused at load, by key and value.

use kin_infer::{BertConfig, InferError, Sequence};
use serde_json::{Value, json};

use crate::common::{REFUSED, fixture};
use crate::folder::{Copy, says};

/// A checkpoint of every model type, and of each set of keys it may have.
pub const FAMILIES: [&str; 20] = [
    "albert-base",
    "bert-base",
    "camembert-base",
    "deberta-base",
    "deberta-v2-base",
    "distilbert-base",
    "electra-base",
    "gte-base",
    "gte-native",
    "gte-snowflake",
    "jina-geglu",
    "modernbert-base",
    "mpnet-base",
    "mt5-base",
    "nomic-base",
    "nomic-native",
    "nomic-both-keys",
    "roberta-base",
    "t5-base",
    "xlm-roberta-base",
];

/// Sets a key and loads: refused, by key and value.
#[track_caller]
fn refused(name: &str, key: &str, value: Value, found: &str) {
    let copy = Copy::new(name);
    copy.edit_config(key, value.clone());
    let case = format!("{name}: {key} = {value}");
    let error = copy.refused(&case);
    assert!(matches!(error, InferError::ModelIncompatible { .. }), "{case}: {error:?}");
    says(error, &[&format!("`{key}"), found], &case);
}

#[test]
fn what_no_family_has_is_refused_in_each() {
    for name in FAMILIES {
        refused(name, "is_decoder", json!(true), "true");
        refused(name, "add_cross_attention", json!(true), "true");
        refused(name, "quantization_config", json!({"bits": 8}), "{\"bits\":8}");
        refused(name, "pruned_heads", json!({"0": [1]}), "{\"0\":[1]}");
        let copy = Copy::new(name);
        copy.edit_config("pruned_heads", json!({}));
        copy.load().unwrap();
    }
}

#[test]
fn what_one_family_has_is_refused_in_another_form() {
    let cases = [
        ("albert-base", "position_embedding_type", json!("relative_key"), "relative_key"),
        ("albert-base", "num_hidden_groups", json!(7), "7"),
        ("albert-base", "hidden_act", json!("gelu_10"), "gelu_10"),
        ("bert-base", "position_embedding_type", json!("relative_key"), "relative_key"),
        ("bert-base", "position_embedding_type", json!("relative_key_query"), "relative_key_query"),
        ("bert-base", "hidden_act", json!("quick_gelu"), "quick_gelu"),
        ("bert-base", "hidden_act", json!("relu6"), "relu6"),
        ("bert-base", "hidden_size", json!(34), "34"),
        ("camembert-base", "position_embedding_type", json!("relative_key"), "relative_key"),
        ("deberta-base", "talking_head", json!(true), "true"),
        ("deberta-base", "pos_att_type", json!("c2p|p2p"), "p2p"),
        ("deberta-base", "max_relative_positions", json!(1 << 17), "131072"),
        ("deberta-classifier-1", "pooler_hidden_size", json!(7), "7"),
        ("deberta-classifier-1", "pooler_hidden_act", json!("mish"), "mish"),
        ("deberta-v2-base", "pos_att_type", json!(["p2p"]), "p2p"),
        ("deberta-v2-base", "position_buckets", json!(2), "2"),
        ("deberta-v2-base", "position_buckets", json!(7), "7"),
        ("deberta-v2-base", "norm_rel_ebd", json!("batch_norm"), "batch_norm"),
        ("deberta-v2-conv", "conv_kernel_size", json!(4), "4"),
        ("deberta-v2-conv", "conv_groups", json!(5), "5"),
        ("deberta-v2-conv", "conv_groups", json!(0), "0"),
        ("deberta-v2-conv", "conv_act", json!("mish"), "mish"),
        ("deberta-v2-base", "attention_head_size", json!(0), "0"),
        ("distilbert-base", "activation", json!("quick_gelu"), "quick_gelu"),
        ("electra-base", "position_embedding_type", json!("relative_key"), "relative_key"),
        ("gemma-base", "use_bidirectional_attention", json!(true), "true"),
        ("gemma2-base", "is_causal", json!(false), "false"),
        ("gpt2-base", "is_causal", json!(false), "false"),
        ("gte-base", "logn_attention_scale", json!(true), "true"),
        ("gte-base", "layer_norm_type", json!("batch_norm"), "batch_norm"),
        ("gte-base", "position_embedding_type", json!("alibi"), "alibi"),
        ("gte-base", "num_attention_heads", json!(32), "32"),
        ("gte-base", "rope_theta", json!(0), "0"),
        ("gte-base", "rope_scaling", json!({"type": "linear", "factor": 2.0}), "linear"),
        ("gte-base", "rope_scaling", json!({"type": "dynamic", "factor": 2.0}), "dynamic"),
        ("gte-base", "rope_scaling", json!({"rope_type": "yarn", "factor": 2.0}), "yarn"),
        ("gte-base", "rope_scaling", json!({"type": "ntk", "factor": 0.5}), "0.5"),
        ("gte-base", "rope_scaling", json!({"type": "ntk", "factor": 2.0, "mixed_b": "a"}), "mixed_b"),
        ("gte-base", "head_dim", json!(16), "16"),
        ("gte-native", "rope_parameters", json!({"rope_type": "yarn", "rope_theta": 1e4}), "yarn"),
        ("gte-native", "rope_parameters", json!({"type": "linear", "rope_theta": 1e4}), "linear"),
        ("gte-native", "rope_parameters", json!({"rope_theta": -1}), "-1"),
        ("gte-snowflake", "head_dim", json!(16), "16"),
        ("jina-geglu", "position_embedding_type", json!("absolute"), "absolute"),
        ("jina-geglu", "feed_forward_type", json!("swiglu"), "swiglu"),
        ("mistral-window", "is_causal", json!(false), "false"),
        ("modernbert-base", "num_attention_heads", json!(8), "8"),
        ("modernbert-base", "hidden_activation", json!("quick_gelu"), "quick_gelu"),
        ("modernbert-base", "layer_types", json!(["full_attention", "chunked_attention"]), "chunked_attention"),
        ("modernbert-base", "layer_types", json!(["full_attention"]), "[\"full_attention\"]"),
        ("modernbert-base", "global_attn_every_n_layers", json!(0), "0"),
        ("modernbert-base", "sliding_window", json!(100), "100"),
        ("modernbert-base", "rope_scaling", json!({"rope_type": "linear", "factor": 2.0}), "linear"),
        ("modernbert-base", "rope_parameters", json!({"full_attention": {"rope_type": "yarn"}}), "yarn"),
        ("modernbert-base", "rope_parameters", json!({"sliding_attention": {"rope_theta": 0}}), "0"),
        ("modernbert-base", "global_rope_theta", json!(0), "0"),
        ("modernbert-base", "head_dim", json!(16), "16"),
        ("modernbert-classifier-cls", "classifier_pooling", json!("max"), "max"),
        ("modernbert-classifier-cls", "classifier_activation", json!("mish"), "mish"),
        ("mpnet-base", "relative_attention_num_buckets", json!(16), "16"),
        ("mt5-base", "feed_forward_proj", json!("gated-mish"), "mish"),
        ("nomic-base", "prenorm", json!(true), "true"),
        ("nomic-base", "parallel_block", json!(true), "true"),
        ("nomic-base", "use_rms_norm", json!(true), "true"),
        ("nomic-base", "causal", json!(true), "true"),
        ("nomic-base", "scale_attn_by_inverse_layer_idx", json!(true), "true"),
        ("nomic-base", "scale_attn_weights", json!(false), "false"),
        ("nomic-base", "rotary_emb_scale_base", json!(512), "512"),
        ("nomic-base", "num_experts", json!(8), "8"),
        ("nomic-base", "num_heads_kv", json!(2), "2"),
        ("nomic-base", "rope_scaling", json!({"rope_type": "linear", "factor": 2.0}), "linear"),
        ("nomic-base", "activation_function", json!("relu6"), "relu6"),
        ("nomic-base", "rotary_emb_fraction", json!(0.3), "0.3"),
        ("nomic-base", "rotary_emb_fraction", json!(2.0), "2"),
        ("nomic-base", "rotary_emb_base", json!(-1), "-1"),
        ("nomic-base", "rotary_scaling_factor", json!(0.5), "0.5"),
        ("nomic-native", "rope_parameters", json!({"rope_type": "dynamic", "factor": 2.0}), "dynamic"),
        ("nomic-native", "head_dim", json!(16), "16"),
        ("roberta-base", "position_embedding_type", json!("relative_key"), "relative_key"),
        ("roberta-base", "pad_token_id", json!(39), "39"),
        ("t5-base", "feed_forward_proj", json!("gated-mish"), "mish"),
        ("t5-base", "dense_act_fn", json!("mish"), "mish"),
        ("t5-base", "relative_attention_num_buckets", json!(3), "3"),
        ("t5-base", "relative_attention_max_distance", json!(8), "8"),
        ("t5-base", "architectures", json!(["T5ForSequenceClassification"]), "T5ForSequenceClassification"),
        ("xlm-roberta-base", "position_embedding_type", json!("relative_key"), "relative_key"),
    ];
    for (name, key, value, found) in cases {
        refused(name, key, value, found);
    }
}

/// An absent window is the reference's own, a null none; a null base of ModernBERT's near layers is that of the others.
#[test]
fn null_is_not_absent() {
    let set = |copy: &Copy, key: &str, value: Value| {
        let mut config = copy.config();
        config[key] = value;
        copy.write_config(&config);
    };
    for name in ["mistral-window", "gemma2-base", "qwen2-window", "qwen3-window"] {
        let copy = Copy::new(name);
        let window = |copy: &Copy| copy.load().unwrap().spec().layers.iter().find_map(|layer| layer.window);
        assert!(window(&copy).is_some_and(|window| window < 100), "{name}");
        set(&copy, "sliding_window", Value::Null);
        assert_eq!(window(&copy), None, "{name}");
        copy.edit_config("sliding_window", Value::Null); // removes it
        assert_eq!(window(&copy), Some(4095), "{name}");
    }
    let copy = Copy::new("modernbert-base");
    let vectors = |bases: [Value; 2]| {
        ["global_rope_theta", "local_rope_theta"].iter().zip(bases).for_each(|(key, base)| set(&copy, key, base));
        copy.load().unwrap().encode(&[Sequence::new((1..20).collect())]).remove(0).unwrap()
    };
    let both = vectors([json!(500.0), json!(500.0)]);
    assert_eq!(vectors([json!(500.0), Value::Null]), both);
    assert_ne!(vectors([json!(500.0), json!(10_000.0)]), both);
}

/// A rotation that cannot be read is no rotation without a scaling.
#[test]
fn a_decoders_rotation_of_the_wrong_type_is_refused() {
    for (key, value, found) in [
        ("rope_scaling", json!("linear"), "linear"),
        ("rope_scaling", json!([7]), "[7]"),
        ("rope_scaling", json!({"rope_type": 7, "factor": 2.0}), "7"),
        ("rope_scaling", json!({"type": ["linear"], "factor": 2.0}), "linear"),
        ("rope_parameters", json!(7), "7"),
        ("rope_parameters", json!({"rope_type": true}), "true"),
    ] {
        refused("llama-linear", key, value, found);
    }
}

#[test]
fn fixtures_of_refused_mathematics_are_refused_by_their_key() {
    for (name, key) in REFUSED {
        let error = Copy::new(name).refused(name);
        assert!(matches!(&error, InferError::ModelIncompatible { key: found, .. } if found == key), "{error:?}");
    }
}

/// What one code reads as 10000 the other reads as 160000: a base that nothing states is no base.
#[test]
fn a_base_whose_default_is_ambiguous_has_to_be_stated() {
    let copy = Copy::new("gte-native");
    copy.edit_config("rope_parameters", Value::Null);
    says(copy.refused("no base"), &["`rope_theta` is absent"], "no base");
    copy.edit_config("rope_theta", json!(1e4));
    copy.load().unwrap();
}

#[test]
fn what_an_absent_or_null_key_means_is_the_familys_own() {
    // A gate is MT5's own default, and not T5's.
    let copy = Copy::new("mt5-base");
    assert_eq!(copy.config()["feed_forward_proj"], "gated-gelu");
    copy.edit_config("feed_forward_proj", Value::Null);
    assert!(copy.load().unwrap().spec().feed_forward.gated);
    // The base of the class in transformers, where its keys stand alone.
    let copy = Copy::new("nomic-native");
    assert_eq!(copy.config()["rope_parameters"]["rope_theta"], 1000.0);
    let (stated, _) = kin_infer::arch::describe(&BertConfig::from_folder(&copy.0).unwrap()).unwrap();
    copy.edit_config("rope_parameters", Value::Null);
    assert_eq!(copy.load().unwrap().spec(), &stated);
    for (name, key, eps) in [("t5-base", "layer_norm_eps", 1e-6), ("modernbert-base", "norm_eps", 1e-5)] {
        let copy = Copy::new(name);
        let mut config = copy.config();
        for key in ["layer_norm_epsilon", "layer_norm_eps", key] {
            config[key] = Value::Null;
        }
        copy.write_config(&config);
        assert_eq!(copy.load().unwrap().spec().norm.eps, eps, "{name}");
    }
}

#[test]
fn a_model_type_that_is_unknown_or_absent_is_named() {
    for (value, words) in [
        (json!("bart"), ["`model_type`", "\"bart\""]),
        (json!(7), ["`model_type`", "7"]),
        (Value::Null, ["config.json", "`model_type` is missing"]),
    ] {
        let copy = Copy::new("bert-base");
        copy.edit_config("model_type", value.clone());
        says(copy.refused("model_type"), &words, &value.to_string());
    }
    for text in ["", "[]", "{\"model_type\"", "7"] {
        let copy = Copy::new("bert-base");
        std::fs::write(copy.0.join("config.json"), text).unwrap();
        says(copy.refused(text), &["config.json"], text);
    }
    assert!(fixture("bert-base").join("config.json").is_file());
}
