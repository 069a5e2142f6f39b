//! The same bits: on every instruction set, with any number of threads, alone and in any batch.

mod common;

use std::collections::BTreeMap;
use std::sync::Arc;

use common::outputs::{FAMILIES, bits, hash, heads, sequence};
use common::{decoders, encoders, fixture};
use kin_infer::arch::{HeadChoice, ScorePositions};
use kin_infer::cpu::{CpuCompute, Kernels, available, quant_available};
use kin_infer::{BertConfig, BertModel, LoadOptions, ModelArchitecture, Precision, Sequence, WeightForm};
use rayon::ThreadPool;

fn load(name: &str, kernels: &'static Kernels, options: LoadOptions) -> BertModel {
    load_onto(name, CpuCompute::with_kernels(kernels), options)
}

fn load_onto(name: &str, compute: CpuCompute, options: LoadOptions) -> BertModel {
    let config = BertConfig::from_folder(&fixture(name)).unwrap();
    BertModel::load_with_options(&fixture(name), config, Arc::new(compute), options)
        .unwrap_or_else(|e| panic!("{name}: {e}"))
}

const CONFIGURED: LoadOptions =
    LoadOptions { head: HeadChoice::Configured, precision: Precision::Exact, weights: WeightForm::Stored };
const INT8: LoadOptions = LoadOptions { precision: Precision::Int8, ..CONFIGURED };

/// Whether a fixture is fingerprinted in int8 too: one of each family, one of each type of weights, two decoders.
fn in_int8(name: &str) -> bool {
    FAMILIES.contains(&name)
        || ["bert-base", "bert-bf16", "bert-classifier-3", "llama-sharded", "gpt2-base"].contains(&name)
}

