//! Quantised folders: which tensors become blocks, their bytes, and that nothing is left of what fails.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use kin_infer::quantize::{QuantizeOptions, QuantizeReport, quantize_folder};
use kin_infer::weights::{Checkpoint, Dtype, blocks};
use kin_infer::{BertConfig, BertModel, Embedder, InferError, Result, Sequence};
use sha2::{Digest, Sha256};

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)
}

/// A fresh folder, removed when the test ends.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let unique = format!("kin-infer-quantize-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(unique);
        fs::create_dir(&path).unwrap();
        Self(path)
    }

    /// A quantised copy of a fixture.
    fn quantise(&self, name: &str, dtype: Dtype, embeddings: bool) -> (PathBuf, QuantizeReport) {
        let output = self.0.join(format!("{name}-{dtype}-{embeddings}"));
        (output.clone(), quantise(&fixture(name), &output, dtype, embeddings).unwrap())
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).unwrap();
    }
}

fn quantise(source: &Path, output: &Path, dtype: Dtype, embeddings: bool) -> Result<QuantizeReport> {
    quantize_folder(source, output, &QuantizeOptions { dtype, embeddings }, &mut |_| {})
}

fn load(folder: &Path) -> BertModel {
    BertModel::load(folder, BertConfig::from_folder(folder).unwrap()).unwrap()
}

/// A copy inside the model's folder would be part of the model.
#[test]
fn an_output_inside_its_source_is_refused() {
    let folder = Folder::new();
    let source = folder.0.join("source");
    fs::create_dir(&source).unwrap();
    for file in ["config.json", "model.safetensors"] {
        fs::copy(fixture("bert-base").join(file), source.join(file)).unwrap();
    }
    for output in ["source/inside", "source/deeper/still", "source/../source/inside"] {
        let message = quantise(&source, &folder.0.join(output), Dtype::Q8_0, false).unwrap_err().to_string();
        assert!(message.contains("own folder"), "{message}");
    }
    quantise(&source, &folder.0.join("beside"), Dtype::Q8_0, false).unwrap();
}

/// A single file of another name than a checkpoint's goes on being one that the index names.
#[test]
fn one_shard_keeps_its_index() {
    let folder = Folder::new();
    let (source, output) = (folder.0.join("source"), folder.0.join("output"));
    fs::create_dir(&source).unwrap();
    let shard = "model-00001-of-00001.safetensors";
    fs::copy(fixture("qwen2-base").join("config.json"), source.join("config.json")).unwrap();
    fs::copy(fixture("qwen2-base").join("model.safetensors"), source.join(shard)).unwrap();
    let names = Checkpoint::open(&fixture("qwen2-base")).unwrap();
    let map: std::collections::BTreeMap<_, _> = names.names().map(|name| (name, shard)).collect();
    let index = serde_json::json!({"metadata": {}, "weight_map": map}).to_string();
    fs::write(source.join("model.safetensors.index.json"), index).unwrap();
    quantise(&source, &output, Dtype::Q8_0, false).unwrap();
    let (plain, _) = folder.quantise("qwen2-base", Dtype::Q8_0, false);
    let ids = || Sequence::new(vec![3, 1, 4, 1, 5]);
    let vectors = |folder: &Path| load(folder).encode(&[ids()]).remove(0).unwrap().hidden;
    assert_eq!(vectors(&output), vectors(&plain));
}

/// The values that blocks hold of these.
fn rounded(dtype: Dtype, values: &[f32]) -> Vec<u8> {
    let mut bytes = vec![0; values.len() / dtype.block_len() * dtype.size()];
    blocks::quantise(dtype, values, &mut bytes).unwrap();
    bytes
}

fn transposed(values: &[f32], columns: usize) -> Vec<f32> {
    let rows = values.len() / columns;
    (0..values.len()).map(|i| values[i % rows * columns + i / rows]).collect()
}

/// Every tensor of the copy is what the report says, and holds what it has to.
fn check_tensors(name: &str, copy: &Path, report: &QuantizeReport, dtype: Dtype) {
    let (before, after) = (Checkpoint::open(&fixture(name)).unwrap(), Checkpoint::open(copy).unwrap());
    assert_eq!(before.names().collect::<Vec<_>>(), after.names().collect::<Vec<_>>());
    let mut all: Vec<_> = report.quantised.iter().chain(&report.kept).map(String::as_str).collect();
    all.sort();
    assert_eq!(all, after.names().collect::<Vec<_>>());
    assert_eq!((report.bytes_before, report.bytes_after), (before.total_bytes(), after.total_bytes()));
    for tensor in after.names() {
        let (old, new) = (before.get(tensor).unwrap(), after.get(tensor).unwrap());
        assert_eq!(old.file().file_name(), new.file().file_name(), "{tensor}");
        if report.kept.iter().any(|kept| kept == tensor) {
            assert_eq!((old.dtype_name(), old.shape(), old.bytes()), (new.dtype_name(), new.shape(), new.bytes()));
            continue;
        }
        let mut values = old.to_f32().unwrap();
        let mut shape = old.shape().to_vec();
        if new.is_transposed() {
            values = transposed(&values, shape[1]);
            shape.reverse();
        }
        assert_eq!((new.dtype().unwrap(), new.shape()), (dtype, &shape[..]), "{tensor}");
        assert_eq!(new.bytes(), rounded(dtype, &values), "{tensor}");
    }
}

