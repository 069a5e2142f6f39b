//! One token of a decoder at a time, as a share of the memory bandwidth of the same run.
//!
//! `cargo bench --bench decode [-- [--rounds N] [--threads N] [FORMAT ...]]`, of all formats below or of those named. A
//! synthetic LLaMA of about 1 GB of matrices a format, more than the last-level cache, is written to a temporary folder and
//! loaded; each round reads a buffer of as many bytes with the same threads, and decodes a token. Run by `cargo test
//! --benches`, it does nothing.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Instant;

use kin_infer::cpu::bandwidth::Probe;
use kin_infer::weights::Dtype;
use kin_infer::{BertConfig, BertModel};

const HIDDEN: usize = 2048;
const INNER: usize = 5632;
const VOCAB: usize = 1024;

/// Bytes of matrices to aim at.
const BYTES: usize = 1_000_000_000;

/// A folder that is removed at the end.
struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The tensors of a model: name, shape.
fn tensors(layers: usize) -> Vec<(String, Vec<usize>)> {
    let mut list = vec![("model.embed_tokens.weight".to_string(), vec![VOCAB, HIDDEN])];
    for l in 0..layers {
        let name = |part: &str| format!("model.layers.{l}.{part}.weight");
        for part in ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj"] {
            list.push((name(part), vec![HIDDEN, HIDDEN]));
        }
        list.push((name("mlp.gate_proj"), vec![INNER, HIDDEN]));
        list.push((name("mlp.up_proj"), vec![INNER, HIDDEN]));
        list.push((name("mlp.down_proj"), vec![HIDDEN, INNER]));
        list.push((name("input_layernorm"), vec![HIDDEN]));
        list.push((name("post_attention_layernorm"), vec![HIDDEN]));
    }
    list.push(("model.norm.weight".to_string(), vec![HIDDEN]));
    list.push(("lm_head.weight".to_string(), vec![VOCAB, HIDDEN]));
    list
}

/// The formats by name. Norms and the embedding table are f32 where matrices are blocks.
const FORMATS: [(&str, Dtype); 9] = [
    ("f32", Dtype::F32),
    ("bf16", Dtype::BF16),
    ("f16", Dtype::F16),
    ("q8_0", Dtype::Q8_0),
    ("q4_0", Dtype::Q4_0),
    ("q5_0", Dtype::Q5_0),
    ("q4_k", Dtype::Q4K),
    ("q5_k", Dtype::Q5K),
    ("q6_k", Dtype::Q6K),
];

/// Where the binary16 scales of a block lie.
fn scales(dtype: Dtype) -> &'static [usize] {
    match dtype {
        Dtype::Q4K | Dtype::Q5K => &[0, 2],
        Dtype::Q6K => &[208],
        _ => &[0],
    }
}

/// Bytes of so many values.
fn bytes_of(dtype: Dtype, values: usize) -> usize {
    values / dtype.block_len() * dtype.size()
}

/// Writes a model of small random weights; gives its folder and the bytes of its matrices that a token reads.
fn write(name: &str, dtype: Dtype) -> std::io::Result<(Folder, usize)> {
    let layer = 4 * HIDDEN * HIDDEN + 3 * HIDDEN * INNER;
    let layers = BYTES / bytes_of(dtype, layer);
    let folder = Folder(std::env::temp_dir().join(format!("kin-infer-decode-{}-{name}", std::process::id())));
    std::fs::create_dir_all(&folder.0)?;
    let config = serde_json::json!({
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": HIDDEN, "num_hidden_layers": layers,
        "num_attention_heads": HIDDEN / 128, "intermediate_size": INNER, "vocab_size": VOCAB, "rms_norm_eps": 1e-5
    });
    std::fs::write(folder.0.join("config.json"), config.to_string())?;
    write_tensors(&folder.0.join("model.safetensors"), &tensors(layers), dtype)?;
    Ok((folder, bytes_of(dtype, layers * layer + VOCAB * HIDDEN)))
}

