//! The device over a driver that is none ([`super::fake`]).

use std::path::Path;
use std::sync::Arc;

use super::driver::Driver;
use super::fake::{Fake, FakeDevice, modern};
use super::{open_with, ptx, usable};
use crate::cpu::CpuCompute;
use crate::gpu::device::{Binding, Device, DeviceError, DeviceResult, Launch, Memory};
use crate::gpu::{DeviceCompute, GpuCompute};
use crate::{BertConfig, BertModel};

fn open(fake: &Fake) -> Arc<dyn Device> {
    open_with(fake.driver, 0).unwrap_or_else(|why| panic!("{why}"))
}

/// Memory that holds `bytes`.
fn memory(device: &dyn Device, bytes: &[u8]) -> Memory {
    let memory = device.alloc(bytes.len()).unwrap();
    device.upload(&memory, 0, bytes).unwrap();
    memory
}

fn read(device: &dyn Device, memory: &Memory) -> DeviceResult<Vec<u8>> {
    let mut out = vec![0; memory.bytes()];
    device.read(memory, 0, &mut out).map(|()| out)
}

/// x = x + y over `count` values.
fn add(device: &dyn Device, x: &Memory, y: &Memory, count: u32) -> DeviceResult<()> {
    let buffers = [x, y].map(|memory| Binding { memory, offset: 0 });
    let (grid, threads) = ([count.div_ceil(256), 1, 1], [256, 1, 1]);
    assert!(count as usize * 4 <= x.bytes().min(y.bytes()));
    let launch = Launch { kernel: "add_values", grid, threads, buffers: &buffers, args: &count.to_ne_bytes() };
    // SAFETY: both buffers hold `count` values.
    unsafe { device.launch(&launch) }
}

fn bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_ne_bytes()).collect()
}

/// Whether kernels can be emulated. Where not, says that `test` is skipped, past the harness' capture, or fails when
/// `KIN_INFER_REQUIRE_EMULATOR` demands it.
fn emulated(test: &str) -> bool {
    let available = kin_infer_emulator::AVAILABLE;
    let required = std::env::var("KIN_INFER_REQUIRE_EMULATOR").is_ok_and(|v| v == "1");
    assert!(available || !required, "KIN_INFER_REQUIRE_EMULATOR=1 and this build cannot run GPU kernels");
    if !available {
        use std::io::Write;
        let _ = writeln!(std::io::stderr(), "1 skipped: {test}: this build cannot run GPU kernels");
    }
    available
}

#[test]
fn a_machine_without_the_driver_says_so() {
    let why = Driver::load(&["libcuda-of-nobody.so.1"]).err().unwrap();
    assert_eq!(why, "no NVIDIA driver: libcuda-of-nobody.so.1 is not found");
}

#[test]
fn a_library_that_is_no_driver_says_what_it_lacks() {
    if cfg!(target_os = "linux") {
        let why = Driver::load(&["libc.so.6"]).err().unwrap();
        assert_eq!(why, "the driver is too old: it has no cuInit");
    }
}

#[test]
fn a_driver_without_devices_says_so() {
    let why = Fake::try_new(vec![], vec![("cuInit", 0, 100)]).err().unwrap();
    assert_eq!(why, "cuInit failed: CUDA_ERROR_NO_DEVICE (100): no CUDA-capable device is detected");
    let fake = Fake::new(vec![]);
    assert_eq!(usable(fake.driver).unwrap_err(), "the driver lists no device");
    assert_eq!(open_with(fake.driver, 0).err().unwrap(), "the driver lists no device");
}

#[test]
fn devices_are_described_and_old_ones_left_out() {
    let old = || FakeDevice { name: "Fake 1080", capability: (6, 1), ..modern() };
    let long = FakeDevice { name: "Fake with 8 multiprocessors", capability: (7, 0), units: 8, ..modern() };
    let fake = Fake::new(vec![modern(), old(), long]);
    let found = usable(fake.driver).unwrap();
    let infos: Vec<_> = found.iter().map(|f| (&*f.info.name, &*f.info.detail, f.info.memory, f.info.units)).collect();
    assert_eq!(
        infos,
        [
            ("Fake 9000", "compute capability 9.0, 132 multiprocessors", 1 << 28, 132),
            ("Fake with 8 multiprocessors", "compute capability 7.0, 8 multiprocessors", 1 << 28, 8),
        ]
    );
    assert_eq!((found[0].device, found[1].device), (0, 2));
    assert_eq!(open_with(fake.driver, 2).err().unwrap(), "there are 2 devices");
    drop(fake);
    let fake = Fake::new(vec![old()]);
    assert_eq!(usable(fake.driver).unwrap_err(), "Fake 1080 has compute capability 6.1, at least 7.0 is needed");
}

