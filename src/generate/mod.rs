//! Decoders at work: the key and value cache, sampling, and the loop that generates.

mod cache;

pub use cache::KvCache;