fn pool(threads: usize) -> ThreadPool {
    rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap()
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

/// The ways a fixture is loaded, each with its name in fingerprints.json.
fn ways(name: &str) -> Vec<(String, LoadOptions)> {
    let heads = heads(name).into_iter().map(|(key, head)| (key, LoadOptions { head, ..CONFIGURED }));
    heads.chain(in_int8(name).then(|| (format!("{name}, int8"), INT8))).collect()
}

/// The committed fingerprints tie architectures together: x86-64 and aarch64 run this against the same file.
/// `KIN_INFER_UPDATE=1` adds the lines of new fixtures; a line that is there never changes.
#[test]
fn every_isa_and_thread_count_gives_the_committed_bits_on_every_fixture() {
    let (tables, file) = (report_isas(), fixture("fingerprints.json"));
    let committed = std::fs::read_to_string(&file).unwrap();
    let mut committed: BTreeMap<String, String> = serde_json::from_str(&committed).unwrap();
    let names = encoders().into_iter().chain(decoders());
    let fixtures: Vec<_> = names.flat_map(|name| ways(&name).into_iter().map(move |h| (name.clone(), h))).collect();
    if common::update() {
        for (name, (key, options)) in &fixtures {
            let scalar = tables[tables.len() - 1];
            committed.entry(key.clone()).or_insert_with(|| hash(&load(name, scalar, *options)));
        }
        std::fs::write(&file, serde_json::to_string_pretty(&committed).unwrap() + "\n").unwrap();
    }
    let known: Vec<_> = fixtures.iter().map(|(_, (key, _))| key).collect();
    let missing: Vec<_> = known.iter().filter(|key| !committed.contains_key(**key)).collect();
    assert!(missing.is_empty(), "KIN_INFER_UPDATE=1 cargo test --test invariance adds the lines of {missing:?}");
    let pools = [1, 2, 5].map(pool);
    for (i, (name, (key, options))) in fixtures.iter().enumerate() {
        for (isa, kernels) in tables.iter().enumerate() {
            let model = load(name, kernels, *options);
            // One fixture of a family with every number of threads, each of the others with one, in turn.
            let every = FAMILIES.contains(&name.as_str());
            let of_turn = |(t, pool)| (every || t == (i + isa) % pools.len()).then_some(pool);
            for pool in pools.iter().enumerate().filter_map(of_turn) {
                let (found, threads) = (pool.install(|| hash(&model)), pool.current_num_threads());
                assert_eq!(found, committed[key], "{key}: {} with {threads} threads", kernels.name());
            }
        }
        // Each set of integer kernels by name, also those that the instruction set would not choose.
        let sets = if options.precision == Precision::Int8 { quant_available() } else { Vec::new() };
        for quant in sets {
            let model = load_onto(name, CpuCompute::with_quant_kernels(tables[0], quant), *options);
            assert_eq!(pools[1].install(|| hash(&model)), committed[key], "{key}: {}", quant.name());
        }
    }
}

/// Lengths 1 to `longest`: each alone, on every instruction set, is what it is in batches of 2, 7 and 64 with shorter
/// and longer mates, in any order, with 1, 2 and 5 threads.
fn check_batches(name: &str, options: LoadOptions, longest: usize) {
    let tables = available();
    let reference = load(name, tables[tables.len() - 1], options);
    let count = reference.spec().max_tokens.min(longest);
    let sequences: Vec<Sequence> = (1..=count).map(|len| sequence(len, &reference)).collect();
    let (one, pools) = (pool(1), [pool(1), pool(2), pool(5)]);
    let alone: Vec<Vec<u32>> =
        sequences.iter().flat_map(|s| one.install(|| bits(&reference, std::slice::from_ref(s)))).collect();
    for kernels in tables {
        let model = load(name, kernels, options);
        for (size, threads, step) in [(1, 1, 7), (2, 0, 59), (7, 2, 37), (64, 1, 101)] {
            // A step prime to the count mixes short and long mates, another order for each size.
            assert!(!count.is_multiple_of(step), "{name}: {count} lengths in steps of {step}");
            let order: Vec<usize> = (0..count.max(size)).map(|i| i * step % count).collect();
            for group in order.chunks(size) {
                let batch: Vec<Sequence> = group.iter().map(|&i| sequences[i].clone()).collect();
                let found = pools[threads].install(|| bits(&model, &batch));
                for (i, found) in group.iter().zip(found) {
                    let threads = pools[threads].current_num_threads();
                    let case = format!("{name}: {}, {threads} threads, batch of {size}", kernels.name());
                    assert!(found == alone[*i], "{case}: length {}", i + 1);
                }
            }
        }
    }
}

#[test]
fn batch_mates_order_and_threads_do_not_show() {
    check_batches("bert-long", CONFIGURED, 130);
    for name in FAMILIES {
        check_batches(name, CONFIGURED, 40);
    }
    check_batches("bert-long", INT8, 90);
    check_batches("gte-ntk-mixed", INT8, 30);
    for name in encoders() {
        let scored = ways(&name).into_iter().filter(|(_, options)| options.head == HeadChoice::MaskedLm);
        scored.for_each(|(_, options)| check_batches(&name, options, 12));
    }
}

#[test]
fn the_tests_of_batches_run_on_every_family() {
    let of = |name: &&str| BertConfig::from_folder(&fixture(name)).unwrap().architecture().unwrap();
    let run: Vec<ModelArchitecture> = FAMILIES.iter().map(of).collect();
    for name in encoders() {
        assert!(run.contains(&of(&name.as_str())), "{name}");
    }
}

/// What lies in the masked places of a row, and how many follow its end, do not show; holes in the middle do, in the
/// positions of what follows them.
#[test]
fn padding_does_not_show() {
    for name in FAMILIES {
        for kernels in available() {
            let model = load(name, kernels, CONFIGURED);
            let ids = sequence(12, &model).ids;
            let plain = model.forward(std::slice::from_ref(&ids), &[vec![1; 12]]).unwrap();
            let trailing = model.forward(&[[ids.clone(), vec![0; 9]].concat()], &[[vec![1; 12], vec![0; 9]].concat()]);
            assert_eq!(trailing.unwrap(), plain, "{name}: {}, trailing padding", kernels.name());

            // Padding before the row, inside it, and after it.
            let mask: Vec<u32> = [vec![0; 2], vec![1; 5], vec![0; 3], vec![1; 7], vec![0; 1]].concat();
            let fill = |filler: u32| {
                let mut kept = ids.iter();
                mask.iter().map(|m| if *m == 0 { filler } else { *kept.next().unwrap() }).collect::<Vec<u32>>()
            };
            let vocab = model.spec().embedding.vocab_size as u32;
            let rows: Vec<Vec<u32>> = [0, 1, 5, vocab - 1, u32::MAX].map(fill).into();
            let found = model.forward(&rows, &vec![mask.clone(); rows.len()]).unwrap();
            assert!(found.iter().all(|v| *v == found[0]), "{name}: {}, masked ids", kernels.name());
            let sequence = Sequence::from_masked(0, &rows[0], &mask, None).unwrap();
            let shifted =
                Sequence { positions: sequence.positions.iter().map(|p| p - 2).collect(), ..sequence.clone() };
            let [row, shifted] = [&sequence, &shifted].map(|s| bits(&model, std::slice::from_ref(s)).remove(0));
            let spec = model.spec();
            let by_distance = !matches!(spec.attention.positions, ScorePositions::None | ScorePositions::Rope(_));
            // Distances are the same wherever the row starts; learned positions and angles are not.
            let learned = spec.embedding.positions.is_some_and(|p| p.numbering == kin_infer::arch::Numbering::Position);
            if by_distance && !learned {
                assert!(row == shifted, "{name}: {}, leading padding", kernels.name());
            }
            let whole = bits(&model, &[Sequence::new(ids)]).remove(0);
            let counted = !by_distance && !learned && !matches!(spec.attention.positions, ScorePositions::Rope(_));
            assert_eq!(whole == shifted, counted, "{name}: {}, a hole", kernels.name());
        }
    }
}