fn write_tensors(file: &Path, list: &[(String, Vec<usize>)], dtype: Dtype) -> std::io::Result<()> {
    let (mut header, mut blocks, mut at) = (serde_json::Map::new(), serde_json::Map::new(), 0);
    let stored = |name: &str, shape: &[usize]| {
        let matrix = shape.len() == 2 && !name.contains("embed_tokens");
        if dtype.is_block() && !matrix { Dtype::F32 } else { dtype }
    };
    for (name, shape) in list {
        let dtype = stored(name, shape);
        let end = at + bytes_of(dtype, shape.iter().product());
        let (label, dimensions) = match dtype.is_block() {
            true => ("U8".to_string(), vec![shape[0], bytes_of(dtype, shape[1])]),
            false => (dtype.to_string(), shape.clone()),
        };
        if dtype.is_block() {
            blocks.insert(name.clone(), serde_json::json!({"dtype": dtype.to_string(), "shape": shape}));
        }
        let entry = serde_json::json!({"dtype": label, "shape": dimensions, "data_offsets": [at, end]});
        header.insert(name.clone(), entry);
        at = end;
    }
    if !blocks.is_empty() {
        let text = serde_json::Value::Object(blocks).to_string();
        header.insert("__metadata__".to_string(), serde_json::json!({"kin_infer.blocks": text}));
    }
    let header = serde_json::Value::Object(header).to_string();
    let mut out = std::io::BufWriter::with_capacity(1 << 20, std::fs::File::create(file)?);
    out.write_all(&(header.len() as u64).to_le_bytes())?;
    out.write_all(header.as_bytes())?;
    let mut state = 1u32;
    let mut next = move || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        state >> 8
    };
    let mut block = Vec::new();
    for (name, shape) in list {
        let dtype = stored(name, shape);
        // Multiples of blocks of 256 are up to 127.
        let scale = half::f16::from_f32(if dtype.block_len() == 256 { 1e-5 } else { 1e-3 }).to_le_bytes();
        for _ in 0..shape.iter().product::<usize>() / dtype.block_len() {
            let value = next() as f32 / (1 << 24) as f32 * 0.04 - 0.02;
            match dtype {
                Dtype::F32 => out.write_all(&value.to_le_bytes())?,
                Dtype::BF16 => out.write_all(&half::bf16::from_f32(value).to_le_bytes())?,
                Dtype::F16 => out.write_all(&half::f16::from_f32(value).to_le_bytes())?,
                _ => {
                    block.clear();
                    block.extend((0..dtype.size() / 2).flat_map(|_| (next() as u16).to_le_bytes()));
                    for at in scales(dtype) {
                        block[*at..at + 2].copy_from_slice(&scale);
                    }
                    out.write_all(&block)?;
                }
            }
        }
    }
    out.flush()
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

type Failure = Box<dyn std::error::Error + Send + Sync>;

fn measure(name: &str, dtype: Dtype, rounds: usize, probe: &Probe) -> Result<(), Failure> {
    let (folder, bytes) = write(name, dtype)?;
    let model = BertModel::load(&folder.0, BertConfig::from_folder(&folder.0)?)?;
    let mut cache = model.kv_cache()?;
    model.prefill(&mut cache, &[1, 2, 3, 4])?;
    let (mut shares, mut rates, mut tokens) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..rounds {
        let before = probe.seconds(bytes);
        let start = Instant::now();
        model.extend(&mut cache, &[(round % VOCAB) as u32])?;
        let taken = start.elapsed().as_secs_f64();
        let read = before.min(probe.seconds(bytes));
        shares.push(read / taken);
        rates.push(bytes as f64 / read * 1e-9);
        tokens.push(1.0 / taken);
    }
    println!(
        "{name:5} {:4} MB of weights: {:.2} of the read bandwidth (best round {:.2}), {:.1} tokens/s, reads at {:.1} GB/s",
        bytes / 1_000_000,
        median(&mut shares),
        shares.iter().copied().fold(0.0, f64::max),
        median(&mut tokens),
        median(&mut rates),
    );
    Ok(())
}

fn main() -> Result<(), Failure> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if !args.iter().any(|a| a == "--bench") {
        println!("decode: nothing to check; cargo bench --bench decode measures");
        return Ok(());
    }
    let number = |name: &str, default: usize| {
        let at = args.iter().position(|a| a == name);
        at.and_then(|i| args.get(i + 1)).and_then(|v| v.parse().ok()).unwrap_or(default)
    };
    let (rounds, threads) = (number("--rounds", 15), number("--threads", 1));
    let asked = |name: &str| args.iter().any(|a| a == name);
    let all = FORMATS.iter().all(|(name, _)| !asked(name));
    let chosen: Vec<_> = FORMATS.into_iter().filter(|(name, _)| all || asked(name)).collect();
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build()?;
    println!("{threads} thread(s), {rounds} rounds, medians");
    pool.install(|| {
        let probe = Probe::new(BYTES)?;
        chosen.iter().try_for_each(|(name, dtype)| measure(name, *dtype, rounds, &probe))
    })
}
