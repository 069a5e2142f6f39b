//! Matrix products and attention of the CPU backend as a share of the f32 FMA peak, one thread.
//!
//! `cargo bench --bench gemm [-- [--rounds N] [words that a row's label must hold]]`. Every sample of a row lies between
//! two measurements of the instruction set's peak (see `cpu::peak`), in thread CPU time: a share is a ratio within a few
//! milliseconds, which changes of the clock and other jobs disturb least. Run by `cargo test --benches`, it only checks
//! that all tables give the same bits.

mod clock;
mod operands;

use std::cell::RefCell;
use std::rc::Rc;

use clock::{median, now};
use kin_infer::Precision;
use kin_infer::cpu::{self, CpuCompute, Kernels, QuantKernels, peak};
use kin_infer::gpu::{AttentionShape, Buffer, Columns, Epilogue, GpuCompute, KeyWindow, ScoreBias, Segments};
use kin_infer::weights::Dtype;
use operands::Operands;

/// (N, K) of the linear layers of all-MiniLM-L6 and of BERT-base.
const SHAPES: [(usize, usize); 8] =
    [(384, 384), (1152, 384), (1536, 384), (384, 1536), (768, 768), (2304, 768), (3072, 768), (768, 3072)];
const TOKENS: [usize; 5] = [16, 64, 128, 512, 2048];
const MAX_TOKENS: usize = 2048;
const MAX_WIDTH: usize = 3072;

/// Length of a sample, and of each of the two peaks around it, in seconds.
const SAMPLE: f64 = 2e-3;
const PEAK_SAMPLE: f64 = 0.7e-3;

/// GFLOP/s of `f`, which returns the operations it did.
fn rate(f: impl FnOnce() -> f64) -> f64 {
    let start = now();
    let operations = f();
    operations / (now() - start) * 1e-9
}

struct Row {
    isa: &'static str,
    group: &'static str,
    label: String,
    flops: f64,
    /// A best share that no measurement reaches.
    ceiling: f64,
    run: Box<dyn Fn()>,
    samples: Vec<Sample>,
}

struct Sample {
    rate: f64,
    share: f64,
}

impl Row {
    /// One sample, between two peaks.
    fn sample(&mut self, peak: peak::Loop) {
        (self.run)();
        let before = measure_peak(peak);
        let repeats = (SAMPLE * before * 1e9 / self.flops).ceil().max(1.0) as usize;
        let rate = rate(|| {
            (0..repeats).for_each(|_| (self.run)());
            repeats as f64 * self.flops
        });
        let after = measure_peak(peak);
        // Whatever disturbs a peak lowers it: the higher one is nearer to the truth.
        self.samples.push(Sample { rate, share: rate / before.max(after) });
    }

    fn median_share(&self) -> f64 {
        median(self.samples.iter().map(|s| s.share))
    }

    fn best_share(&self) -> f64 {
        self.samples.iter().map(|s| s.share).fold(0.0, f64::max)
    }
}

fn geometric_mean(values: impl Iterator<Item = f64>) -> f64 {
    let (sum, count) = values.fold((0.0, 0.0), |(s, n), v| (s + v.ln(), n + 1.0));
    (sum / count).exp()
}

/// A peak in GFLOP/s.
fn measure_peak(peak: peak::Loop) -> f64 {
    // The first iterations find how many a sample takes, and bring the core to the clock of these instructions.
    const PROBE: u64 = 5_000;
    let mut operations = 0.0;
    let probe = rate(|| {
        operations = peak(PROBE);
        operations
    });
    let iterations = (PEAK_SAMPLE * probe * 1e9 / operations * PROBE as f64) as u64;
    rate(|| peak(iterations))
}

/// The operands that the rows of all tables share.
struct Shared {
    operands: Operands,
    compute: CpuCompute,
    input: Rc<Buffer>,
    output: Rc<RefCell<Buffer>>,
}

impl Shared {
    fn new() -> kin_infer::Result<Self> {
        let compute = CpuCompute::with_kernels(cpu::available()[0]);
        let mut operands = Operands::new();
        let input = Rc::new(compute.upload(&operands.gaussian(MAX_TOKENS * MAX_WIDTH))?);
        let output = Rc::new(RefCell::new(compute.alloc(MAX_TOKENS * MAX_WIDTH)?));
        Ok(Self { operands, compute, input, output })
    }