fn set<'a>(names: impl IntoIterator<Item = &'a str>) -> BTreeSet<String> {
    names.into_iter().map(str::to_string).collect()
}

#[test]
fn linear_weights_become_blocks_and_the_rest_stays() {
    let folder = Folder::new();
    for dtype in [Dtype::Q8_0, Dtype::Q4_0] {
        let (copy, report) = folder.quantise("bert-base", dtype, false);
        let layer = |l: usize| {
            ["attention.self.query", "attention.self.key", "attention.self.value", "attention.output.dense"]
                .into_iter()
                .chain(["intermediate.dense", "output.dense"])
                .map(move |part| format!("encoder.layer.{l}.{part}.weight"))
        };
        assert_eq!(report.quantised.iter().cloned().collect::<BTreeSet<_>>(), layer(0).chain(layer(1)).collect());
        assert!(report.uneven.is_empty());
        check_tensors("bert-base", &copy, &report, dtype);

        let (copy, report) = folder.quantise("bert-base", dtype, true);
        let tables = ["word_embeddings", "token_type_embeddings", "position_embeddings"];
        let tables = tables.map(|t| format!("embeddings.{t}.weight"));
        let expected: BTreeSet<_> = layer(0).chain(layer(1)).chain(tables).collect();
        assert_eq!(report.quantised.iter().cloned().collect::<BTreeSet<_>>(), expected);
        check_tensors("bert-base", &copy, &report, dtype);
        load(&copy);
    }
}

#[test]
fn heads_shards_and_prefixes_are_covered() {
    let folder = Folder::new();
    for (name, some) in [
        ("bert-classifier-1", "bert.pooler.dense.weight"),
        ("bert-classifier-1", "classifier.weight"),
        ("bert-sharded", "encoder.layer.1.output.dense.weight"),
        ("llama-sharded", "lm_head.weight"),
        ("qwen2-base", "model.layers.0.self_attn.k_proj.weight"),
        ("phi3-base", "model.layers.1.mlp.gate_up_proj.weight"),
    ] {
        let output = folder.0.join(format!("{name}-{some}"));
        let report = quantise(&fixture(name), &output, Dtype::Q8_0, false).unwrap();
        assert!(report.quantised.iter().any(|q| q == some), "{name}: {:?}", report.quantised);
        check_tensors(name, &output, &report, Dtype::Q8_0);
        load(&output);
    }
}

#[test]
fn a_tied_head_is_an_embedding() {
    let folder = Folder::new();
    let (copy, report) = folder.quantise("gemma-base", Dtype::Q8_0, false);
    assert!(report.kept.iter().any(|k| k == "model.embed_tokens.weight"), "{:?}", report.kept);
    load(&copy);
    let (copy, report) = folder.quantise("gemma-base", Dtype::Q8_0, true);
    assert!(report.quantised.iter().any(|q| q == "model.embed_tokens.weight"), "{:?}", report.quantised);
    load(&copy);
}

#[test]
fn what_is_stored_transposed_is_turned() {
    let folder = Folder::new();
    let (copy, report) = folder.quantise("gpt2-base", Dtype::Q8_0, false);
    let after = Checkpoint::open(&copy).unwrap();
    let qkv = after.names().find(|n| n.ends_with("h.0.attn.c_attn.weight")).unwrap();
    assert!(report.quantised.iter().any(|q| q == qkv));
    let qkv = after.get(qkv).unwrap();
    assert_eq!((qkv.is_transposed(), qkv.shape()), (true, &[96, 32][..]));
    check_tensors("gpt2-base", &copy, &report, Dtype::Q8_0);
    load(&copy);
}

#[test]
fn rows_of_no_whole_number_of_blocks_stay() {
    let folder = Folder::new();
    let (_, report) = folder.quantise("qwen3-base", Dtype::Q4_0, false);
    let uneven: BTreeSet<_> = report.uneven.iter().cloned().collect();
    let expected = [0, 1].map(|l| {
        [format!("model.layers.{l}.mlp.down_proj.weight"), format!("model.layers.{l}.self_attn.o_proj.weight")]
    });
    assert_eq!(uneven, expected.into_iter().flatten().collect());
    assert!(report.uneven.iter().all(|u| report.kept.contains(u)));
    let error = quantise(&fixture("t5-base"), &folder.0.join("t5"), Dtype::Q8_0, false).unwrap_err();
    assert!(error.to_string().contains("fits blocks of Q8_0"), "{error}");
    assert!(!folder.0.join("t5").exists());
}

