//! A device that fails: nothing hangs, nothing stays allocated, and no wrong number comes back.

mod common;
mod emulated;

use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

use common::outputs::{bits, load, sequence};
use emulated::{Emulated, Fault, Order};
use kin_infer::arch::HeadChoice;
use kin_infer::cpu::CpuCompute;
use kin_infer::gpu::DeviceCompute;
use kin_infer::{BertConfig, BertModel, InferError, Sequence};

/// An encoder with attention biases and 16-bit weights, and decoders.
const ENCODERS: [&str; 2] = ["bert-f16", "deberta-both"];
const DECODERS: [&str; 2] = ["llama-gqa", "gpt2-base"];

const KINDS: [fn(usize) -> Fault; 5] = [Fault::Alloc, Fault::Launch, Fault::Read, Fault::Upload, Fault::Copy];

/// Lets the first, the second, ... call of each kind fail in a run of its own, until a run has no such call any more:
/// `run` says whether the fault happened. Of each kind so many have to have happened: of [`KINDS`], in their order.
#[track_caller]
fn each_call(case: &str, least: [usize; 5], run: impl Fn(Fault) -> bool) {
    let happened = KINDS.map(|kind| (0..).find(|n| !run(kind(*n))).unwrap_or(0));
    let enough = happened.iter().zip(least).all(|(found, least)| *found >= least);
    assert!(enough, "{case}: {happened:?} calls failed, at least {least:?} have to");
}

fn device() -> Arc<Emulated> {
    Arc::new(Emulated::new(Order::Ascending, 64))
}

/// A fixture's model over the device; memory is kept for reuse, or is not.
fn try_load(name: &str, device: &Arc<Emulated>, pool: usize) -> kin_infer::Result<BertModel> {
    let folder = common::fixture(name);
    let compute = Arc::new(DeviceCompute::with_pool(Arc::clone(device) as _, pool));
    BertModel::load_with_head(&folder, BertConfig::from_folder(&folder)?, compute, HeadChoice::Configured)
}

fn sequences(model: &BertModel) -> Vec<Sequence> {
    [1, 3, 17].map(|len| sequence(len, model)).into()
}

/// What the CPU gives.
fn expected(name: &str) -> Vec<Vec<u32>> {
    let model = load(name, Arc::new(CpuCompute::new().unwrap()), HeadChoice::Configured);
    bits(&model, &sequences(&model))
}

fn of(values: &[f32]) -> Vec<u32> {
    values.iter().map(|v| v.to_bits()).collect()
}

#[track_caller]
fn failure_of_a_device(case: &str, error: &InferError) {
    let named = match error {
        InferError::OutOfMemory { bytes, .. } => *bytes > 0,
        InferError::BackendError { backend, detail, .. } => backend == "cuda" && detail.contains("injected"),
        _ => false,
    };
    assert!(named, "{case}: {error:?}");
}

/// The n-th allocation, launch, upload or copy of a load fails: the load fails, and another one works.
#[test]
fn while_loading() {
    if !emulated::available("while_loading") {
        return;
    }
    for name in [ENCODERS[0], DECODERS[0]] {
        let (device, expected) = (device(), expected(name));
        each_call(name, [10, 0, 0, 10, 0], |fault| {
            device.fail(Some(fault));
            let case = format!("{name}, {fault:?}");
            match try_load(name, &device, 1 << 20) {
                Ok(_) => assert!(!device.failed(), "{case}: loaded"),
                Err(e) => failure_of_a_device(&case, &e),
            }
            assert_eq!(device.live.pieces.load(SeqCst), 0, "{case}: memory is left");
            device.failed()
        });
        device.fail(None);
        let model = try_load(name, &device, 1 << 20).unwrap();
        assert!(bits(&model, &sequences(&model)) == expected, "{name}");
        drop(model);
        assert_eq!(device.live.pieces.load(SeqCst), 0, "{name}: memory is left");
    }
}

