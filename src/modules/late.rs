//! What late interaction (ColBERT, arXiv 2004.12832) needs to know of queries and documents: lengths, marks, tokens
//! that do not count.

use std::path::Path;

use super::json::{JsonFile, incompatible, sentence_config};
use crate::error::Result;

/// Lengths and marks of queries and documents.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LateInteraction {
    /// Longest query in tokens, in place of the model's own window.
    pub query_length: Option<usize>,
    /// Longest document in tokens, in place of the model's own window.
    pub document_length: Option<usize>,
    /// Queries are filled up with mask tokens, whose vectors count as the others.
    pub expansion: Option<Expansion>,
    /// Starts of prompts that are one token each where the vocabulary holds them (PyLate's `[Q] ` and `[D] `).
    pub marks: Vec<String>,
}

/// How queries are filled up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Expansion {
    /// A query has at least so many tokens.
    pub length: usize,
    /// A longer query is cut to `length`.
    pub fixed: bool,
    /// Whether the text's tokens attend to those that fill up.
    pub attend: bool,
    /// What fills up; the tokenizer's mask token where it is `None`.
    pub token: Option<String>,
}

/// Leaves out the vectors of some tokens (`MultiVectorMask`).
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TokenFilter {
    /// Tokens that are left out, such as punctuation. Those the vocabulary lacks are none.
    pub skipped: Vec<String>,
    /// Whether they are left out of queries.
    pub of_queries: bool,
    /// Whether they are left out of documents, and of texts that are neither.
    pub of_documents: bool,
    /// The only token ids that are kept of documents.
    pub only: Option<Vec<u32>>,
}

/// Python's `string.punctuation`, which PyLate leaves out.
const PUNCTUATION: &str = "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~";

impl LateInteraction {
    /// Reads the transformer's settings and, where they do not say it, PyLate's keys of `about`.
    pub(super) fn read(transformer_dir: &Path, about: &JsonFile) -> Result<Self> {
        let config = sentence_config(transformer_dir)?;
        let mut late = Self::of_pylate(about)?;
        if let Some(length) = config.positive("query_length")? {
            late.query_length = Some(length);
        }
        if let Some(length) = config.positive("document_length")? {
            late.document_length = Some(length);
        }
        if let Some(found) = config.get("query_expansion") {
            let map = found.as_object().ok_or_else(|| config.wrong("query_expansion", "an object", found))?;
            let inner = JsonFile { file: config.file.clone(), map: map.clone() };
            let fixed = match inner.text("strategy")? {
                Some("fixed") => true,
                Some("min") => false,
                other => {
                    let found = other.unwrap_or("absent");
                    return Err(incompatible(&config.file, "query_expansion.strategy", "fixed, min", found));
                }
            };
            late.expansion = Some(Expansion {
                length: inner.must("length")?,
                fixed,
                attend: inner.flag("attend")?.unwrap_or(false),
                token: inner.text("token")?.map(str::to_owned),
            });
        }
        Ok(late)
    }

    /// What PyLate writes into config_sentence_transformers.json.
    fn of_pylate(about: &JsonFile) -> Result<Self> {
        let keys = ["query_length", "document_length", "do_query_expansion", "attend_to_expansion_tokens"];
        let more = ["query_prefix", "document_prefix", "skiplist_words"];
        let mut late = Self { document_length: about.positive("document_length")?, ..Self::default() };
        let query_length = about.positive("query_length")?;
        for key in ["query_prefix", "document_prefix"] {
            late.marks.extend(about.text(key)?.map(str::to_owned));
        }
        let known = keys.iter().chain(&more).any(|key| about.map.contains_key(*key));
        if known && about.flag("do_query_expansion")?.unwrap_or(true) {
            let attend = about.flag("attend_to_expansion_tokens")?.unwrap_or(false);
            let length = query_length.unwrap_or(32);
            late.expansion = Some(Expansion { length, fixed: true, attend, token: None });
        } else {
            late.query_length = query_length;
        }
        Ok(late)
    }
}

impl TokenFilter {
    /// Reads a module's config.
    pub(super) fn read(config: &JsonFile) -> Result<Self> {
        let tasks = match config.get("skiplist_tasks") {
            Some(serde_json::Value::String(one)) => vec![one.clone()],
            _ => config.texts("skiplist_tasks")?.unwrap_or_else(|| vec!["document".to_owned()]),
        };
        let only = config.get("keep_only_token_ids").map(|found| {
            let ids = serde_json::from_value::<Vec<u32>>(found.clone());
            ids.map_err(|_| config.wrong("keep_only_token_ids", "a list of token ids", found))
        });
        Ok(Self {
            skipped: config.texts("skiplist_words")?.unwrap_or_default(),
            of_queries: tasks.iter().any(|task| task == "query"),
            of_documents: tasks.iter().any(|task| task == "document"),
            only: only.transpose()?.filter(|ids| !ids.is_empty()),
        })
    }

    /// PyLate's: punctuation, unless its settings list other words.
    pub(super) fn of_pylate(about: &JsonFile) -> Result<Self> {
        let punctuation = || PUNCTUATION.chars().map(String::from).collect();
        let skipped = about.texts("skiplist_words")?.unwrap_or_else(punctuation);
        Ok(Self { skipped, of_documents: true, ..Self::default() })
    }
}
