//! What folders in the layouts of several sentence-transformers versions say, and what is refused.

mod common;

use std::path::PathBuf;

use kin_infer::InferError;
use kin_infer::gpu::Activation;
use kin_infer::modules::{Expansion, ModelFolder, Module, Output, PoolingMode, SparsePooling, Task, TokenFilter};
use serde_json::{Value, json};

/// A folder under the system's temporary folder, removed at the end.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("kin-infer-modules-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        Self(folder)
    }

    fn file(&self, name: &str, value: Value) -> &Self {
        let file = self.0.join(name);
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(file, value.to_string()).unwrap();
        self
    }

    /// modules.json with `sentence_transformers.models.<class>` in `<index>_<class>`, the transformer at the top.
    fn modules(&self, classes: &[&str]) -> &Self {
        let entry = |(index, class): (usize, &&str)| {
            let path = if index == 0 { String::new() } else { format!("{index}_{class}") };
            json!({"idx": index, "name": index.to_string(), "path": path,
                   "type": format!("sentence_transformers.models.{class}")})
        };
        self.file("modules.json", classes.iter().enumerate().map(entry).collect())
    }

    fn read(&self) -> ModelFolder {
        ModelFolder::read(&self.0).unwrap()
    }

    fn error(&self) -> InferError {
        ModelFolder::read(&self.0).unwrap_err()
    }

    #[track_caller]
    fn refused(&self, words: &[&str]) {
        let error = self.error();
        let message = error.to_string();
        assert!(matches!(error, InferError::ModelError { .. } | InferError::ModelIncompatible { .. }), "{message}");
        for word in words {
            assert!(message.contains(word), "{message:?} lacks {word:?}");
        }
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn pooling(module: &Module) -> &[PoolingMode] {
    match module {
        Module::Pooling(pooling) => &pooling.modes,
        other => panic!("{other:?}"),
    }
}

#[test]
fn minilm_reads() {
    let Some(folder) = common::minilm("minilm_reads") else { return };
    let model = ModelFolder::read(&folder).unwrap();
    assert_eq!(model.transformer_dir, folder);
    assert_eq!(pooling(&model.modules[0]), [PoolingMode::Mean]);
    assert_eq!(model.modules[1..], [Module::Normalize]);
    assert!(model.prompts.is_empty() && !model.assumed_pooling);
}

#[test]
fn without_modules_json_mean_and_normalise_are_assumed() {
    let folder = Folder::new("bare");
    folder.file("config_sentence_transformers.json", json!({"prompts": {"query": "q: "}}));
    let model = folder.read();
    assert!(model.assumed_pooling);
    assert_eq!(model.transformer_dir, folder.0);
    assert_eq!(pooling(&model.modules[0]), [PoolingMode::Mean]);
    assert_eq!(model.modules[1..], [Module::Normalize]);
    assert_eq!(model.prompts["query"], "q: ");
    assert!(ModelFolder::read(&folder.0.join("absent")).is_err());
}

#[test]
fn a_full_folder_reads() {
    let folder = Folder::new("full");
    std::fs::create_dir_all(folder.0.join("0_Transformer")).unwrap();
    let class = |module: &str| format!("sentence_transformers.{module}");
    folder
        .file(
            "modules.json",
            json!([
                {"idx": 0, "name": "0", "path": "0_Transformer", "type": class("base.modules.transformer.Transformer")},
                {"idx": 1, "name": "1", "path": "1_Pooling", "type": class("sentence_transformer.modules.pooling.Pooling")},
                {"idx": 2, "name": "2", "path": "2_Dropout", "type": class("models.Dropout")},
                {"idx": 3, "name": "3", "path": "3_Dense", "type": class("base.modules.dense.Dense")},
                {"idx": 4, "name": "4", "path": "4_LayerNorm", "type": class("models.LayerNorm")},
                {"idx": 5, "name": "5", "path": "5_Normalize", "type": class("base.modules.normalize.Normalize")},
            ]),
        )
        .file(
            "1_Pooling/config.json",
            json!({"embedding_dimension": 4, "pooling_mode": ["mean", "cls"], "include_prompt": false}),
        )
        .file(
            "3_Dense/config.json",
            json!({"in_features": 8, "out_features": 3, "bias": false,
                   "activation_function": "torch.nn.modules.linear.Identity",
                   "module_input_name": "sentence_embedding", "module_output_name": "sentence_embedding"}),
        )
        .file("4_LayerNorm/config.json", json!({"dimension": 3}))
        .file(
            "config_sentence_transformers.json",
            json!({"prompts": {"query": "query: ", "document": "", "none": null}, "default_prompt_name": "query",
                   "similarity_fn_name": "dot", "truncate_dim": 2}),
        );
    let model = folder.read();
    assert_eq!(model.transformer_dir, folder.0.join("0_Transformer"));
    let [Module::Pooling(pooling), Module::Dense(dense), Module::LayerNorm(norm), Module::Normalize] =
        model.modules.as_slice()
    else {
        panic!("{:?}", model.modules)
    };
    assert_eq!(pooling.modes, [PoolingMode::Mean, PoolingMode::Cls]);
    assert_eq!((pooling.include_prompt, pooling.dimension), (false, Some(4)));
    assert_eq!((dense.in_features, dense.out_features, dense.bias), (8, 3, false));
    assert_eq!(dense.activation, Activation::Identity);
    assert_eq!(dense.dir, folder.0.join("3_Dense"));
    assert_eq!((norm.dimension, &norm.dir), (3, &folder.0.join("4_LayerNorm")));
    assert_eq!(model.prompts.len(), 2);
    assert_eq!(model.default_prompt_name.as_deref(), Some("query"));
    assert_eq!((model.truncate_dim, model.similarity.as_deref()), (Some(2), Some("dot")));
}

#[test]
fn pooling_modes_of_both_forms() {
    use PoolingMode::*;
    let all = [
        ("pooling_mode_lasttoken", "lasttoken", LastToken),
        ("pooling_mode_weightedmean_tokens", "weightedmean", WeightedMean),
        ("pooling_mode_mean_sqrt_len_tokens", "mean_sqrt_len_tokens", MeanSqrtLen),
        ("pooling_mode_mean_tokens", "mean", Mean),
        ("pooling_mode_max_tokens", "max", Max),
        ("pooling_mode_cls_token", "cls", Cls),
    ];
    let read = |config: Value| {
        let folder = Folder::new("modes");
        folder.modules(&["Transformer", "Pooling"]).file("1_Pooling/config.json", config);
        pooling(&folder.read().modules[0]).to_vec()
    };
    for (key, name, mode) in all {
        assert_eq!(read(json!({key: true})), [mode]);
        assert_eq!(read(json!({"pooling_mode": name})), [mode]);
        assert_eq!(read(json!({"pooling_mode": [name, "max"]})), [mode, Max]);
    }
    let old: Value =
        all.iter().map(|(key, ..)| ((*key).to_owned(), json!(true))).collect::<serde_json::Map<_, _>>().into();
    assert_eq!(read(old), [Cls, Max, Mean, MeanSqrtLen, WeightedMean, LastToken]);
    assert_eq!(read(json!({"pooling_mode": "cls", "pooling_mode_mean_tokens": true})), [Cls]);
}

#[test]
fn bad_pooling_is_refused() {
    for (config, words) in [
        (json!({"word_embedding_dimension": 4}), ["1_Pooling", "no pooling mode"]),
        (json!({"pooling_mode_mean_tokens": false}), ["1_Pooling", "no pooling mode"]),
        (json!({"pooling_mode": []}), ["1_Pooling", "no pooling mode"]),
        (json!({"pooling_mode": "cls+mean"}), ["1_Pooling/config.json: pooling_mode", "cls+mean"]),
        (json!({"pooling_mode": 3}), ["1_Pooling", "`pooling_mode` is 3"]),
        (json!({"pooling_mode_mean_tokens": "yes"}), ["1_Pooling", "`pooling_mode_mean_tokens` is \"yes\""]),
        (json!({"pooling_mode_median": true}), ["1_Pooling/config.json: pooling_mode_median", "true"]),
        (json!({"pooling_mode": "cls", "include_prompt": 1}), ["1_Pooling", "`include_prompt` is 1"]),
        (json!({"pooling_mode": "cls", "embedding_dimension": -4}), ["1_Pooling", "`embedding_dimension` is -4"]),
        (json!([]), ["1_Pooling", "JSON object"]),
    ] {
        let folder = Folder::new("bad-pooling");
        folder.modules(&["Transformer", "Pooling"]).file("1_Pooling/config.json", config).refused(&words);
    }
    let folder = Folder::new("no-pooling-file");
    folder.modules(&["Transformer", "Pooling"]).refused(&["1_Pooling", "missing"]);
}

#[test]
fn dense_activations() {
    let read = |config: Value| {
        let folder = Folder::new("dense");
        folder
            .modules(&["Transformer", "Pooling", "Dense"])
            .file("1_Pooling/config.json", json!({"pooling_mode": "mean", "embedding_dimension": 4}))
            .file("2_Dense/config.json", config);
        ModelFolder::read(&folder.0)
    };
    for (path, expected) in [
        ("torch.nn.modules.activation.Tanh", Activation::Tanh),
        ("torch.nn.modules.linear.Identity", Activation::Identity),
        ("torch.nn.modules.activation.ReLU", Activation::Relu),
        ("torch.nn.modules.activation.GELU", Activation::GeluErf),
        ("torch.nn.modules.activation.Sigmoid", Activation::Sigmoid),
        ("torch.nn.modules.activation.SiLU", Activation::Silu),
    ] {
        let model = read(json!({"in_features": 4, "out_features": 2, "activation_function": path})).unwrap();
        assert!(matches!(&model.modules[1], Module::Dense(dense) if dense.activation == expected && dense.bias));
    }
    let default = read(json!({"in_features": 4, "out_features": 2})).unwrap();
    assert!(matches!(&default.modules[1], Module::Dense(dense) if dense.activation == Activation::Tanh));
    let base = json!({"in_features": 4, "out_features": 2});
    for (key, value, word) in [
        ("activation_function", json!("torch.nn.modules.activation.Mish"), "activation.Mish"),
        ("activation_function", json!("my.own.Tanh"), "my.own.Tanh"),
        ("activation_function", json!(1), "`activation_function` is 1"),
        ("use_residual", json!(true), "use_residual"),
        ("module_input_name", json!("token_embeddings"), "sentence_embedding after Pooling"),
        ("module_output_name", json!("token_embeddings"), "sentence_embedding, its input"),
        ("in_features", json!(5), "takes 5 values"),
        ("in_features", json!(null), "`in_features` is missing"),
        ("out_features", json!(0), "`out_features` is 0"),
        ("bias", json!("no"), "`bias` is \"no\""),
    ] {
        let mut config = base.clone();
        config[key] = value;
        let message = read(config).unwrap_err().to_string();
        assert!(message.contains(word), "{message}");
    }
}

#[test]
fn module_lists_that_are_refused() {
    let pooling = json!({"pooling_mode": "mean"});
    for (classes, word) in [
        (&["Pooling", "Transformer"][..], "Transformer first"),
        (&["Transformer"], "no Pooling"),
        (&["Transformer", "Normalize"], "Pooling between"),
        (&["Transformer", "Pooling", "Pooling"], "one Pooling"),
        (&["Transformer", "Pooling", "LSTM"], "sentence_transformers.models.LSTM"),
        (&["Transformer", "Pooling", "Router"], "sentence_transformers.models.Router"),
        (&["Router"], "sentence_transformers.models.Router"),
        (&["SparseStaticEmbedding"], "sentence_transformers.models.SparseStaticEmbedding"),
        (&["Transformer", "SparseAutoEncoder"], "sentence_transformers.models.SparseAutoEncoder"),
        (&["Transformer", "SpladePooling"], "right after an MLMTransformer"),
        (&["MLMTransformer"], "no SpladePooling"),
        (&["MLMTransformer", "Pooling"], "SpladePooling alone"),
        (&["Transformer", "MultiVectorMask", "Pooling"], "MultiVectorMask leaves"),
        (&["Transformer", "Pooling", "MultiVectorMask"], "sentence_transformers.models.MultiVectorMask"),
        (&["Transformer", "HierarchicalTokenPooling"], "HierarchicalTokenPooling"),
        (&[], "non-empty list"),
    ] {
        let folder = Folder::new("lists");
        let all = json!({});
        folder.modules(classes).file("1_Pooling/config.json", pooling.clone());
        folder.file("1_MultiVectorMask/config.json", all.clone()).file("2_Pooling/config.json", pooling.clone());
        folder.file("1_SpladePooling/config.json", all).refused(&["modules.json", word]);
    }
    for path in ["../elsewhere", "/etc", "1_Pooling/../../x", "a\\..\\b"] {
        let folder = Folder::new("paths");
        let list = json!([{"path": "", "type": "sentence_transformers.models.Transformer"},
                          {"path": path, "type": "sentence_transformers.models.Pooling"}]);
        folder.file("modules.json", list).refused(&["modules.json", "inside the model folder"]);
    }
    for (entry, word) in [
        (json!({"path": "", "type": "custom_st.Transformer"}), "custom_st.Transformer"),
        (json!({"path": "absent", "type": "sentence_transformers.models.Transformer"}), "absent"),
        (json!({"path": 1, "type": "sentence_transformers.models.Transformer"}), "`path` is 1"),
        (json!({"path": ""}), "`type` is missing"),
        (json!("Transformer"), "not an object"),
    ] {
        let folder = Folder::new("entries");
        folder.file("modules.json", json!([entry])).refused(&["modules.json", word]);
    }
    let folder = Folder::new("broken");
    std::fs::write(folder.0.join("modules.json"), "[").unwrap();
    folder.refused(&["modules.json", "not valid JSON"]);
}

#[test]
fn bad_settings_are_refused() {
    for (config, word) in [
        (json!({"prompts": "query: "}), "`prompts` is"),
        (json!({"prompts": {"query": 1}}), "`prompts.query` is 1"),
        (json!({"default_prompt_name": "query"}), "`default_prompt_name` is `query`"),
        (json!({"truncate_dim": 0}), "`truncate_dim` is 0"),
        (json!({"similarity_fn_name": 1}), "`similarity_fn_name` is 1"),
    ] {
        let folder = Folder::new("settings");
        folder.file("config_sentence_transformers.json", config);
        folder.refused(&["config_sentence_transformers.json", word]);
    }
}

#[test]
fn sparse_folders_read() {
    let read = |first: &str, settings: Value, config: Value| {
        let folder = Folder::new("sparse");
        folder.modules(&[first, "SpladePooling"]).file("1_SpladePooling/config.json", config);
        folder.file("sentence_bert_config.json", settings);
        folder.file("config_sentence_transformers.json", json!({"max_active_dims": 64}));
        ModelFolder::read(&folder.0)
    };
    let by_task = json!({"transformer_task": "fill-mask"});
    for (first, settings) in [("MLMTransformer", json!({})), ("Transformer", by_task.clone())] {
        let model = read(first, settings, json!({})).unwrap();
        assert_eq!((model.task, model.output(), model.max_active_dims), (Task::FillMask, Output::Sparse, Some(64)));
        assert_eq!(model.modules, [Module::Splade(SparsePooling::default())]);
    }
    let config = json!({"pooling_strategy": "sum", "activation_function": "log1p_relu", "embedding_dimension": null});
    let model = read("MLMTransformer", json!({}), config).unwrap();
    assert_eq!(model.modules, [Module::Splade(SparsePooling { sum: true, twice: true })]);
    for (key, value) in [("pooling_strategy", "mean"), ("activation_function", "gelu")] {
        let message = read("Transformer", by_task.clone(), json!({key: value})).unwrap_err().to_string();
        assert!(message.contains(key) && message.contains(value), "{message}");
    }
    let message = read("Transformer", json!({"transformer_task": "any-to-any"}), json!({})).unwrap_err().to_string();
    assert!(message.contains("any-to-any") && message.contains("fill-mask"), "{message}");
}

/// What sentence-transformers would hand on to the model or its tokenizer is refused where it says what is computed.
#[test]
fn arguments_that_change_what_is_computed_are_refused() {
    let read = |settings: Value| {
        let folder = Folder::new("arguments");
        folder
            .modules(&["Transformer", "Pooling"])
            .file("1_Pooling/config.json", json!({"pooling_mode_cls_token": true}));
        folder.file("sentence_bert_config.json", settings);
        ModelFolder::read(&folder.0)
    };
    for harmless in [
        json!({"model_args": {}, "tokenizer_args": {"use_fast": true}, "config_args": null}),
        json!({"model_kwargs": {"torch_dtype": "bfloat16", "attn_implementation": "sdpa"}, "config_kwargs": {"use_cache": false}}),
    ] {
        assert_eq!(read(harmless).unwrap().modules.len(), 1);
    }
    for (settings, expected) in [
        (json!({"config_args": {"num_hidden_layers": 3}}), "config_args.num_hidden_layers"),
        (json!({"config_kwargs": {"is_causal": false}}), "config_kwargs.is_causal"),
        (json!({"tokenizer_args": {"model_max_length": 64}}), "tokenizer_args.model_max_length"),
        (json!({"processor_kwargs": {"add_eos_token": true}}), "processor_kwargs.add_eos_token"),
        (json!({"model_args": {"default_task": "retrieval"}}), "model_args.default_task"),
        (json!({"model_args": ["add_pooling_layer"]}), "`model_args` is [\"add_pooling_layer\"], expected an object"),
    ] {
        let message = read(settings).unwrap_err().to_string();
        assert!(message.contains("sentence_bert_config.json") && message.contains(expected), "{message}");
    }
}

#[test]
fn a_cross_encoders_folder_reads() {
    let folder = Folder::new("cross");
    folder
        .modules(&["Transformer"])
        .file("sentence_bert_config.json", json!({"transformer_task": "sequence-classification"}));
    let model = folder.read();
    assert_eq!((model.task, model.output()), (Task::Classification, Output::Scores));
    assert!(model.modules.is_empty() && !model.assumed_pooling);
}

#[test]
fn modules_of_token_vectors_read() {
    let tokens = json!({"module_input_name": "token_embeddings", "module_output_name": "token_embeddings"});
    let mut dense = json!({"in_features": 8, "out_features": 4, "bias": false});
    dense.as_object_mut().unwrap().extend(tokens.as_object().unwrap().clone());
    let folder = Folder::new("late");
    folder.modules(&["Transformer", "Dense", "MultiVectorMask", "Normalize"]);
    folder.file("1_Dense/config.json", dense.clone()).file("3_Normalize/config.json", tokens);
    let mask = json!({"skiplist_words": [",", "."], "skiplist_tasks": "query", "keep_only_token_ids": [3, 9]});
    folder.file("2_MultiVectorMask/config.json", mask);
    let expansion = json!({"strategy": "fixed", "attend": true, "token": "[X]", "length": 32});
    let settings = json!({"query_length": 48, "document_length": 300, "query_expansion": expansion});
    let model = folder.file("sentence_bert_config.json", settings).read();
    assert_eq!(model.output(), Output::TokenVectors);
    let skipped = vec![",".to_owned(), ".".to_owned()];
    let filter = TokenFilter { skipped, of_queries: true, of_documents: false, only: Some(vec![3, 9]) };
    assert!(matches!(&model.modules[0], Module::Dense(d) if d.out_features == 4));
    assert_eq!(model.modules[1..], [Module::TokenFilter(filter), Module::Normalize]);
    assert_eq!((model.late.query_length, model.late.document_length), (Some(48), Some(300)));
    let token = Some("[X]".to_owned());
    assert_eq!(model.late.expansion, Some(Expansion { length: 32, fixed: true, attend: true, token }));
    // Before a pooling they are steps of one vector's way; their widths are compared.
    let pooled = Folder::new("projected");
    pooled.modules(&["Transformer", "Dense", "Pooling"]).file("1_Dense/config.json", dense);
    pooled.file("2_Pooling/config.json", json!({"pooling_mode": "mean", "embedding_dimension": 4}));
    assert_eq!(pooled.read().output(), Output::Vector);
    pooled.file("2_Pooling/config.json", json!({"pooling_mode": "mean", "embedding_dimension": 8}));
    pooled.refused(&["modules.json", "takes 8 values, the modules before it give 4"]);
    pooled.file("2_Pooling/config.json", json!({"pooling_mode": "mean"}));
    pooled
        .file("sentence_bert_config.json", json!({"query_length": 32}))
        .refused(&["query_length", "one vector a token"]);
    folder.file("sentence_bert_config.json", json!({"query_expansion": {"strategy": "most", "length": 3}}));
    folder.refused(&["query_expansion.strategy", "most"]);
}

#[test]
fn pylates_layout_reads() {
    let folder = Folder::new("pylate");
    let list = json!([{"path": "", "type": "sentence_transformers.models.Transformer"},
                      {"path": "1_Dense", "type": "pylate.models.Dense.Dense"}]);
    folder.file("modules.json", list).file("1_Dense/config.json", json!({"in_features": 8, "out_features": 4}));
    let settings = json!({"model_type": "ColBERT", "query_prefix": "[Q] ", "document_prefix": "[D] ", "query_length": 20,
                          "document_length": 180, "prompts": {"query": "[Q] find: "}});
    let model = folder.file("config_sentence_transformers.json", settings.clone()).read();
    assert_eq!(model.output(), Output::TokenVectors);
    let [Module::Dense(_), Module::TokenFilter(filter), Module::Normalize] = model.modules.as_slice() else {
        panic!("{:?}", model.modules)
    };
    assert!(filter.skipped.len() == 32 && filter.of_documents && !filter.of_queries);
    assert_eq!((model.prompts["query"].as_str(), model.prompts["document"].as_str()), ("[Q] find: ", "[D] "));
    assert_eq!(model.late.marks, ["[Q] ", "[D] "]);
    assert_eq!((model.late.query_length, model.late.document_length), (None, Some(180)));
    let expansion = Expansion { length: 20, fixed: true, attend: false, token: None };
    assert_eq!(model.late.expansion, Some(expansion));
    let mut settings = settings;
    settings["do_query_expansion"] = json!(false);
    settings["skiplist_words"] = json!(["a"]);
    let model = folder.file("config_sentence_transformers.json", settings.clone()).read();
    assert_eq!((model.late.query_length, model.late.expansion.is_none()), (Some(20), true));
    assert!(matches!(&model.modules[1], Module::TokenFilter(f) if f.skipped == ["a"]));
    settings["skiplist_words"] = json!("a");
    folder.file("config_sentence_transformers.json", settings).refused(&["`skiplist_words` is \"a\""]);
}