    /// Rows of one product, for each table that has a peak.
    fn matmul(
        &mut self,
        rows: &mut Vec<Row>,
        group: &'static str,
        (n, k, dtype): (usize, usize, Dtype),
        tokens: &[usize],
    ) -> kin_infer::Result<()> {
        let weight = Rc::new(self.compute.prepare_weight(&[self.operands.weight(n, k, dtype)?])?);
        for table in tables() {
            let compute = Rc::new(CpuCompute::with_kernels(table));
            for &m in tokens {
                let (compute, weight) = (Rc::clone(&compute), Rc::clone(&weight));
                let (input, output) = (Rc::clone(&self.input), Rc::clone(&self.output));
                rows.push(Row {
                    isa: table.name(),
                    group,
                    label: format!("{dtype} M {m:4} N {n:4} K {k:4}"),
                    flops: 2.0 * (m * n * k) as f64,
                    ceiling: 1.05,
                    run: Box::new(move || {
                        let mut output = output.borrow_mut();
                        compute.matmul(&input, m, &weight, Epilogue::NONE, &mut output).expect("matmul");
                    }),
                    samples: Vec::new(),
                });
            }
        }
        Ok(())
    }

    /// Rows of one product of integers, for each set of integer kernels; the quantisation of the input is part of it.
    fn integers(
        &mut self,
        rows: &mut Vec<Row>,
        group: &'static str,
        (n, k): (usize, usize),
        tokens: &[usize],
    ) -> kin_infer::Result<()> {
        let (dtype, precision) = match group {
            "Q8_0" => (Dtype::Q8_0, Precision::Exact),
            "Q4_0" => (Dtype::Q4_0, Precision::Exact),
            _ => (Dtype::F32, Precision::Int8),
        };
        let tensor = self.operands.weight(n, k, dtype)?;
        let weight = Rc::new(self.compute.prepare_weight_as(&[tensor], precision)?);
        for (table, quant) in integer_tables() {
            let compute = Rc::new(CpuCompute::with_quant_kernels(table, quant));
            for &m in tokens {
                let (compute, weight) = (Rc::clone(&compute), Rc::clone(&weight));
                let (input, output) = (Rc::clone(&self.input), Rc::clone(&self.output));
                rows.push(Row {
                    isa: table.name(),
                    group,
                    label: format!("{} M {m:4} N {n:4} K {k:4}", quant.name()),
                    flops: 2.0 * (m * n * k) as f64,
                    ceiling: ceiling(group, quant.name()),
                    run: Box::new(move || {
                        let mut output = output.borrow_mut();
                        compute.matmul(&input, m, &weight, Epilogue::NONE, &mut output).expect("matmul");
                    }),
                    samples: Vec::new(),
                });
            }
        }
        Ok(())
    }

    /// Self-attention of one sequence, read from one matrix of queries, keys and values.
    fn attention(&self, rows: &mut Vec<Row>, heads: usize, head_dim: usize, len: usize) -> kin_infer::Result<()> {
        for table in tables() {
            let compute = CpuCompute::with_kernels(table);
            let (input, output) = (Rc::clone(&self.input), Rc::clone(&self.output));
            let segments = Segments::from_lengths([len]);
            let positions = compute.upload_index(&(0..len as u32).collect::<Vec<_>>())?;
            rows.push(Row {
                isa: table.name(),
                group: "attention",
                label: format!("attention of {len:3} tokens, {heads} x {head_dim}"),
                flops: (heads * 4 * len * len * head_dim) as f64,
                ceiling: 1.05,
                run: Box::new(move || {
                    let mut output = output.borrow_mut();
                    let width = heads * head_dim;
                    let part = |i: usize| Columns { buffer: &input, first: i * width, stride: 3 * width };
                    let scale = (head_dim as f32).sqrt().recip();
                    let shape = AttentionShape {
                        segments: &segments,
                        heads,
                        kv_heads: heads,
                        head_dim,
                        scale,
                        positions: &positions,
                        bias: ScoreBias::None,
                        window: KeyWindow::ALL,
                        softcap: None,
                    };
                    compute.attention(part(0), part(1), part(2), &shape, &mut output).expect("attention");
                }),
                samples: Vec::new(),
            });
        }
        Ok(())
    }
}

/// Of products of bytes: they take four times as many terms as an FMA, AMX's 32 times, 16 times in blocks of 32.
fn ceiling(group: &str, set: &str) -> f64 {
    match (set, group) {
        ("amx-int8", "int8") => 33.6,
        ("amx-int8", _) => 16.8,
        _ => 4.2,
    }
}

fn tables() -> impl Iterator<Item = &'static Kernels> {
    cpu::available().into_iter().filter(|t| peak::of(t).is_some())
}