/// The n-th call of any kind fails once, for every n: the batch is split, and results are the CPU's.
#[test]
fn while_encoding() {
    if !emulated::available("while_encoding") {
        return;
    }
    for name in ENCODERS.into_iter().chain(DECODERS) {
        let (device, expected) = (device(), expected(name));
        for pool in [0, 1 << 24] {
            let model = try_load(name, &device, pool).unwrap();
            let sequences = sequences(&model);
            // A pool that fills is asked for less from run to run.
            let allocations = if pool == 0 { 10 } else { 1 };
            let copies = usize::from(DECODERS.contains(&name));
            each_call(name, [allocations, 10, 1, 1, copies], |fault| {
                device.fail(Some(fault));
                assert!(bits(&model, &sequences) == expected, "{name}, pool of {pool}, {fault:?}");
                device.failed()
            });
            if pool > 0 {
                device.fail(Some(Fault::Alloc(0)));
                assert!(bits(&model, &sequences) == expected, "{name}");
                assert!(!device.failed(), "{name}: a pass asks for memory where the pool is warm");
            }
            device.fail(None);
            drop(model);
            assert_eq!(device.live.pieces.load(SeqCst), 0, "{name}: memory is left");
        }
    }
}

/// Memory for one sequence at a time: the batch is split. For none: each item says so, and works once there is memory;
/// the CPU gives the same meanwhile.
#[test]
fn little_memory() {
    if !emulated::available("little_memory") {
        return;
    }
    for name in ENCODERS.into_iter().chain(DECODERS) {
        for pool in [0, 1 << 24] {
            let device = device();
            let model = try_load(name, &device, pool).unwrap();
            let loaded = device.live.bytes.load(SeqCst);
            let sequences: Vec<Sequence> = (0..12).map(|_| sequence(17, &model)).collect();
            let cpu = load(name, Arc::new(CpuCompute::new().unwrap()), HeadChoice::Configured);
            let expected = bits(&cpu, &sequences);
            let enough = (1..).map(|i| loaded + i * 4096).find(|limit| {
                device.fail(Some(Fault::MemoryOf(*limit)));
                model.encode(&sequences[..1])[0].is_ok()
            });
            device.fail(Some(Fault::MemoryOf(enough.unwrap() + 4096)));
            assert!(bits(&model, &sequences) == expected, "{name}, pool of {pool}: split");
            device.fail(Some(Fault::MemoryOf(loaded + 16)));
            for (i, result) in model.encode(&sequences).into_iter().enumerate() {
                let found = result.err();
                assert!(matches!(found, Some(InferError::OutOfMemory { .. })), "{name}, item {i}: {found:?}");
            }
            device.fail(None);
            assert!(bits(&model, &sequences) == expected, "{name}, pool of {pool}: again");
            drop(model);
            assert_eq!(device.live.pieces.load(SeqCst), 0, "{name}: memory is left");
        }
    }
}

/// Work that fails after its launch returned: nothing is read from then on, whichever launch it was.
#[test]
fn a_lost_device_gives_no_results() {
    if !emulated::available("a_lost_device_gives_no_results") {
        return;
    }
    for name in [ENCODERS[0], DECODERS[1]] {
        let (device, expected) = (device(), expected(name));
        let model = try_load(name, &device, 1 << 24).unwrap();
        let sequences = sequences(&model);
        let before = device.launches.load(SeqCst);
        assert!(bits(&model, &sequences) == expected);
        let launches = device.launches.load(SeqCst) - before;
        assert!(launches > 10, "{name}: {launches}");
        for n in 0..launches {
            device.fail(Some(Fault::LaunchLater(n)));
            for result in model.encode(&sequences) {
                let error =
                    result.err().unwrap_or_else(|| panic!("{name}: launch {n} failed, and its result was read"));
                assert!(error.to_string().contains("lost"), "{name}, launch {n}: {error}");
            }
        }
        device.fail(None);
        assert!(bits(&model, &sequences) == expected, "{name}");
        drop(model);
        assert_eq!(device.live.pieces.load(SeqCst), 0, "{name}: memory is left");
    }
}