#[test]
fn ptx_that_the_driver_refuses_gives_its_log() {
    let fake = Fake::new(vec![modern()]);
    fake.with(|s| {
        s.log = "ptxas fatal: line 3";
        s.faults = vec![("cuModuleLoadDataEx", 0, 218)];
    });
    let why = open_with(fake.driver, 0).err().unwrap();
    let text = "an unknown error (218); the compiler says: ptxas fatal: line 3";
    assert_eq!(why, format!("Fake 9000: cuModuleLoadDataEx failed: {text}"));
}

/// Wherever opening fails, what was taken is given back (the fake's drop checks it).
#[test]
fn every_step_of_opening_may_fail() {
    for call in [
        "cuDevicePrimaryCtxRetain",
        "cuCtxPushCurrent_v2",
        "cuStreamCreate",
        "cuModuleLoadDataEx",
        "cuMemHostAlloc",
        "cuDeviceGetCount",
        "cuDeviceGetName",
        "cuDeviceTotalMem_v2",
        "cuDeviceGetAttribute",
    ] {
        let fake = Fake::new(vec![modern()]);
        fake.with(|s| s.faults = vec![(call, 0, 2)]);
        let why = open_with(fake.driver, 0).err().unwrap();
        assert!(why.contains(&format!("{call} failed: CUDA_ERROR_OUT_OF_MEMORY (2)")), "{why}");
    }
}

#[test]
fn work_runs_in_the_order_of_the_calls() {
    if !emulated("work_runs_in_the_order_of_the_calls") {
        return;
    }
    let fake = Fake::new(vec![modern()]);
    let device = &*open(&fake);
    let x = memory(device, &bytes(&[1.0, 2.0, 3.0]));
    let y = memory(device, &bytes(&[10.0, 20.0, 30.0]));
    let kept = device.alloc(12).unwrap();
    add(device, &x, &y, 3).unwrap();
    device.copy(Binding { memory: &x, offset: 0 }, Binding { memory: &kept, offset: 0 }, 12).unwrap();
    device.upload(&y, 4, &bytes(&[-1.0])).unwrap();
    add(device, &x, &y, 3).unwrap();
    assert_eq!(read(device, &kept).unwrap(), bytes(&[11.0, 22.0, 33.0]));
    assert_eq!(read(device, &x).unwrap(), bytes(&[21.0, 21.0, 63.0]));
    let mut last = [0; 4];
    device.read(&y, 8, &mut last).unwrap();
    assert_eq!(last, 30.0f32.to_ne_bytes());
}

/// Uploads larger than the staging memory, and more of them than fit, arrive whole.
#[test]
fn large_and_many_uploads_arrive_whole() {
    let fake = Fake::new(vec![modern()]);
    let device = &*open(&fake);
    let pattern =
        |len: usize, seed: usize| (0..len).map(|i| ((i * 31 + i / 251 + seed) % 253) as u8).collect::<Vec<_>>();
    let large = pattern((9 << 20) + 5, 0);
    let first = memory(device, &large);
    let others: Vec<_> = (1..30).map(|seed| memory(device, &pattern(700_000, seed))).collect();
    assert!(read(device, &first).unwrap() == large);
    for (i, other) in others.iter().enumerate() {
        assert!(read(device, other).unwrap() == pattern(700_000, i + 1), "{i}");
    }
}