/// Each set of integer kernels but the scalar one, with the float kernels of its registers.
fn integer_tables() -> impl Iterator<Item = (&'static Kernels, &'static QuantKernels)> {
    cpu::quant_available().into_iter().filter_map(|quant| {
        let name = match quant.name() {
            "amx-int8" | "avx512-vnni" => "avx512",
            "avx-vnni" | "avx2" => "avx2",
            "neon-i8mm" | "neon-dotprod" | "neon" => "neon",
            _ => return None,
        };
        tables().find(|t| t.name() == name).map(|table| (table, quant))
    })
}

fn print(rows: &[Row], isa: &str) {
    println!("\n{isa}");
    println!("| group | row | GFLOP/s | share of peak, median | best |\n|-|-|-|-|-|");
    for row in rows {
        let rate = median(row.samples.iter().map(|s| s.rate));
        let (share, best) = (row.median_share(), row.best_share());
        let flag = if best > row.ceiling { " IMPOSSIBLE: the peak or the clock is wrong" } else { "" };
        println!("| {} | {} | {rate:.1} | {share:.3} | {best:.3}{flag} |", row.group, row.label);
    }
    let mean = |label: &str, keep: &dyn Fn(&Row) -> bool| {
        let kept: Vec<&Row> = rows.iter().filter(|r| keep(r)).collect();
        if !kept.is_empty() {
            let (share, best) = (
                geometric_mean(kept.iter().map(|r| r.median_share())),
                geometric_mean(kept.iter().map(|r| r.best_share())),
            );
            println!("{isa} geometric mean{label} of {} rows: median {share:.3}, best {best:.3}", kept.len());
        }
    };
    for m in TOKENS {
        mean(&format!(", f32, {m} tokens,"), &|r| r.group == "f32" && r.label.contains(&format!("M {m:4} ")));
    }
    mean(", f32,", &|r| r.group == "f32");
    for (_, quant) in integer_tables().filter(|(t, _)| t.name() == isa) {
        for group in ["int8", "Q8_0", "Q4_0"] {
            let of = |r: &Row| r.group == group && r.label.starts_with(&format!("{} M", quant.name()));
            mean(&format!(", {group}, {},", quant.name()), &of);
        }
    }
}

fn bench(rounds: usize, words: &[String]) -> kin_infer::Result<()> {
    let mut shared = Shared::new()?;
    let mut rows = Vec::new();
    for (n, k) in SHAPES {
        shared.matmul(&mut rows, "f32", (n, k, Dtype::F32), &TOKENS)?;
    }
    for (n, k) in [(384, 384), (3072, 768)] {
        shared.matmul(&mut rows, "few rows", (n, k, Dtype::F32), &[1, 2, 4])?;
        for dtype in [Dtype::BF16, Dtype::F16] {
            shared.matmul(&mut rows, "16-bit", (n, k, dtype), &[16, 128])?;
        }
    }
    for (n, k) in SHAPES {
        shared.integers(&mut rows, "int8", (n, k), &[16, 128, 512, 2048])?;
    }
    for (n, k) in [(384, 384), (1536, 384), (768, 768), (3072, 768), (768, 3072)] {
        for group in ["Q8_0", "Q4_0"] {
            shared.integers(&mut rows, group, (n, k), &[16, 128, 512])?;
        }
    }
    for len in [16, 128, 512] {
        shared.attention(&mut rows, 12, 32, len)?;
    }
    rows.retain(|r| words.iter().all(|w| format!("{} {} {} ", r.isa, r.group, r.label).contains(w.as_str())));
    for _ in 0..rounds {
        for row in &mut rows {
            let table = cpu::by_name(row.isa)?;
            row.sample(peak::of(table).expect("rows are of tables with a peak"));
        }
    }
    for table in tables() {
        let (of_table, rest) = rows.into_iter().partition(|r| r.isa == table.name());
        rows = rest;
        let of_table: Vec<Row> = of_table;
        if !of_table.is_empty() {
            print(&of_table, table.name());
        }
    }
    Ok(())
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments: Vec<String> = std::env::args().skip(1).collect();
    let measure = arguments.iter().any(|a| a == "--bench");
    let mut rounds = 9;
    if let Some(at) = arguments.iter().position(|a| a == "--rounds") {
        rounds = arguments.get(at + 1).ok_or("--rounds takes a number")?.parse()?;
        arguments.drain(at..at + 2);
    }
    let words: Vec<String> = arguments.into_iter().filter(|a| !a.starts_with("--")).collect();
    rayon::ThreadPoolBuilder::new().num_threads(1).build()?.install(|| -> kin_infer::Result<()> {
        operands::check_bits()?;
        if measure { bench(rounds.max(1), &words) } else { Ok(()) }
    })?;
    Ok(())
}
