//! The merges of a BPE model whose file holds only pieces and scores.

use std::collections::HashMap;

/// Most merges for each piece on average: real vocabularies have two, and each takes memory.
const MOST: usize = 16;

/// Every way to put a piece together from two others, in the order in which BPE must try them: the piece with the
/// higher score first, then the longer left part, then the longer right part.
///
/// # Errors
/// More of them than a vocabulary of this size has.
pub(super) fn by_score(vocab: &[(String, f64)]) -> Result<Vec<(String, String)>, String> {
    let ids: HashMap<&str, usize> = vocab.iter().map(|(text, _)| text.as_str()).zip(0..).collect();
    let most = vocab.len().saturating_mul(MOST);
    let mut found = Vec::new();
    for (text, score) in vocab {
        let length = text.chars().count();
        let start = found.len();
        for (left_length, (cut, _)) in text.char_indices().enumerate().skip(1) {
            let (left, right) = text.split_at(cut);
            if let (Some(a), Some(b)) = (ids.get(left), ids.get(right)) {
                found.push((*score, left_length, length - left_length, (*a, *b)));
            }
        }
        if found.len() > most {
            return Err(format!("more than {most} merges make the {} pieces, {MOST} for each", vocab.len()));
        }
        found[start..].sort_by_key(|merge| merge.3);
    }
    found.sort_by(|a, b| b.0.total_cmp(&a.0).then(b.1.cmp(&a.1)).then(b.2.cmp(&a.2)));
    Ok(found.into_iter().map(|(.., (a, b))| (vocab[a].0.clone(), vocab[b].0.clone())).collect())
}
