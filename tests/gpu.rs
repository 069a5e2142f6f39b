//! Whole models on the GPU backend, over the emulated device and this machine's GPUs: the bits of the CPU.

mod common;
mod devices;
mod emulated;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

use common::outputs::{FAMILIES, hash, heads, load, sequence};
use common::{decoders, encoders, fixture};
use emulated::{Emulated, ORDERS, Order, backend};
use kin_infer::BertModel;
use kin_infer::arch::HeadChoice;
use kin_infer::cpu::CpuCompute;
use kin_infer::generate::SamplingParams;
use kin_infer::gpu::DeviceCompute;

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

/// Greedy decoding brings four bytes of a sequence and step to the host, and with a penalty, which changes scores, all of
/// them; the tokens are the CPU's.
#[test]
fn greedy_decoding_leaves_the_scores_on_the_device() {
    if !emulated::available("greedy_decoding_leaves_the_scores_on_the_device") {
        return;
    }
    const TOKENS: usize = 6;
    for name in ["llama-gqa", "gemma2-base", "gpt2-base"] {
        let cpu = load(name, Arc::new(CpuCompute::new().unwrap()), HeadChoice::Configured);
        let device = Arc::new(Emulated::new(Order::Descending, 64));
        let gpu = load(name, Arc::new(DeviceCompute::new(Arc::clone(&device) as _)), HeadChoice::Configured);
        let vocab = cpu.spec().embedding.vocab_size;
        let prompts = [3, 9].map(|len| sequence(len, &cpu).ids);
        let prompts: Vec<&[u32]> = prompts.iter().map(Vec::as_slice).collect();
        let limited = SamplingParams::new().vocab_limit(vocab / 2);
        for (params, bytes) in [
            (SamplingParams::new(), 4),
            (limited, 4),
            (SamplingParams::new().repetition_penalty(1.3), 4 * vocab),
            (SamplingParams::new().logprobs(1), 4 * vocab),
        ] {
            let tokens = |model: &BertModel| -> Vec<Vec<u32>> {
                let found = model.generate_all(&prompts, TOKENS, &mut vec![params.clone(); prompts.len()]);
                found.into_iter().map(|g| g.unwrap().tokens).collect()
            };
            let before = device.read.load(SeqCst);
            assert_eq!(tokens(&gpu), tokens(&cpu), "{name}: {params:?}");
            assert_eq!(device.read.load(SeqCst) - before, bytes * prompts.len() * TOKENS, "{name}: {params:?}");
        }
    }
}

#[test]
fn every_other_fixture_has_the_committed_bits() {
    check_fixtures(0);
}

#[test]
fn the_other_fixtures_have_the_committed_bits() {
    check_fixtures(1);
}
