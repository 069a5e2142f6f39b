//! A GPU's speed: matrix products as a share of its FMA peak, single tokens as a share of its memory bandwidth, both
//! measured in the same run, and texts a second of whole models.
//!
//! `cargo bench --features cuda --bench device` (or `metal`), on the first device of each of these backends. Before a
//! product is timed, its first and last rows are compared with the CPU's bits; whole models' bits are for
//! `cargo test --test gpu`. Without a GPU, or without those features, it says so and measures nothing. Run by
//! `cargo test --benches`, it runs once over small sizes.

#[allow(dead_code)] // what it has for CPUs
mod checkpoints;
#[allow(dead_code)] // as above
mod operands;

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use checkpoints::{Size, Values, families};
use kin_infer::cpu::CpuCompute;
use kin_infer::gpu::device::{Binding, Device, Launch};
use kin_infer::gpu::{DeviceCompute, Epilogue, GpuBackend, GpuCompute, absent_backends};
use kin_infer::weights::Dtype;
use kin_infer::{Embedder, Sequence};
use operands::Operands;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// Rounds of which the median counts.
const ROUNDS: usize = 7;

/// The first device of each GPU backend in this build.
fn gpus() -> Result<Vec<Arc<dyn Device>>> {
    let absent = absent_backends();
    let there = |backend| absent.iter().all(|a| a.backend != backend);
    #[cfg_attr(not(any(feature = "cuda", feature = "metal")), allow(unused_mut))]
    let mut gpus: Vec<Arc<dyn Device>> = Vec::new();
    if cfg!(all(feature = "metal", target_os = "macos")) && there(GpuBackend::Metal) {
        #[cfg(all(feature = "metal", target_os = "macos"))]
        gpus.push(kin_infer::metal_backend::open(0)?);
    }
    if cfg!(feature = "cuda") && there(GpuBackend::Cuda) {
        #[cfg(feature = "cuda")]
        gpus.push(kin_infer::cuda_backend::open(0)?);
    }
    for a in &absent {
        println!("no {}: {}", a.backend, a.reason);
    }
    if gpus.is_empty() {
        println!("no GPU is measured: build with the feature `cuda` or `metal`, on a machine that has one");
    }
    Ok(gpus)
}

/// Seconds that `run` takes, the median of the rounds; one more comes first.
fn seconds(mut run: impl FnMut() -> Result<()>) -> Result<f64> {
    run()?;
    let mut times = Vec::new();
    for _ in 0..ROUNDS {
        let start = Instant::now();
        run()?;
        times.push(start.elapsed().as_secs_f64());
    }
    times.sort_by(f64::total_cmp);
    Ok(times[ROUNDS / 2])
}

/// Operations a second of fma in registers.
fn fma_peak(device: &dyn Device, steps: u32) -> Result<f64> {
    let groups = device.info().units * 32;
    let out = device.alloc(groups as usize * 256 * 4)?;
    let buffers = [Binding { memory: &out, offset: 0 }];
    let time = seconds(|| {
        let args = steps.to_ne_bytes();
        let (grid, threads) = ([groups, 1, 1], [256, 1, 1]);
        let launch = Launch { kernel: "measure_fma", grid, threads, buffers: &buffers, args: &args };
        // SAFETY: it writes a value for each thread of the grid.
        unsafe { device.launch(&launch) }?;
        Ok(device.read(&out, 0, &mut [0; 4])?)
    })?;
    Ok(2.0 * 128.0 * f64::from(steps) * f64::from(groups) * 256.0 / time)
}

/// Bytes a second, read or written, of copies within the device.
fn bandwidth(device: &dyn Device, bytes: usize) -> Result<f64> {
    const COPIES: usize = 8;
    let (from, to) = (device.alloc(bytes)?, device.alloc(bytes)?);
    device.upload(&from, 0, &vec![1; bytes])?;
    let time = seconds(|| {
        for _ in 0..COPIES {
            device.copy(Binding { memory: &from, offset: 0 }, Binding { memory: &to, offset: 0 }, bytes)?;
        }
        Ok(device.read(&to, 0, &mut [0; 4])?)
    })?;
    Ok(2.0 * (COPIES * bytes) as f64 / time)
}

