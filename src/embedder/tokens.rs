//! One vector a token: what late interaction (ColBERT, arXiv 2004.12832) scores.

use rayon::prelude::*;

use super::text::{Counted, Reading, each, reading, values};
use super::{Embedder, Prompt, Role, prompt_text, role_prompt};
use crate::error::{InferError, Result};
use crate::modules::json::Settings;
use crate::modules::{Expansion, ModelFolder, Output, TokenFilter};
use crate::tokenizer::{TextTokenizer, Window};

/// How texts become token vectors.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TokenOptions {
    /// What is put before each text.
    pub prompt: Prompt,
    /// What the texts are: a folder for late interaction sets lengths by it, fills up queries and leaves out tokens.
    pub role: Role,
    /// Give each vector length 1.
    pub normalize: bool,
}

/// The token vectors of one text.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct TokenVectors {
    /// The tokens, special tokens included, without those the folder leaves out.
    pub ids: Vec<u32>,
    /// Their vectors one after the other, [tokens, token_dimension].
    pub vectors: Vec<f32>,
}

/// The late-interaction score of a document for a query, arrays of vectors of `dimension` values: the sum over the
/// query's vectors, in their order, of the largest [`dot_product`](crate::dot_product) with a vector of the document. A
/// document without vectors scores 0.
///
/// # Panics
/// When `dimension` is 0.
pub fn max_sim(query: &[f32], document: &[f32], dimension: usize) -> f32 {
    let best = |q: &[f32]| {
        let products = document.chunks_exact(dimension).map(|d| crate::dot_product(q, d));
        products.fold(None, |best: Option<f32>, p| Some(best.map_or(p, |b| if p > b { p } else { b }))).unwrap_or(0.0)
    };
    query.chunks_exact(dimension).fold(0.0, |sum, q| sum + best(q))
}

/// What a folder's settings for late interaction are in terms of its tokenizer; nothing, of a folder that pools.
#[derive(Default)]
pub(super) struct LateTokens {
    /// What fills up a query.
    filler: Option<u32>,
    /// Starts of prompts that are inserted as one token.
    marks: Vec<(String, u32)>,
    /// Special tokens at the start of an encoding: a mark goes after them.
    leading: usize,
    /// Tokens that are left out.
    skipped: Vec<u32>,
}

impl LateTokens {
    pub fn new(folder: &ModelFolder, tokenizer: &TextTokenizer) -> Result<Self> {
        if folder.output() != Output::TokenVectors {
            return Ok(Self::default());
        }
        let late = &folder.late;
        let fillers = match &late.expansion {
            Some(Expansion { token: Some(token), .. }) => vec![token.clone()],
            Some(_) => mask_tokens(folder)?,
            None => Vec::new(),
        };
        let mut marks = Vec::new();
        for mark in late.marks.iter().filter(|mark| !mark.trim().is_empty()) {
            // PyLate stores the mark with its space as one token, others without.
            let starts = [Some(mark.as_str()), mark.split_whitespace().next()].into_iter().flatten();
            let known = starts.filter_map(|start| Some((start, tokenizer.token_id(start)?))).next();
            // Where the tokenizer makes one token of it by itself, it needs no help.
            if let Some((start, id)) = known
                && tokenizer.encode(start, usize::MAX)?.ids.len() != tokenizer.num_special_tokens() + 1
            {
                marks.push((start.to_owned(), id));
            }
        }
        let letter = tokenizer.encode("a", usize::MAX)?.ids.len().saturating_sub(tokenizer.num_special_tokens());
        Ok(Self {
            filler: fillers.iter().find_map(|token| tokenizer.token_id(token)),
            marks,
            leading: tokenizer.prefix_len("a")?.saturating_sub(letter),
            skipped: folder
                .token_filters()
                .flat_map(|f| &f.skipped)
                .filter_map(|word| tokenizer.token_id(word))
                .collect(),
        })
    }

    /// The token a prompt starts with that is inserted, and what of the prompt is text.
    fn split<'a>(&self, prompt: &'a str) -> (Option<u32>, &'a str) {
        let found =
            self.marks.iter().find_map(|(mark, id)| prompt.strip_prefix(mark.as_str()).map(|rest| (Some(*id), rest)));
        found.unwrap_or((None, prompt))
    }
}

/// What the mask token may be called, the folder's own name first.
fn mask_tokens(folder: &ModelFolder) -> Result<Vec<String>> {
    let mut names = Vec::new();
    let settings = Settings::open(&folder.transformer_dir)?;
    for file in ["tokenizer_config.json", "special_tokens_map.json"] {
        let config = settings.read(file)?;
        let found = config.get("mask_token");
        names.extend(found.and_then(|v| v.as_str().or_else(|| v.get("content")?.as_str())).map(str::to_owned));
    }
    names.extend(["[MASK]", "<mask>"].map(str::to_owned));
    Ok(names)
}

impl Embedder {
    /// The vector of each token of each text, [tokens, token_dimension], without a prompt.
    pub fn embed_tokens(&self, texts: &[&str]) -> Vec<Result<Vec<f32>>> {
        let options = TokenOptions { prompt: Prompt::None, ..TokenOptions::default() };
        match self.embed_tokens_with(texts, &options) {
            Ok(found) => values(found).into_iter().map(|r| r.map(|t| t.vectors)).collect(),
            Err(e) => texts.iter().map(|_| Err(InferError::InvalidArgument(e.to_string()))).collect(),
        }
    }

