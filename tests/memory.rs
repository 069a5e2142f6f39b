//! The planned memory holds: in a process of its own, a model is planned, loaded and run, and the peak that the system
//! measured lies under the planned one, and not far under it.
#![cfg(target_os = "linux")]

mod common;

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use kin_infer::resource::{ModelMemory, Profile, ResourcePlan, init_threads, process_memory};
use kin_infer::{BertConfig, BertModel, Embedder, Precision, Sequence};

/// The model folder of a child; unset in the tests' own process.
const FOLDER: &str = "KIN_TEST_MEMORY_FOLDER";
/// Set where the child is to compute with int8.
const INT8: &str = "KIN_TEST_MEMORY_INT8";

/// Planned is at most this many times measured.
const MOST: f64 = 1.3;

/// Plans, loads, embeds, and prints the planned and the measured peak.
#[test]
#[ignore = "a part that the other tests play in processes of their own"]
fn child() {
    let Some(folder) = std::env::var_os(FOLDER).map(PathBuf::from) else { return };
    let precision = if std::env::var_os(INT8).is_some() { Precision::Int8 } else { Precision::Exact };
    let plan = ResourcePlan::detect(Profile::Throughput).unwrap().with_threads(2);
    init_threads(plan.embedding.threads.value);
    let (memory, plan) = ModelMemory::of(&folder, &plan, precision).unwrap();
    assert_eq!(memory.fits.value, Some(true));
    if folder.join("tokenizer.json").is_file() {
        embed_texts(&folder, &plan, precision);
    } else {
        embed_ids(&folder, &plan);
    }
    let parts = serde_json::to_string(&memory).unwrap();
    println!("planned {} measured {} {parts}", memory.peak.value, process_memory().peak.unwrap());
}

/// Texts of every length up to the window, whose words meet most of the vocabulary.
fn embed_texts(folder: &Path, plan: &ResourcePlan, precision: Precision) {
    let embedder = Embedder::load_with_precision(folder, precision).unwrap().with_limits(plan.embedding.limits());
    let vocabulary: Vec<String> = (0..).map_while(|id| embedder.tokenizer().token(id)).collect();
    let words: Vec<&str> = vocabulary.iter().map(|w| w.trim_start_matches('#')).collect();
    let text = |i: usize| words.iter().skip(i).step_by(97).take(3 + i * 5 % 280).copied().collect::<Vec<_>>().join(" ");
    let texts: Vec<String> = (0..97).map(text).collect();
    let vectors = embedder.embed(&texts.iter().map(String::as_str).collect::<Vec<_>>()).unwrap();
    assert_eq!((vectors.len(), vectors[0].len()), (97, embedder.dimension()));
}

fn embed_ids(folder: &Path, plan: &ResourcePlan) {
    let model = BertModel::load(folder, BertConfig::from_folder(folder).unwrap()).unwrap();
    let model = model.with_limits(plan.embedding.limits());
    let vocabulary = model.spec().embedding.vocab_size;
    let ids = |i: usize| (0..512).map(|t| ((i * 512 + t) * 7 % vocabulary) as u32).collect();
    let sequences: Vec<Sequence> = (0..8).map(|i| Sequence::new(ids(i))).collect();
    let masks: Vec<Vec<u32>> = vec![vec![1; 512]; 8];
    let rows: Vec<Vec<u32>> = sequences.into_iter().map(|s| s.ids).collect();
    assert_eq!(model.forward(&rows, &masks).unwrap().len(), 8);
}

/// The planned and the measured peak of a child.
fn peaks(folder: &Path, precision: Precision) -> (f64, f64, String) {
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args(["--exact", "child", "--ignored", "--nocapture", "--test-threads=1"]).env(FOLDER, folder);
    if precision == Precision::Int8 {
        child.env(INT8, "1");
    }
    let output = child.output().unwrap();
    let told = String::from_utf8(output.stdout).unwrap() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{told}");
    let line = told.lines().find_map(|line| line.split_once("planned ").map(|(_, rest)| rest.to_string()));
    let line = line.unwrap_or_else(|| panic!("no figures in {told}"));
    let mut numbers = line.split(' ').filter_map(|word| word.parse::<f64>().ok());
    (numbers.next().unwrap(), numbers.next().unwrap(), line)
}

