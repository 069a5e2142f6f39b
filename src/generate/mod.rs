//! Decoders at work: the key and value cache, the choice of tokens, the loop that generates, chat templates.
//!
//! [`TextGenerator`] takes a folder and gives text; [`BertModel::generate`](crate::BertModel::generate) is the level
//! below, token ids in and out. docs/generation.md is the guide.

mod cache;
mod chat;
mod choice;
mod decoding;
mod defaults;
mod generation;
mod random;
mod row;
mod sampling;
mod stops;
mod tail;
mod text;

pub use cache::KvCache;
pub use chat::{ChatOptions, ChatTemplate, Messages};
pub use choice::Logprobs;
pub use decoding::Decoding;
pub use defaults::GenerationDefaults;
pub use generation::{FinishReason, Generation, Token, TokenIter};
pub use random::Random;
pub use sampling::SamplingParams;
pub use text::TextGenerator;
