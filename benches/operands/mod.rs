//! Random operands, and the check that every kernel table gives the bits of the contract.

use std::path::PathBuf;

use kin_infer::cpu::{self, CpuCompute};
use kin_infer::gpu::{Activation, Epilogue, GpuCompute};
use kin_infer::weights::{Checkpoint, Dtype, Tensor, blocks};
use safetensors::tensor::{Dtype as FileDtype, TensorView, serialize_to_file};

/// A source of random values, and a folder for the checkpoints made of them.
pub struct Operands {
    state: u64,
    folder: PathBuf,
    files: usize,
}

impl Operands {
    pub fn new() -> Self {
        let folder = std::env::temp_dir().join(format!("kin-infer-bench-{}", std::process::id()));
        Self { state: 0x9e37_79b9_7f4a_7c15, folder, files: 0 }
    }

    /// A value in (0, 1).
    fn uniform(&mut self) -> f64 {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        ((self.state >> 11) as f64 + 0.5) / (1u64 << 53) as f64
    }

    /// Standard normal values.
    pub fn gaussian(&mut self, len: usize) -> Vec<f32> {
        let mut value = || {
            let radius = (-2.0 * self.uniform().ln()).sqrt();
            (radius * (std::f64::consts::TAU * self.uniform()).cos()) as f32
        };
        (0..len).map(|_| value()).collect()
    }

    /// A random [n, k] tensor, read from a safetensors file.
    pub fn weight(&mut self, n: usize, k: usize, dtype: Dtype) -> kin_infer::Result<Tensor> {
        let values = self.gaussian(n * k);
        let (file_dtype, bytes): (_, Vec<u8>) = match dtype {
            Dtype::F32 => (FileDtype::F32, values.iter().flat_map(|v| v.to_le_bytes()).collect()),
            Dtype::F16 => (FileDtype::F16, values.iter().flat_map(|v| half::f16::from_f32(*v).to_le_bytes()).collect()),
            Dtype::BF16 => {
                (FileDtype::BF16, values.iter().flat_map(|v| half::bf16::from_f32(*v).to_le_bytes()).collect())
            }
            _ => {
                let mut bytes = vec![0; values.len() / dtype.block_len() * dtype.size()];
                blocks::quantise(dtype, &values, &mut bytes)?;
                (FileDtype::U8, bytes)
            }
        };
        std::fs::create_dir_all(&self.folder).expect("a folder for temporary files");
        let path = self.folder.join(format!("{}.safetensors", self.files));
        self.files += 1;
        let view = TensorView::new(file_dtype, vec![n, bytes.len() * 8 / file_dtype.bitsize() / n], &bytes);
        let blocks = format!(r#"{{"weight": {{"dtype": "{dtype}", "shape": [{n}, {k}]}}}}"#);
        let metadata = dtype.is_block().then(|| [("kin_infer.blocks".to_string(), blocks)].into());
        serialize_to_file([("weight", view.expect("the bytes fit the shape"))], metadata, &path).expect("a file");
        Checkpoint::open_file(&path)?.tensor("weight").cloned()
    }
}

impl Drop for Operands {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder); // what is left in a temporary folder does no harm
    }
}

/// Terms of a chain; see `GpuCompute::matmul` and docs/numerics.md.
const K_BLOCK: usize = 512;

/// Panics unless every table gives the bits of the definition on ragged shapes, with and without an epilogue.
pub fn check_bits() -> kin_infer::Result<()> {
    let mut operands = Operands::new();
    let shapes = [(1, 1, 1), (3, 17, 5), (7, 49, 130), (13, 95, 513), (16, 48, 512), (29, 33, 1025), (195, 50, 31)];
    for (m, n, k) in shapes {
        for dtype in [Dtype::F32, Dtype::BF16, Dtype::F16] {
            let tensor = operands.weight(n, k, dtype)?;
            let [x, bias, factor, residual] = [m * k, n, m * n, m * n].map(|len| operands.gaussian(len));
            let mut w = vec![0.0; n * k];
            tensor.read_f32(0, &mut w)?;
            let dot = |i: usize, j: usize| {
                let blocks = x[i * k..][..k].chunks(K_BLOCK).zip(w[j * k..][..k].chunks(K_BLOCK));
                let chains = blocks.map(|(x, w)| x.iter().zip(w).fold(0f32, |c, (x, w)| x.mul_add(*w, c)));
                chains.reduce(|sum, chain| sum + chain).unwrap_or(0.0)
            };
            let product: Vec<f32> = (0..m * n).map(|i| dot(i / n, i % n)).collect();
            for table in cpu::available() {
                let compute = CpuCompute::with_kernels(table);
                let weight = compute.prepare_weight(std::slice::from_ref(&tensor))?;
                let input = compute.upload(&x)?;
                let bias_buffer = compute.upload(&bias)?;
                let (factor_buffer, residual_buffer) = (compute.upload(&factor)?, compute.upload(&residual)?);
                let full = Epilogue {
                    bias: Some(&bias_buffer),
                    activation: Activation::Relu,
                    factor: Some(&factor_buffer),
                    residual: Some(&residual_buffer),
                };
                for epilogue in [Epilogue::NONE, full] {
                    // Stale values that would show in the result, were they read.
                    let mut output = compute.upload(&vec![f32::NAN; m * n])?;
                    compute.matmul(&input, m, &weight, epilogue, &mut output)?;
                    let mut found = vec![0.0; m * n];
                    compute.read(&output, &mut found)?;
                    for (i, (found, product)) in found.iter().zip(&product).enumerate() {
                        let expected = match epilogue.residual {
                            Some(_) => (product + bias[i % n]).max(0.0) * factor[i] + residual[i],
                            None => *product,
                        };
                        let name = table.name();
                        assert!(
                            found.to_bits() == expected.to_bits(),
                            "{name}, {dtype}, M {m} N {n} K {k}: [{}, {}] is {found:e}, the contract says {expected:e}",
                            i / n,
                            i % n
                        );
                    }
                }
            }
        }
    }
    Ok(())
}
