//! A checkpoint under another family's `model_type`.

use kin_infer::{InferError, ModelArchitecture};
use serde_json::{Value, json};

use crate::common::{decoders, encoders};
use crate::folder::Copy;

/// Checkpoints of every family, with and without the prefix of a model with a head.
const CHECKPOINTS: [&str; 39] = [
    "albert-base",
    "albert-prefixed",
    "bert-base",
    "bert-prefixed",
    "bert-alibi",
    "camembert-base",
    "camembert-mlm",
    "deberta-base",
    "deberta-prefixed",
    "deberta-plain",
    "deberta-v2-base",
    "deberta-v2-prefixed",
    "deberta-v2-none",
    "distilbert-base",
    "distilbert-prefixed",
    "electra-base",
    "electra-prefixed",
    "gte-base",
    "gte-multilingual",
    "gte-native",
    "gte-native-names",
    "jina-geglu",
    "jina-heads4",
    "jina-code",
    "jina-original",
    "modernbert-base",
    "modernbert-prefixed",
    "mpnet-base",
    "mpnet-prefixed",
    "mt5-base",
    "nomic-base",
    "nomic-prefixed",
    "nomic-native",
    "nomic-native-names",
    "roberta-base",
    "roberta-prefixed",
    "t5-base",
    "t5-full",
    "xlm-roberta-base",
];

/// What a configuration may call the same thing.
const SYNONYMS: [&[&str]; 5] = [
    &["hidden_size", "n_embd", "d_model", "dim"],
    &["num_hidden_layers", "n_layer", "num_layers", "n_layers"],
    &["num_attention_heads", "n_head", "num_heads", "n_heads"],
    &["intermediate_size", "n_inner", "d_ff", "hidden_dim"],
    &["max_position_embeddings", "n_positions"],
];

/// The configuration with every family's names of the sizes: only the tensors tell what it is.
fn in_every_tongue(mut config: Value) -> Value {
    for names in SYNONYMS {
        let Some(value) = names.iter().find_map(|name| config.get(name)).cloned() else { continue };
        for name in names {
            config[*name] = value.clone();
        }
    }
    config.as_object_mut().unwrap().remove("position_embedding_type");
    config
}

/// Whose tensors two model types cannot tell apart: names and shapes are the same, and config.json alone says what is
/// computed. Those of a whole model with its head have a prefix that tells.
fn alike(name: &str, model_type: &str) -> bool {
    let roberta = ["roberta", "xlm-roberta", "camembert"].contains(&model_type);
    match name {
        "bert-base" => roberta,
        "electra-base" | "camembert-base" | "roberta-base" | "xlm-roberta-base" => roberta || model_type == "bert",
        "camembert-mlm" | "roberta-prefixed" => roberta,
        "t5-base" | "t5-full" | "mt5-base" => ["t5", "mt5"].contains(&model_type),
        name if name.starts_with("gte-") => ["new", "gte"].contains(&model_type),
        _ => false,
    }
}

/// The name by which an error calls the family of a checkpoint.
fn family(name: &str) -> &str {
    let families = ["albert", "deberta-v2", "deberta", "distilbert", "modernbert", "mpnet"];
    let shared = [("nomic", "nomic_bert"), ("mt5", "t5"), ("t5", "t5"), ("gte", "new")];
    let own = families.iter().find(|f| name.starts_with(*f)).copied();
    own.or_else(|| shared.iter().find(|(start, _)| name.starts_with(start)).map(|(_, f)| *f)).unwrap_or("bert")
}

/// Every pair: a checkpoint loads under no other model type, and where the configuration makes sense under it, one
/// sentence says whose tensors they are.
#[test]
fn a_checkpoint_under_another_model_type_says_whose_it_is() {
    let mut named = 0;
    for name in CHECKPOINTS {
        let copy = Copy::new(name);
        let config = copy.config();
        for (model_type, _) in ModelArchitecture::ALL {
            if config["model_type"] == *model_type {
                continue;
            }
            for mut config in [config.clone(), in_every_tongue(config.clone())] {
                config["model_type"] = json!(model_type);
                copy.write_config(&config);
                if alike(name, model_type) {
                    assert!(copy.load().is_ok(), "{name} as {model_type} does not load");
                    continue;
                }
                match copy.refused(&format!("{name} as {model_type}")) {
                    InferError::ModelIncompatible { key, expected, found } if key == "model_type" => {
                        let of = ["roberta", "electra"].into_iter().find(|f| expected.contains(&format!("\"{f}\"")));
                        let family = match of {
                            Some(prefix) => prefix,
                            // Both write these names.
                            None if name == "gte-native-names" => "nomic_bert",
                            None => family(name),
                        };
                        assert_eq!(expected, format!("\"{family}\", whose tensors the checkpoint holds"), "{name}");
                        assert_eq!(found, format!("\"{model_type}\""), "{name}");
                        named += 1;
                    }
                    _ => {}
                }
            }
        }
    }
    assert!(named >= 900, "only {named} say whose tensors they are");
}

/// A checkpoint that lacks a layer is its own family's all the same: the tensor is named.
#[test]
fn a_checkpoint_that_lacks_a_layer_is_not_taken_for_another_familys() {
    for name in encoders().into_iter().chain(decoders()) {
        let copy = Copy::new(&name);
        let mut config = copy.config();
        let key = SYNONYMS[1].iter().find(|key| config.get(**key).is_some()).unwrap();
        let layers = config[*key].as_u64().unwrap();
        config[*key] = json!(layers + 1);
        for list in ["layer_types", "sliding_window_pattern"] {
            config.as_object_mut().unwrap().remove(list);
        }
        copy.write_config(&config);
        // ALBERT's layers share what is stored.
        if name.starts_with("albert") && copy.load().is_ok() {
            continue;
        }
        let error = copy.refused(&name);
        assert!(matches!(error, InferError::TensorError { .. }), "{name}: {error}");
    }
}