/// A linear layer: seconds of one product, many of which are enqueued at once.
fn product(gpu: &dyn GpuCompute, (m, n, k): (usize, usize, usize), dtype: Dtype, repeat: usize) -> Result<f64> {
    let mut operands = Operands::new();
    let tensor = operands.weight(n, k, dtype)?;
    let x = operands.gaussian(m * k);
    let weight = gpu.prepare_weight(std::slice::from_ref(&tensor))?;
    let (x_there, mut out) = (gpu.upload(&x)?, gpu.alloc(m * n)?);
    gpu.matmul(&x_there, m, &weight, Epilogue::NONE, &mut out)?;
    let mut found = vec![0.0; m * n];
    gpu.read(&out, &mut found)?;
    check(&CpuCompute::new()?, (m, n), &x, &tensor, &found)?;
    let time = seconds(|| {
        for _ in 0..repeat {
            gpu.matmul(&x_there, m, &weight, Epilogue::NONE, &mut out)?;
        }
        Ok(gpu.read(&out, &mut found[..1])?)
    })?;
    Ok(time / repeat as f64)
}

/// Panics unless the first and last rows have the CPU's bits.
fn check(
    cpu: &CpuCompute,
    (m, n): (usize, usize),
    x: &[f32],
    tensor: &kin_infer::weights::Tensor,
    found: &[f32],
) -> Result<()> {
    let (k, weight) = (x.len() / m, cpu.prepare_weight(std::slice::from_ref(tensor))?);
    for row in [0, m - 1] {
        let (x, mut out) = (cpu.upload(&x[row * k..][..k])?, cpu.alloc(n)?);
        cpu.matmul(&x, 1, &weight, Epilogue::NONE, &mut out)?;
        let mut expected = vec![0.0; n];
        cpu.read(&out, &mut expected)?;
        let same = expected.iter().zip(&found[row * n..]).all(|(e, f)| e.to_bits() == f.to_bits());
        assert!(same, "row {row} of {m} x {n} x {k} has not the CPU's bits");
    }
    Ok(())
}

/// Texts a second of a BERT with random weights, `texts` of `tokens` each at once.
fn bert(gpu: &Arc<dyn GpuCompute>, size: Size, texts: usize, tokens: usize) -> Result<f64> {
    let families = families(size);
    let model = families[0].load(&Values::new(&families[..1]), Arc::clone(gpu))?;
    let ids = |i: usize| (0..tokens).map(|t| (5 + i * 13 + t * 7) as u32 % size.vocab as u32).collect();
    let sequences: Vec<Sequence> = (0..texts).map(|i| Sequence::new(ids(i))).collect();
    let time = seconds(|| {
        for encoded in model.encode(&sequences) {
            encoded?;
        }
        Ok(())
    })?;
    Ok(texts as f64 / time)
}

/// Texts a second of MiniLM over this repository's own pages, tokenizing included, and how many texts there are.
fn minilm(gpu: &Arc<dyn GpuCompute>) -> Result<Option<(f64, usize)>> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let folder = root.join("models/all-MiniLM-L6-v2");
    if !folder.join("model.safetensors").is_file() {
        return Ok(None);
    }
    let pages = ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "docs/numerics.md", "docs/formats.md"];
    let pages =
        pages.map(|page| std::fs::read_to_string(root.join(page))).into_iter().collect::<std::io::Result<Vec<_>>>();
    let pages = pages?;
    let lines: Vec<&str> = pages.iter().flat_map(|page| page.lines()).collect();
    let texts: Vec<String> = lines.chunks(8).map(|piece| piece.join("\n")).filter(|t| !t.trim().is_empty()).collect();
    let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    let embedder = Embedder::load_with_compute(&folder, Arc::clone(gpu))?;
    let time = seconds(|| Ok(embedder.embed(&texts).map(drop)?))?;
    Ok(Some((texts.len() as f64 / time, texts.len())))
}

