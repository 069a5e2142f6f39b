//! Whole folders, text to vector, against sentence-transformers in float64.

mod common;

use common::{Reference, assert_close, fixture, minilm};
use kin_infer::embedder::{
    Counted, Role, SparseEmbedder, SparseOptions, SparseVector, TokenOptions, TokenVectors, max_sim,
};
use kin_infer::gpu::create_compute;
use kin_infer::modules::{ModelFolder, PoolingMode};
use kin_infer::{EmbedOptions, Embedder, InferError, Prompt, Reranker, dot_product};

fn texts(name: &str) -> Vec<String> {
    serde_json::from_str(&std::fs::read_to_string(fixture(name).join("texts.json")).unwrap()).unwrap()
}

/// Embeds the fixture's texts in one call and each alone, and compares both with the reference.
fn check(embedder: &Embedder, name: &str, kind: &str, options: &EmbedOptions, bound: f64) {
    let (texts, reference) = (texts(name), Reference::open(name));
    let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    let vectors = embedder.embed_with(&texts, options).unwrap();
    assert_eq!(vectors.len(), texts.len());
    for (i, vector) in vectors.iter().enumerate() {
        let expected = reference.values(&format!("{kind}.{i}")).unwrap();
        assert_close(&format!("{name}: {kind} {i}"), vector, &expected, bound);
        let alone = embedder.embed_with(&texts[i..=i], options).unwrap();
        assert_eq!(&alone[0], vector, "{name}: {kind} {i} alone");
    }
}

#[test]
fn every_module_of_a_folder_takes_part() {
    let embedder = Embedder::load(&fixture("st-tiny")).unwrap();
    assert_eq!((embedder.dimension(), embedder.window().limit), (24, 24));
    assert!(embedder.assumptions().is_empty());
    check(&embedder, "st-tiny", "text", &EmbedOptions::default(), 2e-5);
    let query = EmbedOptions { prompt: Prompt::Named("query".into()), dimensions: None };
    check(&embedder, "st-tiny", "query", &query, 2e-5);
    let as_text = EmbedOptions { prompt: Prompt::Text("query: ".into()), dimensions: None };
    check(&embedder, "st-tiny", "query", &as_text, 2e-5);
    let all = texts("st-tiny");
    assert_eq!(embedder.embed_query(&all[3]).unwrap(), embedder.embed_with(&[&all[3]], &query).unwrap()[0]);
    assert_eq!(embedder.embed_documents(&[&all[3]]).unwrap(), embedder.embed(&[&all[3]]).unwrap());
}

#[test]
fn shorter_vectors_are_the_leading_values_normalised_again() {
    let embedder = Embedder::load(&fixture("st-tiny")).unwrap();
    let text = "some words to embed";
    let whole = embedder.embed(&[text]).unwrap().remove(0);
    let options = EmbedOptions { dimensions: Some(7), ..Default::default() };
    let cut = embedder.embed_with(&[text], &options).unwrap().remove(0);
    let norm = whole[..7].iter().map(|v| f64::from(*v).powi(2)).sum::<f64>().sqrt();
    let expected: Vec<f64> = whole[..7].iter().map(|v| f64::from(*v) / norm).collect();
    assert_close("7 dimensions", &cut, &expected, 1e-6);
    let as_document = embedder.embed_documents_with(&[text], Some(7)).unwrap().remove(0);
    assert_eq!(as_document, cut, "the document prompt is empty");
    let query = EmbedOptions { prompt: Prompt::Named("query".into()), dimensions: Some(7) };
    let query = embedder.embed_with(&[text], &query).unwrap().remove(0);
    assert_eq!(embedder.embed_query_with(text, Some(7)).unwrap(), query);
}

/// A folder of st-tiny's transformer and tokenizer and the given files, removed at the end.
struct Folder(std::path::PathBuf);

