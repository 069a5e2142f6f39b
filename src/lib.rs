//! Transformer inference in pure Rust: the same bits on every CPU, with any number of threads, alone or in any batch.
//!
//! Text to vectors takes a sentence-transformers folder and three lines:
//!
//! ```no_run
//! # fn main() -> kin_infer::Result<()> {
//! let embedder = kin_infer::Embedder::load(std::path::Path::new("models/all-MiniLM-L6-v2"))?;
//! for vector in embedder.embed(&["fn main() {}", "where does the program start?"])? {
//!     println!("{:?}", &vector[..4]);
//! }
//! # Ok(()) }
//! ```
//!
//! The way in is short, and each arrow is a file: text -> [`tokenizer`] -> token ids -> [`batch`] (sequences end to
//! end, no padding) -> [`model`] (one forward pass over the backend trait [`gpu::GpuCompute`]) -> [`pooling`] ->
//! vectors. What a family of models is stands in [`arch`]; what the kernels promise, in docs/numerics.md.
//!
//! - [`Embedder`]: texts to vectors; [`Reranker`]: pairs of texts to scores.
//! - [`BertModel`]: any loaded model, from token ids to vectors.
//! - [`gpu::create_compute`]: the best backend of this build on this machine; the CPU is always there.
//! - [`durable`]: output files of a long run that a kill at any moment leaves fit to go on with.
//! - [`fingerprint()`]: one hash of a model's outputs, equal on every machine.
//!
//! Threads come from the rayon pool that is current at the call; [`init_performance_threads`] makes the process-wide
//! one as wide as the [`resource`] plan says. [`watchdog`] ends long runs that have died, and cancels those that shall
//! end.

pub mod arch;
pub mod batch;
pub mod config;
pub mod cpu;
#[cfg(feature = "cuda")]
pub mod cuda_backend;
pub mod durable;
pub mod embedder;
pub mod env;
pub mod error;
pub mod fingerprint;
mod fork;
pub mod generate;
pub mod gpu;
mod hex;
pub mod hub;
#[cfg(all(feature = "metal", target_os = "macos"))]
pub mod metal_backend;
pub mod model;
pub mod modules;
pub mod pooling;
pub mod quantize;
pub mod resource;
pub mod tokenizer;
pub mod watchdog;
pub mod weights;

pub use batch::Sequence;
pub use config::{BertConfig, ModelArchitecture};
pub use embedder::{
    Counted, EmbedOptions, Embedder, Prompt, Reranker, Role, SparseEmbedder, SparseOptions, SparseVector, TokenOptions,
    TokenVectors, max_sim,
};
pub use error::{InferError, Result};
pub use fingerprint::fingerprint;
pub use gpu::Precision;
pub use hex::hex;
pub use model::{BertModel, Encoded, LoadOptions, WeightForm};
pub use resource::{init_performance_threads, init_threads};

/// The dot product of two vectors in the contract's order: 32 virtual lanes, folded by halving. On unit vectors it is
/// their cosine similarity.
///
/// # Panics
/// When the lengths differ, naming both.
pub fn dot_product(a: &[f32], b: &[f32]) -> f32 {
    // A pinned instruction set that does not exist is reported where a backend is made; results are the same anyway.
    cpu::selected().unwrap_or_else(|_| cpu::available()[0]).dot(a, b)
}
