//! Everything a fixture's model gives, as bits, and the hashes of it in fingerprints.json.

use std::sync::Arc;

use kin_infer::arch::{HeadChoice, HeadSpec};
use kin_infer::gpu::GpuCompute;
use kin_infer::model::SparsePooling;
use kin_infer::{BertConfig, BertModel, Sequence, fingerprint};
use sha2::{Digest, Sha256};

use super::{Reference, fixture};

/// A fixture of every family, and one of each way in which positions enter: what the tests of batches run on.
pub const FAMILIES: [&str; 18] = [
    "albert-groups-2",
    "bert-alibi-heads6",
    "bert-f16",
    "deberta-both",
    "deberta-long",
    "deberta-v2-conv-5",
    "deberta-v2-unshared",
    "distilbert-base",
    "electra-projected",
    "gte-ntk-mixed",
    "jina-code",
    "jina-reglu",
    "modernbert-odd-window",
    "mpnet-pad-5",
    "nomic-interleaved-half",
    "nomic-ntk",
    "roberta-pad-5",
    "t5-gated-gelu",
];

pub fn load(name: &str, compute: Arc<dyn GpuCompute>, head: HeadChoice) -> BertModel {
    let config = BertConfig::from_folder(&fixture(name)).unwrap();
    BertModel::load_with_head(&fixture(name), config, compute, head).unwrap_or_else(|e| panic!("{name}: {e}"))
}

/// A sequence of `len` tokens that depends on its length alone; some of them are the ids that number no positions.
pub fn sequence(len: usize, model: &BertModel) -> Sequence {
    let vocab = model.spec().embedding.vocab_size;
    Sequence::new((0..len).map(|i| ((i * 37 + len * 11 + i * i) % vocab) as u32).collect())
}

/// Everything a model gives for each sequence: token vectors and labels, or token scores and sparse vectors.
pub fn bits(model: &BertModel, sequences: &[Sequence]) -> Vec<Vec<u32>> {
    let of = |values: &[f32]| values.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
    if !matches!(model.spec().head, HeadSpec::MaskedLm { .. }) {
        let encoded = model.encode(sequences).into_iter().map(Result::unwrap);
        return encoded.map(|e| [of(&e.hidden), of(&e.labels)].concat()).collect();
    }
    let mut bits: Vec<Vec<u32>> = model.token_scores(sequences).into_iter().map(|s| of(&s.unwrap())).collect();
    for (sum, twice) in [(false, false), (true, true)] {
        let sparse = model.sparse(sequences, SparsePooling { sum, twice });
        bits.iter_mut().zip(sparse).for_each(|(bits, s)| bits.extend(of(&s.unwrap())));
    }
    bits
}

/// The heads a fixture is loaded with, each with its name in fingerprints.json.
pub fn heads(name: &str) -> Vec<(String, HeadChoice)> {
    let masked = Reference::open(name).names().iter().any(|n| n == "seq.0.splade");
    let masked = masked.then(|| (format!("{name}, token scores"), HeadChoice::MaskedLm));
    std::iter::once((name.to_string(), HeadChoice::Configured)).chain(masked).collect()
}

/// The scores of the next token, from a cache that grows by three tokens and then one by one.
pub fn stepped(model: &BertModel) -> Vec<Vec<u32>> {
    let ids = sequence(40.min(model.spec().max_tokens), model).ids;
    let (first, rest) = ids.split_at(3);
    let mut cache = model.kv_cache().unwrap();
    let parts = std::iter::once(first).chain(rest.chunks(1));
    parts.map(|part| model.extend(&mut cache, part).unwrap().iter().map(|v| v.to_bits()).collect()).collect()
}

/// The command line's fingerprint, or the hash of token scores and sparse vectors, or of a decoder's scores.
pub fn hash(model: &BertModel) -> String {
    let hash = match model.spec().head {
        HeadSpec::CausalLm { .. } => {
            let mut hash = Sha256::new();
            hash.update(fingerprint(model).unwrap());
            stepped(model).iter().flatten().for_each(|bits| hash.update(bits.to_le_bytes()));
            hash.finalize().into()
        }
        HeadSpec::MaskedLm { .. } => {
            let sequences: Vec<_> = [1, 3, 17, 30].map(|len| sequence(len, model)).into();
            let mut hash = Sha256::new();
            bits(model, &sequences).iter().flatten().for_each(|bits| hash.update(bits.to_le_bytes()));
            hash.finalize().into()
        }
        _ => fingerprint(model).unwrap(),
    };
    hash.iter().map(|byte| format!("{byte:02x}")).collect()
}
