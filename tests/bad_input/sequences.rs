//! Sequences beyond a model's limits, and heads a model does not have.

use kin_infer::arch::HeadChoice;
use kin_infer::model::SparsePooling;
use kin_infer::{BertModel, InferError, Sequence};
use serde_json::json;

use crate::folder::{Copy, says, typed};
use crate::keys::FAMILIES;

fn load(name: &str) -> BertModel {
    Copy::new(name).load().unwrap_or_else(|e| panic!("{name}: {e}"))
}

/// The error of one sequence, in a call whose others are well.
#[track_caller]
fn refused(model: &BertModel, sequence: Sequence, words: &[&str], case: &str) {
    let results = model.encode(&[Sequence::new(vec![3]), sequence, Sequence::new(vec![4, 5])]);
    assert!(results[0].is_ok() && results[2].is_ok(), "{case}: the others");
    match &results[1] {
        Err(error @ InferError::InputError { item: 1, .. }) => says(error, words, case),
        other => panic!("{case}: {other:?}"),
    }
}

/// Tokens of the longest sequence, by the family's own rule; none where nothing limits it.
const WINDOWS: [(&str, Option<usize>); 25] = [
    ("albert-base", Some(36)),
    ("bert-base", Some(40)),
    ("bert-alibi", Some(40)),
    ("camembert-base", Some(38)),
    ("deberta-absolute", Some(36)),
    ("deberta-base", None),
    ("deberta-none", None),
    ("deberta-v2-base", None),
    ("deberta-v2-biased", Some(45)),
    ("distilbert-base", Some(36)),
    ("electra-base", Some(36)),
    ("gte-absolute", Some(40)),
    ("gte-base", None),
    ("gte-native", None),
    ("jina-geglu", None),
    ("modernbert-base", None),
    ("mpnet-base", Some(38)),
    ("mt5-base", None),
    ("nomic-absolute", Some(64)),
    ("nomic-base", None),
    ("roberta-base", Some(38)),
    ("roberta-pad-0", Some(39)),
    ("roberta-pad-5", Some(34)),
    ("t5-base", None),
    ("xlm-roberta-base", Some(38)),
];

#[test]
fn every_familys_window_is_its_own() {
    for (name, window) in WINDOWS {
        let model = load(name);
        let of = |len: usize| Sequence::new((0..len as u32).map(|i| 2 + i % 9).collect());
        let Some(window) = window else {
            // Longer than any of its keys says.
            assert_eq!(model.spec().max_tokens, usize::MAX, "{name}");
            assert!(model.encode(&[of(700)])[0].is_ok(), "{name}");
            continue;
        };
        assert_eq!(model.spec().max_tokens, window, "{name}");
        assert!(model.encode(&[of(window)])[0].is_ok(), "{name}: {window} tokens");
        let words = [format!("position {window}"), format!("{window} positions")];
        refused(&model, of(window + 1), &[&words[0], &words[1]], name);
        let far = Sequence { ids: vec![3, 4], type_ids: vec![], positions: vec![0, u32::MAX] };
        if model.spec().embedding.positions.is_some_and(|p| p.numbering == kin_infer::arch::Numbering::Position) {
            refused(&model, far, &["position 4294967295", &words[1]], name);
        }
    }
}

/// Positions that no table can hold are positions all the same where nothing limits them.
#[test]
fn the_farthest_position_has_a_result() {
    for (name, _) in WINDOWS.iter().filter(|(_, window)| window.is_none()) {
        let model = load(name);
        for positions in [vec![0, u32::MAX], vec![u32::MAX - 1, u32::MAX], vec![7, 1 << 18]] {
            let sequence = Sequence { ids: vec![3, 4], type_ids: vec![], positions };
            let result = model.encode(std::slice::from_ref(&sequence)).remove(0);
            assert!(result.is_ok(), "{name}: {:?}: {result:?}", sequence.positions);
        }
    }
    // On either side of what a table holds, the values of one position are the same.
    let model = load("gte-base");
    let at = |far: u32| {
        let near = Sequence { ids: vec![3, 4], type_ids: vec![], positions: vec![5, 9] };
        let mate = Sequence { ids: vec![7], type_ids: vec![], positions: vec![far] };
        model.encode(&[near, mate]).remove(0).unwrap()
    };
    assert_eq!(at(20), at(u32::MAX));
}

