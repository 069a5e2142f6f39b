//! Transformer inference in pure Rust.
pub mod cpu;
pub mod env;
pub mod error;
pub mod gpu;
pub mod modules;
pub mod tokenizer;
pub mod weights;

pub use error::{InferError, Result};
