//! The merges of a BPE model whose file holds only pieces and scores.

use std::collections::HashMap;

/// Every way to put a piece together from two others, in the order in which BPE must try them: the piece with the
/// higher score first, then the longer left part, then the longer right part.
pub(super) fn by_score(vocab: &[(String, f64)]) -> Vec<(String, String)> {
    let ids: HashMap<&str, usize> = vocab.iter().map(|(text, _)| text.as_str()).zip(0..).collect();
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
        found[start..].sort_by_key(|merge| merge.3);
    }
    found.sort_by(|a, b| b.0.total_cmp(&a.0).then(b.1.cmp(&a.1)).then(b.2.cmp(&a.2)));
    found.into_iter().map(|(.., (a, b))| (vocab[a].0.clone(), vocab[b].0.clone())).collect()
}