#[test]
fn ids_types_and_positions_are_checked_in_every_family() {
    for name in FAMILIES {
        let model = load(name);
        let (vocab, types) = (model.spec().embedding.vocab_size, model.spec().embedding.token_types.max(1));
        let sequence = |type_ids: &[u32], positions: &[u32]| Sequence {
            ids: vec![3, 4, 5],
            type_ids: type_ids.to_vec(),
            positions: positions.to_vec(),
        };
        let id = Sequence::new(vec![3, vocab as u32]);
        refused(&model, id, &[&format!("token id {vocab} at 1"), &format!("below {vocab}")], name);
        refused(&model, Sequence::new(vec![u32::MAX]), &["token id 4294967295 at 0"], name);
        let kind = types as u32;
        refused(&model, sequence(&[0, 0, kind], &[]), &[&format!("token type {kind} at 2"), "below"], name);
        refused(&model, sequence(&[0, 0], &[]), &["3 tokens but 2 token types"], name);
        refused(&model, sequence(&[], &[0, 1]), &["3 tokens but 2 positions"], name);
        for positions in [[0, 2, 1], [1, 1, 2], [2, 1, 0]] {
            refused(&model, sequence(&[], &positions), &["positions do not ascend"], name);
        }
        refused(&model, Sequence::default(), &["no tokens"], name);
        let last = sequence(&[types as u32 - 1; 3], &[0, 2, 7]);
        assert!(model.encode(&[last])[0].is_ok(), "{name}: the last type, positions with gaps");
    }
}

/// The masked language model's head of a family that has none, and of a checkpoint that lacks it.
#[test]
fn a_head_that_is_not_there_is_refused_at_load() {
    for name in FAMILIES {
        let error = typed(Copy::new(name).load_with(HeadChoice::MaskedLm), name);
        if ["t5", "mt5", "nomic"].iter().any(|family| name.starts_with(family)) {
            assert!(matches!(&error, InferError::ModelIncompatible { key, .. } if key == "model_type"), "{error:?}");
            says(error, &["masked language model"], name);
        } else {
            assert!(matches!(error, InferError::TensorError { .. }), "{name}: {error:?}");
            says(error, &["no such tensor"], name);
        }
    }
    for name in ["albert-mlm", "deberta-v2-mlm-legacy", "electra-mlm", "modernbert-mlm", "roberta-mlm"] {
        let copy = Copy::new(name);
        copy.load_with(HeadChoice::MaskedLm).unwrap();
        // Without a matrix of its own: the word embedding's is another model.
        copy.edit_config("tie_word_embeddings", json!(false));
        says(typed(copy.load_with(HeadChoice::MaskedLm), name), &["no such tensor"], name);
        copy.load().unwrap();
    }
}

#[test]
fn a_head_that_was_not_loaded_gives_an_error_for_each_item() {
    let inputs = [Sequence::new(vec![3, 4]), Sequence::new(vec![5])];
    let masked = Copy::new("roberta-mlm").load_with(HeadChoice::MaskedLm).unwrap();
    for (model, classifies, scores) in
        [(load("roberta-base"), false, false), (load("roberta-classifier-3"), true, false), (masked, false, true)]
    {
        let results = [
            (model.classify(&inputs), classifies),
            (model.token_scores(&inputs), scores),
            (model.sparse(&inputs, SparsePooling::default()), scores),
            (model.sparse(&inputs, SparsePooling { sum: true, twice: true }), scores),
        ];
        for (results, works) in results {
            assert_eq!(results.len(), 2);
            let right = |r: &kin_infer::Result<Vec<f32>>| match r {
                Ok(_) => works,
                Err(error) => !works && matches!(error, InferError::InvalidArgument(_)),
            };
            assert!(results.iter().all(right), "{results:?}");
        }
    }
}
