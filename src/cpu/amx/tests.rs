//! How rows are cut into tiles, and whole models with the set.

use std::path::Path;
use std::sync::Arc;

use super::super::{CpuCompute, QuantKernels, available, quant_tested};
use super::{Split, TILE_ROWS};
use crate::arch::HeadChoice;
use crate::{BertConfig, BertModel, LoadOptions, Precision, Sequence, WeightForm};

#[test]
fn tiles_hold_every_row_once_and_stay_inside() {
    for rows in 1..200 {
        let split = Split::new(rows);
        let fresh: Vec<usize> = (0..split.tiles).flat_map(|t| split.fresh(t)).collect();
        assert_eq!(fresh, (0..rows).collect::<Vec<_>>());
        assert!(split.height <= TILE_ROWS);
        for t in 0..split.tiles {
            let (first, fresh) = (split.first(t), split.fresh(t));
            assert!(first <= fresh.start && fresh.end <= first + split.height && first + split.height <= rows);
        }
    }
}

/// The token vectors of a batch, as bits.
fn outputs(fixture: &str, precision: Precision, quant: &'static QuantKernels) -> Vec<Vec<u32>> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(fixture);
    let config = BertConfig::from_folder(&path).unwrap();
    let options = LoadOptions { head: HeadChoice::Configured, precision, weights: WeightForm::Stored };
    let compute = Arc::new(CpuCompute::with_quant_kernels(available()[0], quant));
    let model = BertModel::load_with_options(&path, config, compute, options).unwrap();
    let ids = |len: u32| Sequence::new((0..len).map(|i| 5 + i * 7 % 33).collect());
    let encoded = model.encode(&[1, 31, 9, 2, 24].map(ids));
    encoded.into_iter().map(|e| e.unwrap().hidden.iter().map(|v| v.to_bits()).collect()).collect()
}

/// Each thread has tiles of its own.
#[test]
fn whole_models_have_the_bits_of_the_scalar_set() {
    let sets = quant_tested("whole models");
    let [first, .., scalar] = sets[..] else { return };
    let models = [
        ("bert-base", Precision::Int8),
        ("gte-ntk-mixed", Precision::Int8),
        ("gguf-bert-base-q8_0.gguf", Precision::Exact),
        ("gguf-llama-linear-q4_0.gguf", Precision::Exact),
    ];
    for (fixture, precision) in models {
        let expected = outputs(fixture, precision, scalar);
        for threads in [1, 2] {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            let found = pool.install(|| outputs(fixture, precision, first));
            assert_eq!(found, expected, "{fixture}: {}, {threads} threads", first.name());
        }
    }
}

/// A product is made of tiles, and not of what the set falls back to.
#[cfg(target_os = "linux")]
#[test]
fn products_of_many_rows_are_those_of_tiles() {
    let set = quant_tested("tiles")[0];
    if set.name() != "amx-int8" || super::super::dispatch::amx() {
        return;
    }
    for (fixture, precision) in [("bert-base", Precision::Int8), ("gguf-bert-base-q8_0.gguf", Precision::Exact)] {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(1).build().unwrap();
        let products = pool.install(|| {
            let before = super::emulator::products();
            outputs(fixture, precision, set);
            super::emulator::products() - before
        });
        assert!(products > 100, "{fixture}: {products}");
    }
}