#[test]
fn a_quantised_model_is_near_its_original() {
    let folder = Folder::new();
    let sequence = Sequence { ids: (3..20).collect(), type_ids: Vec::new(), positions: Vec::new() };
    for (name, dtype, bound) in [
        ("bert-base", Dtype::Q8_0, 0.999),
        ("bert-base", Dtype::Q4_0, 0.9),
        ("gpt2-base", Dtype::Q8_0, 0.999),
        ("qwen2-base", Dtype::Q8_0, 0.999),
    ] {
        let (copy, _) = folder.quantise(name, dtype, true);
        let [old, new] =
            [fixture(name), copy].map(|f| load(&f).encode(std::slice::from_ref(&sequence)).remove(0).unwrap().hidden);
        let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| f64::from(a * b)).sum::<f64>();
        let cosine = dot(&old, &new) / (dot(&old, &old) * dot(&new, &new)).sqrt();
        assert!(cosine > bound && old != new, "{name} {dtype}: {cosine}");
    }
}

#[test]
fn a_whole_folder_is_copied() {
    let folder = Folder::new();
    let source = folder.0.join("source");
    copy_all(&fixture("st-tiny"), &source);
    fs::create_dir_all(source.join("onnx")).unwrap();
    for (name, text) in [
        ("onnx/model.onnx", "x"),
        ("README.md", "about"),
        ("pytorch_model.bin", "x"),
        ("model.fp16.safetensors", "x"),
        ("weights.h5", "x"),
    ] {
        fs::write(source.join(name), text).unwrap();
    }
    let output = folder.0.join("new/copy");
    let report = quantise(&source, &output, Dtype::Q8_0, false).unwrap();
    let others = ["expected.safetensors", "model.fp16.safetensors", "onnx", "pytorch_model.bin", "weights.h5"];
    assert_eq!(report.left_out, others);
    let mut files = Vec::new();
    list(&output, &output, &mut files);
    let mut expected = Vec::new();
    list(&fixture("st-tiny"), &fixture("st-tiny"), &mut expected);
    expected.retain(|f| f != "expected.safetensors");
    expected.push("README.md".to_string());
    assert_eq!(set(files.iter().map(String::as_str)), set(expected.iter().map(String::as_str)));
    for file in files.iter().filter(|f| *f != "model.safetensors") {
        assert_eq!(fs::read(output.join(file)).unwrap(), fs::read(source.join(file)).unwrap(), "{file}");
    }
    let texts = ["a tree of files", "what is it?"];
    let [old, new] = [&source, &output].map(|f| Embedder::load(f).unwrap().embed(&texts).unwrap());
    for (old, new) in old.iter().zip(&new) {
        let cosine = kin_infer::dot_product(old, new) / (norm(old) * norm(new));
        assert!(cosine > 0.99, "{cosine}");
    }
    assert_eq!(fs::read_dir(output.parent().unwrap()).unwrap().count(), 1, "no temporary folder is left");
}

fn norm(v: &[f32]) -> f32 {
    kin_infer::dot_product(v, v).sqrt()
}

fn copy_all(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap().flatten() {
        let target = to.join(entry.file_name());
        if entry.path().is_dir() {
            copy_all(&entry.path(), &target);
        } else {
            fs::copy(entry.path(), target).unwrap();
        }
    }
}

fn list(root: &Path, folder: &Path, files: &mut Vec<String>) {
    for path in fs::read_dir(folder).unwrap().flatten().map(|e| e.path()) {
        if path.is_dir() {
            list(root, &path, files);
        } else {
            files.push(path.strip_prefix(root).unwrap().to_string_lossy().replace('\\', "/"));
        }
    }
}

/// The bytes depend on the source and the options alone; the hashes tie machines to each other.
#[test]
fn the_bytes_are_the_same_on_every_machine_and_with_any_number_of_threads() {
    let expected: [(&str, Dtype, &str, &str); 3] = [
        (
            "bert-base",
            Dtype::Q8_0,
            "model.safetensors",
            "b38b0836b0b61284534a4db4e52c3ea4ab4021b050b4578a543ac8ef52aa043f",
        ),
        (
            "gpt2-base",
            Dtype::Q4_0,
            "model.safetensors",
            "4a5531540fd462253c088dc4c240dbf67626614fbef1b8e711e81fab9d8fc436",
        ),
        (
            "llama-sharded",
            Dtype::Q8_0,
            "model.safetensors.index.json",
            "4230f58306832e65dacb47a2c1fa60ed31ba1c26a92022a3ed7f7a9b4fce8943",
        ),
    ];
    for (name, dtype, file, hash) in expected {
        for threads in [1, 3] {
            let folder = Folder::new();
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            let (copy, _) = pool.install(|| folder.quantise(name, dtype, true));
            let found: String =
                Sha256::digest(fs::read(copy.join(file)).unwrap()).iter().map(|b| format!("{b:02x}")).collect();
            assert_eq!(found, hash, "{name} {dtype} {threads}");
        }
    }
}

