//! The same bits: on every instruction set, with any number of threads, alone and in any batch.

mod common;

use std::collections::BTreeMap;
use std::sync::Arc;

use common::{fixture, fixtures};
use kin_infer::cpu::{CpuCompute, Kernels, available};
use kin_infer::{BertConfig, BertModel, Sequence, fingerprint};

fn load(name: &str, kernels: &'static Kernels) -> BertModel {
    let folder = fixture(name);
    let config = BertConfig::from_folder(&folder).unwrap();
    BertModel::load_with_compute(&folder, config, Arc::new(CpuCompute::with_kernels(kernels))).unwrap()
}

fn with_threads<T: Send>(threads: usize, f: impl FnOnce() -> T + Send) -> T {
    rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap().install(f)
}

/// A sequence of `len` tokens that depends on its length alone.
fn sequence(len: usize, model: &BertModel) -> Sequence {
    let vocab = model.spec().embedding.vocab_size;
    Sequence::new((0..len).map(|i| ((i * 37 + len * 11 + i * i) % vocab) as u32).collect())
}

fn bits(model: &BertModel, sequences: &[Sequence]) -> Vec<Vec<u32>> {
    let encoded = model.encode(sequences).into_iter().map(Result::unwrap);
    encoded.map(|e| e.hidden.iter().chain(&e.labels).map(|v| v.to_bits()).collect()).collect()
}

/// Which instruction sets this architecture could have, and which of them this machine lacks.
fn report_isas() -> Vec<&'static Kernels> {
    let tables = available();
    let possible: &[&str] = if cfg!(target_arch = "x86_64") {
        &["avx512", "avx2", "scalar"]
    } else if cfg!(target_arch = "aarch64") {
        &["neon", "scalar"]
    } else {
        &["scalar"]
    };
    let skipped: Vec<_> = possible.iter().filter(|p| tables.iter().all(|t| t.name() != **p)).collect();
    common::say(&format!("instruction sets run: {}, {} skipped: {skipped:?}", tables.len(), skipped.len()));
    tables
}

/// The committed fingerprints tie architectures together: x86-64 and aarch64 run this against the same file.
#[test]
fn every_isa_and_thread_count_gives_the_committed_bits_on_every_fixture() {
    let tables = report_isas();
    let committed = std::fs::read_to_string(fixture("fingerprints.json")).unwrap();
    let committed: BTreeMap<String, String> = serde_json::from_str(&committed).unwrap();
    let names = fixtures("bert-");
    assert_eq!(names, committed.keys().cloned().collect::<Vec<_>>(), "fixtures and fingerprints");
    for name in names {
        for kernels in &tables {
            let model = load(&name, kernels);
            for threads in [1, 2, 5] {
                let hash = with_threads(threads, || fingerprint(&model).unwrap());
                let found: String = hash.iter().map(|byte| format!("{byte:02x}")).collect();
                assert_eq!(found, committed[&name], "{name}: {} with {threads} threads", kernels.name());
            }
        }
    }
}

/// Lengths 1 to 130: each alone, on every instruction set, is what it is in batches of 2, 7 and 64 with shorter and
/// longer mates, in any order, with 1 and 2 threads.
#[test]
fn batch_mates_order_and_threads_do_not_show() {
    let tables = available();
    let reference = load("bert-long", tables[tables.len() - 1]);
    let sequences: Vec<Sequence> = (1..=130).map(|len| sequence(len, &reference)).collect();
    let one = |s| with_threads(1, || bits(&reference, std::slice::from_ref(s)));
    let alone: Vec<Vec<u32>> = sequences.iter().flat_map(one).collect();
    for kernels in tables {
        let model = load("bert-long", kernels);
        for (size, threads, step) in [(1, 2, 1), (2, 1, 59), (7, 2, 37), (7, 1, 41), (64, 2, 101)] {
            // A step prime to 130 mixes short and long mates, another order for each size.
            let order: Vec<usize> = (0..130).map(|i| i * step % 130).collect();
            for group in order.chunks(size) {
                let batch: Vec<Sequence> = group.iter().map(|&i| sequences[i].clone()).collect();
                let found = with_threads(threads, || bits(&model, &batch));
                for (i, found) in group.iter().zip(found) {
                    let case = format!("{}, {threads} threads, batch of {size}", kernels.name());
                    assert!(found == alone[*i], "{case}: length {}", i + 1);
                }
            }
        }
    }
}

#[test]
fn padding_does_not_show() {
    let model = load("bert-base", available()[0]);
    let ids = vec![5, 9, 33, 2];
    let plain = model.forward(std::slice::from_ref(&ids), &[vec![1; 4]]).unwrap();
    let mut padded = ids;
    padded.extend([0; 9]);
    let mask = [vec![1; 4], vec![0; 9]].concat();
    assert_eq!(model.forward(&[padded], &[mask]).unwrap(), plain);
}
