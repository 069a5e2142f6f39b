//! Whole models on the GPU backend, over the emulated device and this machine's GPUs: the bits of the CPU.

mod common;
mod devices;
mod emulated;

use std::collections::BTreeMap;
use std::sync::Arc;

use common::outputs::{FAMILIES, hash, heads, load};
use common::{decoders, encoders, fixture};
use emulated::{ORDERS, backend};

/// The hashes of fingerprints.json.
fn committed() -> BTreeMap<String, String> {
    serde_json::from_str(&std::fs::read_to_string(fixture("fingerprints.json")).unwrap()).unwrap()
}

/// Every fixture on the GPUs of this machine.
#[test]
fn fixtures_have_the_committed_bits_on_gpus() {
    let committed = committed();
    for gpu in devices::gpus("fixtures_have_the_committed_bits_on_gpus") {
        let mut compared = 0;
        for (name, (key, head)) in encoders()
            .into_iter()
            .chain(decoders())
            .flat_map(|name| heads(&name).into_iter().map(move |h| (name.clone(), h)))
        {
            let model = load(&name, Arc::clone(&gpu.compute), head);
            assert_eq!(hash(&model), committed[&key], "{key}: {}", gpu.name);
            compared += 1;
        }
        assert!(compared >= 200, "{compared}");
    }
}

/// Every fixture's outputs, packed batches and a decoder's steps among them, have the committed bits: the families' in
/// every order of threads, the others in one, in turn; with small and with large tiles.
fn check_fixtures(half: usize) {
    if !emulated::available("fixtures on the GPU backend") {
        return;
    }
    let committed = committed();
    let names = encoders().into_iter().chain(decoders());
    let fixtures: Vec<_> = names.flat_map(|name| heads(&name).into_iter().map(move |h| (name.clone(), h))).collect();
    let mut compared = 0;
    for (i, (name, (key, head))) in fixtures.iter().enumerate().filter(|(i, _)| i % 2 == half) {
        let every = FAMILIES.contains(&name.as_str());
        for (turn, order) in ORDERS.iter().enumerate().filter(|(turn, _)| every || i % ORDERS.len() == *turn) {
            let units = if (i + turn) % 2 == 0 { 1 } else { 64 };
            let model = load(name, Arc::new(backend(*order, units)), *head);
            assert_eq!(hash(&model), committed[key], "{key}: {order:?}, {units} units");
            compared += 1;
        }
    }
    assert!(compared >= 100, "{compared}");
}

#[test]
fn every_other_fixture_has_the_committed_bits() {
    check_fixtures(0);
}

#[test]
fn the_other_fixtures_have_the_committed_bits() {
    check_fixtures(1);
}