fn check(what: &str, folder: &Path, precision: Precision) {
    let (planned, measured, line) = peaks(folder, precision);
    let mib = |bytes: f64| bytes / f64::from(1 << 20);
    common::say(&format!("{what}: planned {:.1} MiB, measured {:.1} MiB", mib(planned), mib(measured)));
    assert!(measured <= planned, "{what}: more than planned: {line}");
    assert!(planned <= MOST * measured, "{what}: planned {:.2} times what it takes: {line}", planned / measured);
}

#[test]
fn minilm_stays_under_its_planned_peak() {
    if let Some(folder) = common::minilm("minilm_stays_under_its_planned_peak") {
        check("MiniLM", &folder, Precision::Exact);
        check("MiniLM in int8", &folder, Precision::Int8);
    }
}

#[test]
fn a_large_model_stays_under_its_planned_peak() {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("memory-large-{}", std::process::id()));
    write_large_model(&folder);
    check("a model of 300 MiB", &folder, Precision::Exact);
    std::fs::remove_dir_all(&folder).unwrap();
}

/// A BERT of 6 layers of 1024 features, all weights 0, in a file with holes.
fn write_large_model(folder: &Path) {
    const HIDDEN: usize = 1024;
    const INNER: usize = 4096;
    std::fs::create_dir_all(folder).unwrap();
    let config = serde_json::json!({
        "model_type": "bert", "hidden_size": HIDDEN, "num_hidden_layers": 6, "num_attention_heads": 16,
        "intermediate_size": INNER, "vocab_size": 8192, "max_position_embeddings": 512, "type_vocab_size": 2,
        "hidden_act": "gelu", "layer_norm_eps": 1e-12,
    });
    std::fs::write(folder.join("config.json"), config.to_string()).unwrap();
    let mut tensors: Vec<(String, Vec<usize>)> = Vec::new();
    let mut add = |name: &str, shape: &[usize]| tensors.push((name.to_string(), shape.to_vec()));
    for (table, rows) in [("word", 8192), ("position", 512), ("token_type", 2)] {
        add(&format!("embeddings.{table}_embeddings.weight"), &[rows, HIDDEN]);
    }
    add("embeddings.LayerNorm.weight", &[HIDDEN]);
    add("embeddings.LayerNorm.bias", &[HIDDEN]);
    for layer in 0..6 {
        let linear = [
            ("attention.self.query", HIDDEN, HIDDEN),
            ("attention.self.key", HIDDEN, HIDDEN),
            ("attention.self.value", HIDDEN, HIDDEN),
            ("attention.output.dense", HIDDEN, HIDDEN),
            ("intermediate.dense", INNER, HIDDEN),
            ("output.dense", HIDDEN, INNER),
        ];
        for (name, n, k) in linear {
            add(&format!("encoder.layer.{layer}.{name}.weight"), &[n, k]);
            add(&format!("encoder.layer.{layer}.{name}.bias"), &[n]);
        }
        for norm in ["attention.output.LayerNorm", "output.LayerNorm"] {
            add(&format!("encoder.layer.{layer}.{norm}.weight"), &[HIDDEN]);
            add(&format!("encoder.layer.{layer}.{norm}.bias"), &[HIDDEN]);
        }
    }
    let mut header = serde_json::Map::new();
    let mut end = 0;
    for (name, shape) in tensors {
        let bytes = shape.iter().product::<usize>() * 4;
        let entry = serde_json::json!({"dtype": "F32", "shape": shape, "data_offsets": [end, end + bytes]});
        header.insert(name, entry);
        end += bytes;
    }
    let mut header = serde_json::Value::Object(header).to_string();
    header.push_str(&" ".repeat(header.len().next_multiple_of(8) - header.len()));
    let mut file = File::create(folder.join("model.safetensors")).unwrap();
    file.write_all(&(header.len() as u64).to_le_bytes()).unwrap();
    file.write_all(header.as_bytes()).unwrap();
    file.set_len((8 + header.len() + end) as u64).unwrap();
}