/// A cache of stored keys holds what it held when a call fails, and goes on when the device does.
#[test]
fn while_decoding() {
    if !emulated::available("while_decoding") {
        return;
    }
    for name in DECODERS {
        let cpu = load(name, Arc::new(CpuCompute::new().unwrap()), HeadChoice::Configured);
        let ids = sequence(24, &cpu).ids;
        let mut cache = cpu.kv_cache().unwrap();
        let mut score = |part: &[u32]| of(&cpu.extend(&mut cache, part).unwrap());
        let (first, second) = (score(&ids[..20]), score(&ids[20..]));
        for pool in [0, 1 << 24] {
            let device = device();
            let model = try_load(name, &device, pool).unwrap();
            let filled = || {
                device.fail(None);
                let mut cache = model.kv_cache().unwrap();
                assert!(of(&model.extend(&mut cache, &ids[..20]).unwrap()) == first);
                cache
            };
            let allocations = if pool == 0 { 10 } else { 0 };
            each_call(name, [allocations, 10, 1, 1, 0], |fault| {
                let case = format!("{name}, pool of {pool}, {fault:?}");
                let mut cache = filled();
                device.fail(Some(fault));
                let found = model.extend(&mut cache, &ids[20..]);
                let failed = device.failed();
                match found {
                    Ok(scores) => assert!(of(&scores) == second, "{case}"),
                    Err(e) => {
                        failure_of_a_device(&case, &e);
                        assert_eq!(cache.ids(), &ids[..20], "{case}");
                        // A second failure, perhaps; then the cache makes its keys anew.
                        device.fail(Some(fault));
                        drop(model.extend(&mut cache, &ids[20..]));
                        device.fail(None);
                        let again = of(&model.prefill(&mut cache, &ids).unwrap());
                        assert!(again == second, "{case}: again");
                    }
                }
                failed
            });
            drop(model);
            assert_eq!(device.live.pieces.load(SeqCst), 0, "{name}: memory is left");
        }
    }
}

/// The n-th call fails once while two sequences go on together: each gets what it gets alone.
#[test]
fn while_decoding_together() {
    if !emulated::available("while_decoding_together") {
        return;
    }
    for name in DECODERS {
        let cpu = load(name, Arc::new(CpuCompute::new().unwrap()), HeadChoice::Configured);
        let ids = sequence(24, &cpu).ids;
        let starts = [20, 7];
        let expected = starts.map(|start| {
            let mut cache = cpu.kv_cache().unwrap();
            cpu.extend(&mut cache, &ids[..start]).unwrap();
            [start..start + 2, start + 2..start + 3].map(|part| of(&cpu.extend(&mut cache, &ids[part]).unwrap()))
        });
        let device = device();
        let model = try_load(name, &device, 0).unwrap();
        each_call(name, [10, 10, 1, 1, 0], |fault| {
            let case = format!("{name}, {fault:?}");
            device.fail(None);
            let mut caches = starts.map(|start| {
                let mut cache = model.kv_cache().unwrap();
                model.extend(&mut cache, &ids[..start]).unwrap();
                cache
            });
            device.fail(Some(fault));
            let mut failed = false;
            for step in 0..2 {
                let parts = starts.map(|start| [start..start + 2, start + 2..start + 3][step].clone());
                let mut items: Vec<_> = caches.iter_mut().zip(parts).map(|(c, part)| (c, &ids[part])).collect();
                for (found, expected) in model.extend_all(&mut items).into_iter().zip(&expected) {
                    assert!(of(&found.unwrap()) == expected[step], "{case}, step {step}");
                }
                failed |= device.failed();
            }
            failed
        });
    }
}