/// The linear layers of MiniLM, BERT-base and a 7B decoder: tokens, columns, k.
const SHAPES: [(usize, usize, usize); 8] = [
    (2048, 1152, 384),
    (2048, 1536, 384),
    (2048, 384, 1536),
    (4096, 2304, 768),
    (4096, 3072, 768),
    (4096, 768, 3072),
    (4096, 4096, 4096),
    (64, 768, 768),
];

fn measure(device: Arc<dyn Device>) -> Result<()> {
    let info = device.info();
    let (peak, stream) = (fma_peak(&*device, 4096)?, bandwidth(&*device, 256 << 20)?);
    println!("\n{}: {} ({})", info.backend, info.name, info.detail);
    println!("peak of this run: {:.2} TFLOP/s fma, {:.0} GB/s copies\n", peak * 1e-12, stream * 1e-9);
    let gpu: Arc<dyn GpuCompute> = Arc::new(DeviceCompute::new(device));
    println!("| M x N x K | ms | TFLOP/s | of the FMA peak |\n|-|-|-|-|");
    for (m, n, k) in SHAPES {
        let time = product(&*gpu, (m, n, k), Dtype::F32, 20)?;
        let rate = 2.0 * (m * n * k) as f64 / time;
        println!("| {m} x {n} x {k} | {:.3} | {:.2} | {:.3} |", time * 1e3, rate * 1e-12, rate / peak);
    }
    println!("\n| one token, N x K | type | us | GB/s | of the copies' |\n|-|-|-|-|-|");
    for (n, k) in [(4096, 4096), (11008, 4096), (4096, 11008)] {
        for (dtype, bytes) in [(Dtype::F32, 4), (Dtype::F16, 2)] {
            let time = product(&*gpu, (1, n, k), dtype, 100)?;
            let rate = (n * k * bytes) as f64 / time;
            println!("| {n} x {k} | {dtype} | {:.1} | {:.0} | {:.3} |", time * 1e6, rate * 1e-9, rate / stream);
        }
    }
    let base = Size { hidden: 768, heads: 12, layers: 12, vocab: 30_522, tokens: 512 };
    println!("\n| model | texts | texts/s |\n|-|-|-|");
    for (texts, tokens) in [(1, 128), (64, 128), (64, 512)] {
        println!(
            "| BERT-base, random weights | {texts} of {tokens} tokens | {:.1} |",
            bert(&gpu, base, texts, tokens)?
        );
    }
    match minilm(&gpu)? {
        Some((rate, texts)) => {
            println!("| MiniLM, with its tokenizer | {texts} pieces of this repository's pages | {rate:.1} |")
        }
        None => println!("MiniLM is absent: scripts/fetch-models.sh brings it"),
    }
    Ok(())
}

/// Small sizes, once.
fn try_out(device: Arc<dyn Device>) -> Result<()> {
    assert!(fma_peak(&*device, 2)? > 0.0 && bandwidth(&*device, 4096)? > 0.0);
    let gpu: Arc<dyn GpuCompute> = Arc::new(DeviceCompute::new(device));
    assert!(product(&*gpu, (3, 40, 70), Dtype::F16, 2)? > 0.0);
    let size = Size { hidden: 48, heads: 4, layers: 2, vocab: 50, tokens: 32 };
    assert!(bert(&gpu, size, 2, 8)? > 0.0);
    Ok(())
}

fn main() -> Result<()> {
    let run = if std::env::args().any(|a| a == "--bench") { measure } else { try_out };
    gpus()?.into_iter().try_for_each(run)
}