impl Folder {
    fn new(test: &str, files: &[(&str, &str)]) -> Self {
        let folder = std::env::temp_dir().join(format!("kin-infer-{}-{test}", std::process::id()));
        for file in ["config.json", "model.safetensors", "tokenizer.json"] {
            std::fs::create_dir_all(&folder).unwrap();
            std::fs::copy(fixture("st-tiny").join(file), folder.join(file)).unwrap();
        }
        for (name, text) in files {
            std::fs::create_dir_all(folder.join(name).parent().unwrap()).unwrap();
            std::fs::write(folder.join(name), text).unwrap();
        }
        Self(folder)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn a_folder_without_modules_is_mean_pooled_and_says_so() {
    let folder = Folder::new("plain", &[]);
    let folder = &folder.0;
    let embedder = Embedder::load(folder).unwrap();
    let said = embedder.assumptions();
    assert!(said.len() == 1 && said[0].contains("no modules.json"), "{said:?}");
    let text = "let x = 1;";
    let vector = embedder.embed(&[text]).unwrap().remove(0);
    let tokens = embedder.embed_tokens(&[text]).remove(0).unwrap();
    let mut mean = vec![0f64; 32];
    tokens.chunks(32).for_each(|t| mean.iter_mut().zip(t).for_each(|(m, x)| *m += f64::from(*x)));
    let norm = mean.iter().map(|m| m * m).sum::<f64>().sqrt();
    mean.iter_mut().for_each(|m| *m /= norm);
    assert_close("mean of the tokens", &vector, &mean, 1e-6);
}

/// Runs `work` with one thread and with two.
fn with_threads<T: Send>(work: impl Fn() -> T + Sync) -> [T; 2] {
    [1, 2].map(|n| rayon::ThreadPoolBuilder::new().num_threads(n).build().unwrap().install(&work))
}

#[test]
fn poolings_in_place_of_the_folders_are_those_of_sentence_transformers() {
    use PoolingMode::*;
    let list = r#"[{"path": "", "type": "sentence_transformers.models.Transformer"},
                   {"path": "1_Pooling", "type": "sentence_transformers.models.Pooling"}]"#;
    let pooling = r#"{"word_embedding_dimension": 32, "pooling_mode_mean_tokens": true}"#;
    let settings = r#"{"max_seq_length": 24}"#;
    let files = [("modules.json", list), ("1_Pooling/config.json", pooling), ("sentence_bert_config.json", settings)];
    let folder = Folder::new("poolings", &files);
    let names = [
        (Cls, "cls"),
        (Max, "max"),
        (Mean, "mean"),
        (MeanSqrtLen, "mean_sqrt_len_tokens"),
        (WeightedMean, "weightedmean"),
        (LastToken, "lasttoken"),
    ];
    let (texts, reference) = (texts("st-tiny"), Reference::open("st-poolings"));
    let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    let load = |modes: &[PoolingMode]| {
        let mut folder = ModelFolder::read(&folder.0).unwrap();
        folder.pool_with(modes).unwrap();
        Embedder::from_folder(folder, create_compute().unwrap()).unwrap()
    };
    for (mode, name) in names {
        for (i, vector) in load(&[mode]).embed(&texts).unwrap().iter().enumerate() {
            let expected = reference.values(&format!("{name}.{i}")).unwrap();
            assert_close(&format!("{name} {i}"), vector, &expected, 2e-5);
        }
    }
    let both = load(&[Max, Cls]).embed(&texts[2..3]).unwrap().remove(0);
    assert_eq!(both[..32], load(&[Max]).embed(&texts[2..3]).unwrap()[0]);
    assert_eq!(both[32..], load(&[Cls]).embed(&texts[2..3]).unwrap()[0]);
    // st-tiny's Dense takes three vectors side by side.
    let mut tiny = ModelFolder::read(&fixture("st-tiny")).unwrap();
    let message = tiny.pool_with(&[Mean]).unwrap_err().to_string();
    assert!(message.contains("give 32 values") && message.contains("takes 96"), "{message}");
    tiny.pool_with(&[Cls, Max, Mean]).unwrap();
    let same = Embedder::from_folder(tiny, create_compute().unwrap()).unwrap().embed(&texts).unwrap();
    assert_eq!(same, Embedder::load(&fixture("st-tiny")).unwrap().embed(&texts).unwrap());
}

#[test]
fn token_vectors_are_what_the_pooling_takes() {
    let embedder = Embedder::load(&fixture("st-tiny")).unwrap();
    let (texts, reference) = (texts("st-tiny"), Reference::open("st-poolings"));
    let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    let plain = embedder.embed_tokens(&texts);
    for (i, vectors) in plain.iter().enumerate() {
        let expected = reference.values(&format!("tokens.{i}")).unwrap();
        assert_close(&format!("tokens {i}"), vectors.as_ref().unwrap(), &expected, 2e-5);
    }
    let options = TokenOptions { normalize: true, ..TokenOptions::default() };
    let found = embedder.embed_tokens_with(&texts, &options).unwrap();
    for (i, (found, plain)) in found.into_iter().zip(plain).enumerate() {
        let Counted { value, tokens, truncated } = found.unwrap();
        assert_eq!((tokens, truncated), (value.ids.len(), i == 9), "the last text is longer than the window");
        assert_eq!(tokens * embedder.token_dimension(), value.vectors.len());
        for (row, plain) in value.vectors.chunks_exact(32).zip(plain.unwrap().chunks_exact(32)) {
            let norm = plain.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>().sqrt();
            let expected: Vec<f64> = plain.iter().map(|v| f64::from(*v) / norm).collect();
            assert_close("a unit vector", row, &expected, 1e-6);
        }
    }
}

#[test]
fn late_interaction_is_that_of_sentence_transformers() {
    for name in ["st-colbert", "st-pylate"] {
        let embedder = Embedder::load(&fixture(name)).unwrap();
        let (texts, reference) = (texts("st-tiny"), Reference::open(name));
        let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
        for (kind, role) in [("text", Role::Neither), ("query", Role::Query), ("document", Role::Document)] {
            let options = embedder.token_options_for(role);
            let run = || embedder.embed_tokens_with(&texts, &options).unwrap();
            let [one, two] = with_threads(|| run().into_iter().map(Result::unwrap).collect::<Vec<_>>());
            assert_eq!(one, two, "{name}: {kind} with one thread and with two");
            for (i, found) in one.into_iter().enumerate() {
                let what = format!("{name}: {kind} {i}");
                let expected = reference.values(&format!("{kind}.{i}")).unwrap();
                assert_close(&what, &found.value.vectors, &expected, 2e-5);
                assert_eq!(found.value.ids.len() * 12, found.value.vectors.len());
                let alone = embedder.embed_tokens_with(&texts[i..=i], &options).unwrap().remove(0).unwrap();
                assert_eq!(alone, found, "{what} alone");
            }
        }
        let message = embedder.embed(&["a"]).unwrap_err().to_string();
        assert!(message.contains("embed_tokens"), "{message}");
        let message =
            ModelFolder::read(&fixture(name)).unwrap().pool_with(&[PoolingMode::Mean]).unwrap_err().to_string();
        assert!(message.contains("one vector a token"), "{message}");
    }
}

#[test]
fn max_sim_adds_the_best_of_each_query_vector() {
    let (query, document) = ([1.0, 0.0, 0.0, 2.0], [0.5, 0.25, -1.0, 3.0, 0.75, -0.5]);
    assert_eq!(max_sim(&query, &document, 2), 0.75 + 6.0);
    assert_eq!((max_sim(&query, &[], 2), max_sim(&[], &document, 2)), (0.0, 0.0));
}

/// The values of an indexed vector among zeros.
fn dense(vector: &SparseVector, len: usize) -> Vec<f32> {
    assert!(vector.indices.is_sorted_by(|a, b| a < b) && vector.values.iter().all(|v| *v != 0.0), "{vector:?}");
    let mut all = vec![0.0; len];
    vector.indices.iter().zip(&vector.values).for_each(|(i, v)| all[*i as usize] = *v);
    all
}

#[test]
fn sparse_vectors_are_those_of_sentence_transformers() {
    for (name, most) in [("st-splade", 160), ("st-splade-top", 12)] {
        let model = SparseEmbedder::load(&fixture(name)).unwrap();
        assert_eq!((model.dimension(), model.window().limit), (160, 24));
        assert!(model.assumptions().is_empty());
        let (texts, reference) = (texts("st-tiny"), Reference::open(name));
        let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
        for (kind, role) in [("text", Role::Neither), ("query", Role::Query), ("document", Role::Document)] {
            let options = model.options_for(role);
            let run = || model.embed_each_counted(&texts, &options).unwrap();
            let [one, two] = with_threads(|| run().into_iter().map(Result::unwrap).collect::<Vec<_>>());
            assert_eq!(one, two, "{name}: {kind} with one thread and with two");
            for (i, found) in one.into_iter().enumerate() {
                let what = format!("{name}: {kind} {i}");
                let expected = reference.values(&format!("{kind}.{i}")).unwrap();
                assert_close(&what, &dense(&found.value, 160), &expected, 2e-5);
                assert!(found.value.len() <= most && found.truncated == (i == 9), "{what}");
                assert_eq!(model.embed_with(&texts[i..=i], &options).unwrap()[0], found.value, "{what} alone");
            }
        }
        assert_eq!(
            model.embed_query(texts[4]).unwrap(),
            model.embed_with(&[texts[4]], &model.options_for(Role::Query)).unwrap()[0]
        );
        assert_eq!(
            model.embed_documents(&texts).unwrap(),
            model.embed(&texts).unwrap(),
            "its prompt is empty or absent"
        );
    }
}

#[test]
fn sparse_vectors_are_cut_and_multiplied_by_index() {
    let model = SparseEmbedder::load(&fixture("st-splade")).unwrap();
    let whole = model.embed(&["search the code"]).unwrap().remove(0);
    let options = SparseOptions { top: Some(5), ..SparseOptions::default() };
    let cut = model.embed_with(&["search the code"], &options).unwrap().remove(0);
    let least = cut.values.iter().copied().fold(f32::MAX, f32::min);
    assert_eq!((cut.len(), whole.values.iter().filter(|v| **v >= least).count()), (5, 5));
    assert_eq!(cut.dot(&whole), cut.dot(&cut));
    let (a, b) = (dense(&whole, 160), dense(&cut, 160));
    let product: f64 = a.iter().zip(&b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum();
    assert_close("dot", &[whole.dot(&cut)], &[product], 1e-6);
    let mut ties = SparseVector { indices: vec![1, 4, 6, 9], values: vec![2.0, -3.0, 2.0, 2.0] };
    ties.keep_largest(2);
    assert_eq!(ties, SparseVector { indices: vec![1, 4], values: vec![2.0, -3.0] });
    assert_eq!(SparseVector::from_dense(&[0.0, -0.0, 3.0]), SparseVector { indices: vec![2], values: vec![3.0] });
    assert!(model.term(132).is_some_and(|t| t == "hello") && model.term(160).is_none());
    let none = SparseOptions { top: Some(0), ..SparseOptions::default() };
    assert!(model.embed_with(&["a"], &none).unwrap_err().to_string().contains("0 values"));
}

#[test]
fn a_folder_of_another_kind_is_refused_by_what_it_lacks() {
    let error = SparseEmbedder::load(&fixture("st-tiny")).err().unwrap();
    assert!(
        matches!(&error, InferError::TensorError { tensor, .. } if tensor == "cls.predictions.transform.dense.weight")
    );
    assert!(error.to_string().contains("masked language model"), "{error}");
    let error = Embedder::load(&fixture("st-splade")).err().unwrap().to_string();
    assert!(error.contains("SparseEmbedder"), "{error}");
    let error = Reranker::load(&fixture("st-splade")).err().unwrap().to_string();
    assert!(error.contains("ForSequenceClassification"), "{error}");
    // A checkpoint of the head alone is enough: what is done with it is assumed, and said.
    let folder = Folder::new("bare-splade", &[]);
    for file in ["config.json", "model.safetensors"] {
        std::fs::copy(fixture("st-splade").join(file), folder.0.join(file)).unwrap();
    }
    let model = SparseEmbedder::load(&folder.0).unwrap();
    assert!(model.assumptions()[0].contains("largest log(1 + relu(score))"), "{:?}", model.assumptions());
    assert!(!model.pooling().sum && !model.pooling().twice);
    let lists = r#"[{"path": "", "type": "sentence_transformers.sparse_encoder.modules.sparse_static_embedding.SparseStaticEmbedding"}]"#;
    let folder = Folder::new("static", &[("modules.json", lists)]);
    let error = SparseEmbedder::load(&folder.0).err().unwrap().to_string();
    assert!(error.contains("SparseStaticEmbedding"), "{error}");
}

#[test]
fn queries_filled_up_with_tokens_that_nobody_attends_to_are_refused() {
    let settings = std::fs::read_to_string(fixture("st-pylate/config_sentence_transformers.json")).unwrap();
    let folder = Folder::new("expanded", &[]);
    for file in [
        "config.json",
        "model.safetensors",
        "tokenizer.json",
        "modules.json",
        "1_Dense/config.json",
        "1_Dense/model.safetensors",
    ] {
        std::fs::create_dir_all(folder.0.join(file).parent().unwrap()).unwrap();
        std::fs::copy(fixture("st-pylate").join(file), folder.0.join(file)).unwrap();
    }
    let settings = settings.replace("\"do_query_expansion\": false", "\"do_query_expansion\": true");
    std::fs::write(folder.0.join("config_sentence_transformers.json"), settings).unwrap();
    let embedder = Embedder::load(&folder.0).unwrap();
    let error = embedder.embed_tokens_with(&["a"], &embedder.token_options_for(Role::Query)).unwrap_err();
    assert!(matches!(error, InferError::ModelIncompatible { .. }) && error.to_string().contains("attend"), "{error}");
    let documents = embedder.embed_tokens_with(&["a"], &embedder.token_options_for(Role::Document)).unwrap();
    let same = Embedder::load(&fixture("st-pylate")).unwrap();
    let expected: Vec<_> = same.embed_tokens_with(&["a"], &same.token_options_for(Role::Document)).unwrap();
    let values = |all: Vec<kin_infer::Result<Counted<TokenVectors>>>| {
        all.into_iter().map(|r| r.unwrap().value).collect::<Vec<_>>()
    };
    assert_eq!(values(documents), values(expected));
}

#[test]
fn tokens_are_counted_and_cut_texts_marked() {
    let embedder = Embedder::load(&fixture("st-tiny")).unwrap();
    // [CLS], 22 letters, [SEP]: the window exactly.
    let texts = ["", &"a ".repeat(22), &"a ".repeat(23)];
    let counted = embedder.embed_each_counted(&texts, &EmbedOptions::default()).unwrap();
    let counts: Vec<_> = counted.iter().map(|c| c.as_ref().map(|c| (c.tokens, c.truncated)).unwrap()).collect();
    assert_eq!(counts, [(2, false), (24, false), (24, true)]);
    let plain = embedder.embed_each(&texts, &EmbedOptions::default()).unwrap();
    for (counted, plain) in counted.into_iter().zip(plain) {
        assert_eq!(counted.unwrap().value, plain.unwrap());
    }
    let query = EmbedOptions { prompt: Prompt::Named("query".into()), dimensions: None };
    let counted = embedder.embed_each_counted(&texts[1..2], &query).unwrap().remove(0).unwrap();
    assert_eq!((counted.tokens, counted.truncated), (24, true), "the prompt takes part of the window");
}

#[test]
fn minilm_agrees_with_sentence_transformers_on_twenty_texts() {
    let Some(folder) = minilm("minilm_agrees_with_sentence_transformers_on_twenty_texts") else { return };
    let embedder = Embedder::load(&folder).unwrap();
    assert_eq!((embedder.dimension(), embedder.window().limit), (384, 256));
    assert_eq!(texts("minilm").len(), 20);
    check(&embedder, "minilm", "text", &EmbedOptions::default(), 1e-5);
}

#[test]
fn minilm_finds_the_text_that_answers() {
    let Some(folder) = minilm("minilm_finds_the_text_that_answers") else { return };
    let embedder = Embedder::load(&folder).unwrap();
    let texts = ["fn sort(v: &mut [i32]) { v.sort() }", "the capital of France is Paris", "how to bake bread"];
    let vectors = embedder.embed(&texts).unwrap();
    let query = embedder.embed_query("which city is the French capital?").unwrap();
    let scores: Vec<f32> = vectors.iter().map(|v| dot_product(v, &query)).collect();
    assert!(scores[1] > scores[0] && scores[1] > scores[2], "{scores:?}");
}

/// MiniLM's bits, as the README publishes them.
#[test]
fn minilm_has_the_published_fingerprint() {
    let Some(folder) = minilm("minilm_has_the_published_fingerprint") else { return };
    let readme = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/README.md")).unwrap();
    let config = kin_infer::BertConfig::from_folder(&folder).unwrap();
    for kernels in kin_infer::cpu::available() {
        let compute = std::sync::Arc::new(kin_infer::cpu::CpuCompute::with_kernels(kernels));
        let model = kin_infer::BertModel::load_with_compute(&folder, config.clone(), compute).unwrap();
        let hash = kin_infer::fingerprint(&model).unwrap();
        let hex: String = hash.iter().map(|b| format!("{b:02x}")).collect();
        assert!(readme.contains(&hex), "{}: {hex} is not the fingerprint in README.md", kernels.name());
    }
}