    /// The token vectors of each text, with their number and whether the text was cut, or the reason why it has none.
    /// They are what the folder's pooling takes, or, of a folder for late interaction, what its modules give.
    ///
    /// # Errors
    /// Options the model cannot serve: an unknown prompt name; queries of a folder that fills them up with tokens the
    /// others do not attend to, which is not implemented.
    pub fn embed_tokens_with(
        &self,
        texts: &[&str],
        options: &TokenOptions,
    ) -> Result<Vec<Result<Counted<TokenVectors>>>> {
        let prompt = prompt_text(&self.folder, &options.prompt)?;
        let (mark, prompt) = self.late.split(&prompt);
        let expansion = self.expansion(options.role)?;
        let limit = self.token_window(options.role).limit;
        let mut readings = self.read_marked(texts, mark, prompt, limit);
        if let Some((expansion, filler)) = expansion {
            readings.iter_mut().flatten().for_each(|r| fill_up(r, expansion.length.min(limit), filler));
        }
        Ok(each(readings, |sequences| {
            let encoded = self.text.model.encode(sequences);
            let finish = |(sequence, encoded): (&crate::batch::Sequence, Result<crate::model::Encoded>)| {
                self.finish_tokens(&sequence.ids, encoded?.hidden, options)
            };
            sequences.par_iter().zip(encoded).map(finish).collect()
        }))
    }

    /// Options with the prompt of a role.
    pub fn token_options_for(&self, role: Role) -> TokenOptions {
        TokenOptions { prompt: role_prompt(&self.folder, role), role, normalize: false }
    }

    /// Length of a token's vector.
    pub fn token_dimension(&self) -> usize {
        self.pooler.token_dimension()
    }

    /// Longest text of a role in tokens, and what says so: the folder's own length for it, else the model's window.
    pub fn token_window(&self, role: Role) -> Window {
        let late = &self.folder.late;
        let asked = match (role, &late.expansion) {
            (Role::Query, Some(Expansion { length, fixed: true, .. })) => Some((*length, "query_expansion")),
            (Role::Query, Some(Expansion { length, .. })) => {
                late.query_length.map(|q| (q.max(*length), "query_length"))
            }
            (Role::Query, None) => late.query_length.map(|q| (q, "query_length")),
            (Role::Document, _) => late.document_length.map(|d| (d, "document_length")),
            (Role::Neither, _) => None,
        };
        let longest = self.text.model.spec().max_tokens;
        match asked {
            Some((asked, key)) if asked <= longest => Window { limit: asked, source: format!("`{key}`") },
            Some(_) => Window { limit: longest, source: "the positions of config.json".to_string() },
            None => self.text.window.clone(),
        }
    }

    /// What fills up queries, and with which token.
    fn expansion(&self, role: Role) -> Result<Option<(&Expansion, u32)>> {
        let Some(expansion) = self.folder.late.expansion.as_ref().filter(|_| role == Role::Query) else {
            return Ok(None);
        };
        let refused = |key: &str, expected: &str, found: &str| {
            let (expected, found) = (expected.to_string(), found.to_string());
            Err(InferError::ModelIncompatible { key: format!("query expansion: {key}"), expected, found })
        };
        if !expansion.attend {
            let expected = "true; queries filled up with tokens that the others do not attend to are not computed";
            return refused("attend", expected, "false");
        }
        match self.late.filler {
            Some(filler) => Ok(Some((expansion, filler))),
            None => refused("token", "a token of the vocabulary", expansion.token.as_deref().unwrap_or("[MASK]")),
        }
    }

    fn read_marked(&self, texts: &[&str], mark: Option<u32>, prompt: &str, limit: usize) -> Vec<Result<Reading>> {
        let Some(mark) = mark else { return self.text.read(texts, prompt, limit, true) };
        let one = |text: &&str| {
            let text = format!("{prompt}{text}");
            let encode = |limit: usize| self.text.tokenizer.encode(&text, limit);
            let mut found = reading(encode, limit.saturating_sub(1), true)?;
            let at = self.late.leading.min(found.sequence.ids.len());
            found.sequence.ids.insert(at, mark);
            found.sequence.type_ids.insert(at, 0);
            Ok(found)
        };
        self.text.read_each(texts, one)
    }

    /// The token vectors of one sequence: through the modules, filtered, normalised.
    fn finish_tokens(&self, ids: &[u32], hidden: Vec<f32>, options: &TokenOptions) -> Result<TokenVectors> {
        let width = self.token_dimension();
        let all = self.pooler.tokens(self.text.model.compute(), hidden, ids.len())?;
        if all.iter().any(|v| !v.is_finite()) {
            return Err(InferError::NonFiniteOutput { item: 0, stage: "the modules of token vectors".to_string() });
        }
        let filters: Vec<&TokenFilter> = self.folder.token_filters().collect();
        let keeps = |id: u32| filters.iter().all(|f| self.keeps(f, id, options.role));
        let (ids, rows): (Vec<u32>, Vec<&[f32]>) =
            ids.iter().copied().zip(all.chunks_exact(width)).filter(|(id, _)| keeps(*id)).unzip();
        let mut vectors = rows.concat();
        if options.normalize {
            let kernels = crate::cpu::selected()?;
            vectors.chunks_exact_mut(width).for_each(|row| kernels.l2_normalize(row));
        }
        Ok(TokenVectors { ids, vectors })
    }

    fn keeps(&self, filter: &TokenFilter, id: u32, role: Role) -> bool {
        let query = role == Role::Query;
        let skips = if query { filter.of_queries } else { filter.of_documents };
        let only = filter.only.as_ref().filter(|_| !query);
        !(skips && self.late.skipped.contains(&id)) && only.is_none_or(|ids| ids.contains(&id))
    }
}

/// Fills a query up to `length` tokens.
fn fill_up(reading: &mut Reading, length: usize, filler: u32) {
    let sequence = &mut reading.sequence;
    if sequence.ids.len() < length {
        sequence.ids.resize(length, filler);
        sequence.type_ids.resize(length, 0);
    }
}