/// Memory that enqueued work uses may be dropped; it is freed afterwards.
#[test]
fn memory_in_use_outlives_its_owner() {
    if !emulated("memory_in_use_outlives_its_owner") {
        return;
    }
    for pools in [true, false] {
        let fake = Fake::new(vec![FakeDevice { pools, ..modern() }]);
        let device = &*open(&fake);
        let x = memory(device, &bytes(&[1.0; 300]));
        let y = memory(device, &bytes(&[2.0; 300]));
        add(device, &x, &y, 300).unwrap();
        drop(y);
        assert_eq!(read(device, &x).unwrap(), bytes(&[3.0; 300]));
        assert_eq!(fake.pieces(), 1);
    }
}

#[test]
fn without_memory_the_device_goes_on() {
    for pools in [true, false] {
        let fake = Fake::new(vec![FakeDevice { pools, memory: 1 << 20, ..modern() }]);
        let device = &*open(&fake);
        let half = memory(device, &[7; 600_000]);
        assert_eq!(device.alloc(600_000).err().unwrap(), DeviceError::OutOfMemory { bytes: 600_000 });
        assert_eq!(device.alloc(usize::MAX).err().unwrap(), DeviceError::OutOfMemory { bytes: usize::MAX });
        assert!(read(device, &half).unwrap().iter().all(|b| *b == 7));
        drop(half);
        assert_eq!(read(device, &memory(device, &[8; 600_000])).unwrap(), [8; 600_000]);
    }
}

#[test]
fn a_refused_call_does_nothing_and_the_device_goes_on() {
    if !emulated("a_refused_call_does_nothing_and_the_device_goes_on") {
        return;
    }
    let fake = Fake::new(vec![modern()]);
    let device = &*open(&fake);
    let x = memory(device, &bytes(&[1.0]));
    let refused = |result: DeviceResult<()>| match result {
        Err(DeviceError::Refused { operation, detail }) => format!("{operation}: {detail}"),
        other => panic!("{other:?}"),
    };
    let launch = |kernel, threads, buffers: &[Binding], args: &[u8]| {
        // SAFETY: it is refused before it runs.
        unsafe { device.launch(&Launch { kernel, grid: [1, 1, 1], threads, buffers, args }) }
    };
    let at = Binding { memory: &x, offset: 0 };
    let unknown = refused(launch("no_such_kernel", [32, 1, 1], &[at], &[]));
    assert_eq!(unknown, "no_such_kernel: there is no kernel of this name");
    for (threads, buffers, args) in [
        ([257, 1, 1], &[at, at][..], &[1, 0, 0, 0][..]),
        ([u32::MAX, u32::MAX, 1], &[at, at], &[1, 0, 0, 0]),
        ([256, 1, 1], &[at], &[1, 0, 0, 0]),
        ([256, 1, 1], &[at, at], &[]),
    ] {
        let why = refused(launch("add_values", threads, buffers, args));
        assert!(
            why.starts_with("add_values: the kernel takes Signature { buffers: 2, args: 4, threads: 256 }"),
            "{why}"
        );
    }
    // A kernel that is known is not asked for again: the function is first.
    for (call, code) in [("cuModuleGetFunction", 500), ("cuLaunchKernel", 701)] {
        fake.with(|s| s.faults = vec![(call, 0, code)]);
        let why = refused(add(device, &x, &x, 1));
        assert_eq!(why, format!("add_values: {call} failed: an unknown error ({code})"));
        assert_eq!(read(device, &x).unwrap(), bytes(&[1.0]));
    }
    add(device, &x, &x, 1).unwrap();
    assert_eq!(read(device, &x).unwrap(), bytes(&[2.0]));
    assert_eq!(fake.with(|s| s.launches), 1);
}

