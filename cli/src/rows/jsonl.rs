//! A text's row as a JSON object.

use kin_infer::embedder::Counted;
use serde::Serialize;
use serde_json::Value;

use super::Extras;
use crate::encoder::Encoded;

/// A line of output.
#[derive(Serialize)]
pub struct Line<'a> {
    id: &'a Value,
    #[serde(skip_serializing_if = "Option::is_none")]
    token_count: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    truncated: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    embedding: Option<&'a [f32]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    token_ids: Option<&'a [u32]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tokens: Option<Vec<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    embeddings: Option<Vec<&'a [f32]>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    indices: Option<&'a [u32]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    values: Option<&'a [f32]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    terms: Option<Vec<String>>,
}

/// What is written of a text; `term` names a token.
pub fn line<'a>(
    id: &'a Value,
    row: &'a Counted<Encoded>,
    extras: Extras,
    dimension: usize,
    term: impl Fn(u32) -> String,
) -> Line<'a> {
    let names = |ids: &[u32]| ids.iter().map(|id| term(*id)).collect::<Vec<_>>();
    let mut line = Line {
        id,
        token_count: extras.counts.then_some(row.tokens),
        truncated: extras.counts.then_some(row.truncated),
        embedding: None,
        token_ids: None,
        tokens: None,
        embeddings: None,
        indices: None,
        values: None,
        terms: None,
    };
    match &row.value {
        Encoded::Vector(vector) => line.embedding = Some(vector),
        Encoded::Tokens(tokens) => {
            line.token_ids = Some(&tokens.ids);
            line.tokens = Some(names(&tokens.ids));
            line.embeddings = Some(tokens.vectors.chunks_exact(dimension).collect());
        }
        Encoded::Sparse(vector) => {
            line.indices = Some(&vector.indices);
            line.values = Some(&vector.values);
            line.terms = extras.terms.then(|| names(&vector.indices));
        }
    }
    line
}
