//! One token of a decoder at a time, as a share of the memory bandwidth of the same run.
//!
//! `cargo bench --bench decode [-- [--rounds N] [--threads N] [f32|bf16|f16 ...]]`. A synthetic LLaMA of about 1 GB of
//! matrices a format, more than the last-level cache, is written to a temporary folder and loaded; each round reads a
//! buffer of as many bytes with the same threads, and decodes a token. Run by `cargo test --benches`, it does nothing.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Instant;

use kin_infer::{BertConfig, BertModel};
use rayon::prelude::*;

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

/// Writes a model of small random weights; gives its folder and the bytes of its matrices that a token reads.
fn write(format: &str) -> std::io::Result<(Folder, usize)> {
    let size = if format == "f32" { 4 } else { 2 };
    let layer = 4 * HIDDEN * HIDDEN + 3 * HIDDEN * INNER;
    let layers = BYTES / (layer * size);
    let folder = Folder(std::env::temp_dir().join(format!("kin-infer-decode-{}-{format}", std::process::id())));
    std::fs::create_dir_all(&folder.0)?;
    let config = serde_json::json!({
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": HIDDEN, "num_hidden_layers": layers,
        "num_attention_heads": HIDDEN / 128, "intermediate_size": INNER, "vocab_size": VOCAB, "rms_norm_eps": 1e-5
    });
    std::fs::write(folder.0.join("config.json"), config.to_string())?;
    write_tensors(&folder.0.join("model.safetensors"), &tensors(layers), format, size)?;
    Ok((folder, (layers * layer + VOCAB * HIDDEN) * size))
}

fn write_tensors(file: &Path, list: &[(String, Vec<usize>)], format: &str, size: usize) -> std::io::Result<()> {
    let (mut header, mut at) = (serde_json::Map::new(), 0);
    for (name, shape) in list {
        let end = at + shape.iter().product::<usize>() * size;
        let entry =
            serde_json::json!({"dtype": format.to_ascii_uppercase(), "shape": shape, "data_offsets": [at, end]});
        header.insert(name.clone(), entry);
        at = end;
    }
    let header = serde_json::Value::Object(header).to_string();
    let mut out = std::io::BufWriter::with_capacity(1 << 20, std::fs::File::create(file)?);
    out.write_all(&(header.len() as u64).to_le_bytes())?;
    out.write_all(header.as_bytes())?;
    let mut state = 1u32;
    for _ in 0..at / size {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let value = (state >> 8) as f32 / (1 << 24) as f32 * 0.04 - 0.02;
        match format {
            "f32" => out.write_all(&value.to_le_bytes())?,
            "bf16" => out.write_all(&half::bf16::from_f32(value).to_le_bytes())?,
            _ => out.write_all(&half::f16::from_f32(value).to_le_bytes())?,
        }
    }
    out.flush()
}

/// Streams that a thread reads side by side.
const STREAMS: usize = 8;

/// Seconds to read `bytes` once with the current threads, several streams a thread.
fn read(buffer: &[u64], bytes: usize) -> f64 {
    let words = &buffer[..(bytes / 8).min(buffer.len())];
    let start = Instant::now();
    let threads = rayon::current_num_threads();
    let sum = |part: &[u64]| {
        let len = part.len() / STREAMS / 8 * 8;
        let streams: [&[u64]; STREAMS] = std::array::from_fn(|s| &part[s * len..][..len]);
        let mut sums = [[0u64; 8]; STREAMS];
        for i in (0..len).step_by(8) {
            for (sum, stream) in sums.iter_mut().zip(&streams) {
                for (s, x) in sum.iter_mut().zip(&stream[i..i + 8]) {
                    *s = s.wrapping_add(*x);
                }
            }
        }
        sums.as_flattened().iter().fold(0u64, |s, x| s.wrapping_add(*x))
    };
    let total = words.par_chunks(words.len().div_ceil(threads)).map(sum).reduce(|| 0, u64::wrapping_add);
    std::hint::black_box(total);
    start.elapsed().as_secs_f64()
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

type Failure = Box<dyn std::error::Error + Send + Sync>;

fn measure(format: &str, rounds: usize, buffer: &[u64]) -> Result<(), Failure> {
    let (folder, bytes) = write(format)?;
    let model = BertModel::load(&folder.0, BertConfig::from_folder(&folder.0)?)?;
    let mut cache = model.kv_cache()?;
    model.prefill(&mut cache, &[1, 2, 3, 4])?;
    let (mut shares, mut rates, mut tokens) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..rounds {
        let before = read(buffer, bytes);
        let start = Instant::now();
        model.extend(&mut cache, &[(round % VOCAB) as u32])?;
        let taken = start.elapsed().as_secs_f64();
        let read = before.min(read(buffer, bytes));
        shares.push(read / taken);
        rates.push(bytes as f64 / read * 1e-9);
        tokens.push(1.0 / taken);
    }
    println!(
        "{format:5} {:4} MB of weights: {:.2} of the read bandwidth (best round {:.2}), {:.1} tokens/s, reads at {:.1} GB/s",
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
    let chosen: Vec<&str> = ["f32", "bf16", "f16"].into_iter().filter(|f| args.iter().any(|a| a == f)).collect();
    let chosen = if chosen.is_empty() { vec!["f32", "bf16", "f16"] } else { chosen };
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build()?;
    println!("{threads} thread(s), {rounds} rounds, medians");
    pool.install(|| {
        // Huge pages, as the packed weights ask for: without them the reads would be slower than they can be.
        let mut map = memmap2::MmapMut::map_anon(BYTES + (1 << 26))?;
        #[cfg(target_os = "linux")]
        map.advise(memmap2::Advice::HugePage)?;
        map.fill(1);
        // SAFETY: any bytes are u64 values.
        let (_, buffer, _) = unsafe { map.align_to::<u64>() };
        chosen.iter().try_for_each(|format| measure(format, rounds, buffer))
    })
}