/// A kernel that fails while it runs: what is read afterwards is an error, for ever, and no other device opens.
#[test]
fn failed_work_loses_the_device() {
    let fake = Fake::new(vec![modern()]);
    let device = &*open(&fake);
    let x = memory(device, &bytes(&[1.0]));
    fake.with(|s| s.fault_when_run = Some((0, 700)));
    add(device, &x, &x, 1).unwrap();
    let lost = DeviceError::Lost {
        operation: "cuStreamSynchronize".to_string(),
        detail: "CUDA_ERROR_ILLEGAL_ADDRESS (700)".to_string(),
    };
    assert_eq!(read(device, &x).unwrap_err(), lost);
    assert_eq!(read(device, &x).unwrap_err(), lost);
    assert_eq!(device.alloc(4).err().unwrap(), lost);
    assert_eq!(device.upload(&x, 0, &[0; 4]).unwrap_err(), lost);
    assert_eq!(add(device, &x, &x, 1).unwrap_err(), lost);
    let at = Binding { memory: &x, offset: 0 };
    assert_eq!(device.copy(at, at, 4).unwrap_err(), lost);
    let why = "Fake 9000: cuStreamCreate failed: CUDA_ERROR_ILLEGAL_ADDRESS (700); a GPU was lost in this process before \
               (cuStreamSynchronize failed): start the program again";
    assert_eq!(open_with(fake.driver, 0).err().unwrap(), why);
}

/// An error that is no refusal, at any call that enqueues, loses the device too.
#[test]
fn an_unexpected_code_loses_the_device() {
    for call in [
        "cuMemcpyHtoDAsync_v2",
        "cuMemcpyDtoHAsync_v2",
        "cuMemcpyDtoDAsync_v2",
        "cuMemAllocAsync",
        "cuModuleGetFunction",
        "cuLaunchKernel",
    ] {
        let fake = Fake::new(vec![modern()]);
        let device = &*open(&fake);
        let x = memory(device, &bytes(&[1.0, 2.0]));
        fake.with(|s| s.faults = vec![(call, 0, 999)]);
        let (from, to) = (Binding { memory: &x, offset: 0 }, Binding { memory: &x, offset: 4 });
        let results = [
            device.alloc(4).map(drop),
            device.upload(&x, 0, &[0; 4]),
            device.copy(from, to, 4),
            read(device, &x).map(drop),
            add(device, &x, &x, 1),
            device.alloc(4).map(drop),
        ];
        let failed = results.iter().position(Result::is_err).unwrap_or_else(|| panic!("{call} was not called"));
        let lost = DeviceError::Lost { operation: call.to_string(), detail: "an unknown error (999)".to_string() };
        assert!(results[failed..].iter().all(|r| r.as_ref() == Err(&lost)), "{call}: {results:?}");
    }
}

#[test]
fn memory_of_another_device_is_refused() {
    let fake = Fake::new(vec![modern()]);
    let (device, other) = (&*open(&fake), &*open(&fake));
    for foreign in [Memory::new(4, 0u8), memory(other, &[0; 4])] {
        assert_eq!(device.upload(&foreign, 0, &[0; 4]).unwrap_err(), DeviceError::foreign());
    }
}

/// Calls come from many threads; each finds the context current and leaves its thread as it was.
#[test]
fn threads_share_a_device() {
    let fake = Fake::new(vec![modern()]);
    let device = &*open(&fake);
    std::thread::scope(|scope| {
        for t in 0..4u8 {
            scope.spawn(move || {
                for i in 0..20 {
                    let x = memory(device, &[t * 20 + i; 1000]);
                    assert_eq!(read(device, &x).unwrap(), [t * 20 + i; 1000]);
                }
            });
        }
    });
}

/// Whole models: every kernel's parameters go through the driver as its PTX declares them, and the bits are the CPU's.
#[test]
fn models_have_the_bits_of_the_cpu() {
    if !emulated("models_have_the_bits_of_the_cpu") {
        return;
    }
    let known = ptx::signatures(ptx::text().to_str().unwrap());
    assert!(kin_infer_emulator::kernels().iter().all(|name| known.contains_key(&**name)));
    for name in ["bert-f16", "modernbert-odd-window", "deberta-v2-conv-5"] {
        let fake = Fake::new(vec![modern()]);
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name);
        let fingerprint = |compute: Arc<dyn GpuCompute>| {
            let config = BertConfig::from_folder(&folder).unwrap();
            crate::fingerprint(&BertModel::load_with_compute(&folder, config, compute).unwrap()).unwrap()
        };
        let expected = fingerprint(Arc::new(CpuCompute::new().unwrap()));
        assert_eq!(fingerprint(Arc::new(DeviceCompute::new(open(&fake)))), expected, "{name}");
        assert!(fake.with(|s| s.launches) > 20, "{name}");
    }
}
