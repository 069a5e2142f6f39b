//! Where special tokens stand around one text or two, and the type id of each part.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::{Value, json};
use tokenizers::Tokenizer;
use tokenizers::processors::template::TemplateProcessing;

use super::failure;
use super::special::{Role, Specials};
use crate::error::{InferError, Result};
use crate::modules::json::JsonFile;

/// How the ids of one text, or of two, are completed.
#[derive(Debug, Clone, Copy)]
pub(super) enum Template {
    /// The same parts whatever the configuration says.
    Fixed { single: Parts, pair: Parts },
    /// A beginning and an end around each text, where `add_bos_token` and `add_eos_token` ask for them; `bos` is what
    /// counts when the former is absent.
    Causal { bos: bool },
}

type Parts = &'static [Part];

/// A special token or a text, with its type id.
#[derive(Debug, Clone, Copy)]
pub(super) enum Part {
    Token(Role, u32),
    A,
    B(u32),
}

use Part::{A, B, Token};
use Role::{Bos, Cls, Eos, Sep};

pub(super) const BERT: Template = Template::Fixed {
    single: &[Token(Cls, 0), A, Token(Sep, 0)],
    pair: &[Token(Cls, 0), A, Token(Sep, 0), B(1), Token(Sep, 1)],
};
pub(super) const ROBERTA: Template = Template::Fixed {
    single: &[Token(Cls, 0), A, Token(Sep, 0)],
    pair: &[Token(Cls, 0), A, Token(Sep, 0), Token(Sep, 0), B(0), Token(Sep, 0)],
};
/// RoBERTa's, with the tokens of the SentencePiece file.
pub(super) const FAIRSEQ: Template = Template::Fixed {
    single: &[Token(Bos, 0), A, Token(Eos, 0)],
    pair: &[Token(Bos, 0), A, Token(Eos, 0), Token(Eos, 0), B(0), Token(Eos, 0)],
};
pub(super) const T5: Template =
    Template::Fixed { single: &[A, Token(Eos, 0)], pair: &[A, Token(Eos, 0), B(0), Token(Eos, 0)] };
pub(super) const PLAIN: Template = Template::Causal { bos: false };
pub(super) const AFTER_BOS: Template = Template::Causal { bos: true };

impl Template {
    /// Refuses a vocabulary, read from `file`, without the tokens of a fixed template: a new id would be one that the
    /// model does not know.
    pub(super) fn check(self, file: &Path, specials: &Specials, inner: &Tokenizer) -> Result<()> {
        let Self::Fixed { pair, .. } = self else { return Ok(()) };
        let mut roles = pair.iter().filter_map(|part| if let Token(role, _) = part { Some(*role) } else { None });
        match roles.find(|role| !specials.known(*role, inner)) {
            Some(role) => Err(missing(file, specials.role(role).unwrap_or_default())),
            None => Ok(()),
        }
    }

    /// The post-processor for `inner`, whose special tokens must be registered already. A causal template leaves out
    /// a token that the tokenizer does not have; a fixed one needs all of its tokens.
    pub(super) fn processor(
        self,
        config: &JsonFile,
        specials: &Specials,
        inner: &Tokenizer,
    ) -> Result<TemplateProcessing> {
        let (single, pair) = match self {
            Self::Fixed { single, pair } => (single.to_vec(), pair.to_vec()),
            Self::Causal { bos } => {
                let bos = config.flag("add_bos_token")?.unwrap_or(bos) && specials.role(Bos).is_some();
                let eos = config.flag("add_eos_token")?.unwrap_or(false) && specials.role(Eos).is_some();
                causal(bos, eos)
            }
        };
        let mut tokens = BTreeMap::new();
        for part in &pair {
            if let Token(role, _) = part {
                let name = specials.role(*role).unwrap_or_default();
                let id = inner.token_to_id(name).ok_or_else(|| missing(&config.file, name))?;
                tokens.insert(name, json!({"id": name, "ids": [id], "tokens": [name]}));
            }
        }
        let piece = |part: &Part| piece(*part, specials);
        let [single, pair] = [single, pair].map(|parts| parts.iter().map(piece).collect::<Vec<_>>());
        let template = json!({
            "type": "TemplateProcessing", "single": single, "pair": pair, "special_tokens": tokens,
        });
        serde_json::from_value(template).map_err(|error| config.error(format!("special tokens: {error}")))
    }
}

fn missing(file: &Path, token: &str) -> InferError {
    failure(file, format!("the special token `{token}` is missing"))
}

fn causal(bos: bool, eos: bool) -> (Vec<Part>, Vec<Part>) {
    let around = |text, kind| {
        let parts = [bos.then_some(Token(Bos, kind)), Some(text), eos.then_some(Token(Eos, kind))];
        parts.into_iter().flatten().collect::<Vec<_>>()
    };
    (around(A, 0), [around(A, 0), around(B(1), 1)].concat())
}

fn piece(part: Part, specials: &Specials) -> Value {
    match part {
        Token(role, kind) => {
            json!({"SpecialToken": {"id": specials.role(role).unwrap_or_default(), "type_id": kind}})
        }
        A => json!({"Sequence": {"id": "A", "type_id": 0}}),
        B(kind) => json!({"Sequence": {"id": "B", "type_id": kind}}),
    }
}