#[test]
fn blocks_that_are_there_already_stay() {
    let folder = Folder::new();
    let (first, report) = folder.quantise("bert-base", Dtype::Q8_0, false);
    let second = folder.0.join("second");
    let again = quantise(&first, &second, Dtype::Q4_0, true).unwrap();
    assert_eq!(again.quantised.len(), 3, "the embeddings: {:?}", again.quantised);
    let (old, new) = (Checkpoint::open(&first).unwrap(), Checkpoint::open(&second).unwrap());
    for name in &report.quantised {
        let (old, new) = (old.get(name).unwrap(), new.get(name).unwrap());
        assert_eq!((old.dtype_name(), old.shape(), old.bytes()), (new.dtype_name(), new.shape(), new.bytes()));
    }
    load(&second);
}

#[test]
fn an_output_that_holds_something_is_refused() {
    let folder = Folder::new();
    let output = folder.0.join("out");
    fs::create_dir(&output).unwrap();
    quantise(&fixture("bert-base"), &output, Dtype::Q8_0, false).unwrap();
    let error = quantise(&fixture("bert-base"), &output, Dtype::Q8_0, false).unwrap_err();
    assert!(matches!(&error, InferError::InvalidArgument(why) if why.contains("exists and is not empty")), "{error}");
    let file = folder.0.join("file");
    fs::write(&file, "x").unwrap();
    quantise(&fixture("bert-base"), &file, Dtype::Q8_0, false).unwrap_err();
    assert_eq!(fs::read(&file).unwrap(), b"x");
    let error = quantise(&fixture("bert-base"), &folder.0.join("new"), Dtype::Q4K, false).unwrap_err();
    assert!(error.to_string().contains("not Q4_K"), "{error}");
}

#[test]
fn a_failure_leaves_nothing() {
    let folder = Folder::new();
    for (bad, why) in [(f32::NAN, "NaN, expected finite values"), (3e38, "3e38, whose scale overflows binary16")] {
        let source = folder.0.join("source");
        copy_all(&fixture("bert-base"), &source);
        let name = "encoder.layer.1.output.dense.weight";
        let checkpoint = Checkpoint::open(&source).unwrap();
        let offset = checkpoint.get(name).unwrap().bytes().as_ptr() as usize;
        let path = source.join("model.safetensors");
        let start = offset - whole(&checkpoint).as_ptr() as usize;
        let header = fs::read(&path).unwrap().len() - checkpoint.total_bytes() as usize;
        let mut bytes = fs::read(&path).unwrap();
        drop(checkpoint);
        bytes[header + start + 4 * (96 + 7)..][..4].copy_from_slice(&bad.to_le_bytes());
        fs::write(&path, bytes).unwrap();
        let error = quantise(&source, &folder.0.join("out"), Dtype::Q8_0, false).unwrap_err();
        let InferError::TensorError { tensor, found, .. } = &error else { panic!("{error}") };
        assert_eq!(tensor, name);
        assert!(found.contains("[1, 7]") && found.contains(why), "{found}");
        let left: Vec<_> = fs::read_dir(&folder.0).unwrap().flatten().map(|e| e.file_name()).collect();
        assert_eq!(left, ["source"]);
        fs::remove_dir_all(&source).unwrap();
    }
}

/// The tensor whose data comes first in the file.
fn whole(checkpoint: &Checkpoint) -> &[u8] {
    checkpoint.names().map(|n| checkpoint.get(n).unwrap().bytes()).min_by_key(|b| b.as_ptr()).unwrap()
}

#[test]
fn progress_counts_every_byte() {
    let folder = Folder::new();
    let mut seen = Vec::new();
    let options = QuantizeOptions { dtype: Dtype::Q8_0, embeddings: false };
    let output = folder.0.join("out");
    let report = quantize_folder(&fixture("llama-sharded"), &output, &options, &mut |p| {
        seen.push((p.tensor.to_string(), p.done, p.total));
    })
    .unwrap();
    assert_eq!(seen.len(), report.quantised.len() + report.kept.len());
    assert_eq!((seen[0].1, seen[0].2), (0, report.bytes_before));
    assert!(seen.windows(2).all(|w| w[0].1 < w[1].1));
}
