//! What every device keeps to (`gpu::device`): the emulated one, and the GPUs of this machine.

mod devices;
mod emulated;

use std::sync::Arc;

use emulated::{Emulated, Order};
use kin_infer::gpu::device::{Binding, Device, DeviceError, DeviceResult, Launch, Memory};

/// Runs `check` on each device.
fn each_device(test: &str, check: impl Fn(&str, &dyn Device)) {
    if emulated::available(test) {
        check("emulated", &Emulated::new(Order::Ascending, 64));
    }
    for gpu in devices::gpus(test) {
        check(&gpu.name, &*gpu.device);
    }
}

fn bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_ne_bytes()).collect()
}

/// Memory that holds `bytes`.
fn memory(device: &dyn Device, bytes: &[u8]) -> Memory {
    let memory = device.alloc(bytes.len()).unwrap();
    device.upload(&memory, 0, bytes).unwrap();
    memory
}

fn read(device: &dyn Device, memory: &Memory) -> Vec<u8> {
    let mut out = vec![0; memory.bytes()];
    device.read(memory, 0, &mut out).unwrap();
    out
}

fn values(device: &dyn Device, memory: &Memory) -> Vec<f32> {
    read(device, memory).as_chunks().0.iter().map(|v| f32::from_ne_bytes(*v)).collect()
}

/// `x[i] += y[i]`, or `x[i] *= y[i]`, for values from `first` on.
fn combine(device: &dyn Device, kernel: &'static str, x: &Memory, y: &Memory, first: usize) -> DeviceResult<()> {
    let buffers = [x, y].map(|memory| Binding { memory, offset: first * 4 });
    let count = (x.bytes() / 4 - first) as u32;
    let grid = [count.div_ceil(256), 1, 1];
    let launch = Launch { kernel, grid, threads: [256, 1, 1], buffers: &buffers, args: &count.to_ne_bytes() };
    assert!(x.bytes() == y.bytes());
    // SAFETY: both buffers hold `count` values from `first` on.
    unsafe { device.launch(&launch) }
}

/// A call sees what all earlier ones wrote, and nothing of later ones.
#[test]
fn work_runs_in_the_order_of_the_calls() {
    each_device("work_runs_in_the_order_of_the_calls", |name, device| {
        let len = 5000;
        let x = memory(device, &bytes(&vec![0.0; len]));
        let (y, kept) = (device.alloc(len * 4).unwrap(), device.alloc(len * 4).unwrap());
        let mut expected = 0.0;
        for round in 0..200 {
            let step = (round % 7) as f32;
            device.upload(&y, 0, &bytes(&vec![step; len])).unwrap();
            combine(device, "add_values", &x, &y, 0).unwrap();
            expected += step;
            if round == 120 {
                device.copy(Binding { memory: &x, offset: 0 }, Binding { memory: &kept, offset: 0 }, len * 4).unwrap();
                assert_eq!(values(device, &kept), vec![expected; len], "{name}");
            }
        }
        assert_eq!(values(device, &x), vec![expected; len], "{name}");
        assert_eq!(values(device, &y), vec![3.0; len], "{name}");
    });
}

/// Offsets of bindings, uploads, copies and reads.
#[test]
fn ranges_begin_where_they_say() {
    each_device("ranges_begin_where_they_say", |name, device| {
        let x = memory(device, &bytes(&[1.0, 2.0, 3.0, 4.0, 5.0]));
        let y = memory(device, &bytes(&[10.0, 20.0, 30.0, 40.0, 50.0]));
        combine(device, "add_values", &x, &y, 3).unwrap();
        assert_eq!(values(device, &x), [1.0, 2.0, 3.0, 44.0, 55.0], "{name}");
        device.upload(&x, 4, &bytes(&[-2.0, -3.0])).unwrap();
        device.copy(Binding { memory: &x, offset: 4 }, Binding { memory: &y, offset: 12 }, 8).unwrap();
        assert_eq!(values(device, &y), [10.0, 20.0, 30.0, -2.0, -3.0], "{name}");
        let mut two = [0; 8];
        device.read(&x, 12, &mut two).unwrap();
        assert_eq!(two[..], bytes(&[44.0, 55.0]), "{name}");
    });
}

/// Ranges that do not lie in their memory are refused, and nothing is read or written.
#[test]
fn ranges_beyond_the_memory_are_refused() {
    each_device("ranges_beyond_the_memory_are_refused", |name, device| {
        let (x, y) = (memory(device, &[1; 12]), memory(device, &[2; 16]));
        let refused = |result: DeviceResult<()>, text: &str| match result {
            Err(DeviceError::Refused { operation, detail }) => {
                assert_eq!((&*operation, &*detail), ("memory", text), "{name}");
            }
            other => panic!("{name}: {other:?} in place of {text}"),
        };
        for (offset, len) in [(0, 16), (8, 8), (12, 4), (1 << 40, 4), (usize::MAX - 3, 8)] {
            let text = format!("{len} bytes from {offset} on were asked for, it has 12");
            refused(device.upload(&x, offset, &vec![3; len]), &text);
            let mut out = vec![4; len];
            refused(device.read(&x, offset, &mut out), &text);
            assert_eq!(out, vec![4; len], "{name}");
            let (inside, outside) = (Binding { memory: &y, offset: 0 }, Binding { memory: &x, offset });
            refused(device.copy(inside, outside, len), &text);
            refused(device.copy(outside, inside, len), &text);
        }
        assert_eq!((read(device, &x), read(device, &y)), (vec![1; 12], vec![2; 16]), "{name}");
    });
}

#[test]
fn large_uploads_arrive_whole() {
    each_device("large_uploads_arrive_whole", |name, device| {
        for len in [1, 255, 4 << 20, (9 << 20) + 5] {
            let pattern: Vec<u8> = (0..len).map(|i| ((i * 31 + i / 251) % 253) as u8).collect();
            assert!(read(device, &memory(device, &pattern)) == pattern, "{name}, {len} bytes");
        }
    });
}

/// Memory that enqueued work uses may be dropped at once.
#[test]
fn memory_in_use_outlives_its_owner() {
    each_device("memory_in_use_outlives_its_owner", |name, device| {
        let len = 100_000;
        let x = memory(device, &bytes(&vec![1.0; len]));
        for step in 1..=20 {
            let y = memory(device, &bytes(&vec![step as f32; len]));
            combine(device, "add_values", &x, &y, 0).unwrap();
        }
        assert_eq!(values(device, &x), vec![211.0; len], "{name}");
    });
}

/// Numbers below 2^-126 are kept, as IEEE 754 says.
#[test]
fn denormals_are_kept() {
    each_device("denormals_are_kept", |name, device| {
        let (a, b) = ([1e-40, 3e-39, f32::MIN_POSITIVE, -1e-45, 1e-20], [2e-40, -1e-39, 0.5, 1e-45, 1e-20]);
        let bits = |memory: &Memory| values(device, memory).iter().map(|v| v.to_bits()).collect::<Vec<_>>();
        let expected = |f: fn(f32, f32) -> f32| a.iter().zip(b).map(|(a, b)| f(*a, b).to_bits()).collect::<Vec<_>>();
        for (kernel, f) in [("add_values", (|a, b| a + b) as fn(f32, f32) -> f32), ("multiply_values", |a, b| a * b)] {
            let (x, y) = (memory(device, &bytes(&a)), memory(device, &bytes(&b)));
            combine(device, kernel, &x, &y, 0).unwrap();
            assert_eq!(bits(&x), expected(f), "{name}, {kernel}");
        }
    });
}

/// What benchmarks take for the peak computes what its source says.
#[test]
fn the_fma_peak_is_made_of_fma() {
    each_device("the_fma_peak_is_made_of_fma", |name, device| {
        let (groups, count) = (2, 3);
        let out = device.alloc(groups * 256 * 4).unwrap();
        let buffers = [Binding { memory: &out, offset: 0 }];
        let (grid, args) = ([groups as u32, 1, 1], u32::to_ne_bytes(count));
        let launch = Launch { kernel: "measure_fma", grid, threads: [256, 1, 1], buffers: &buffers, args: &args };
        // SAFETY: a value for each thread of the grid.
        unsafe { device.launch(&launch) }.unwrap();
        let factor = 1.0 / (count + 1) as f32;
        let chain = |i: usize, term: f32| (0..8 * count).fold(i as f32, |c, _| c.mul_add(factor, term));
        let expected = (0..groups * 256).map(|at| (0..16).fold(0.0, |sum, i| sum + chain(i, at as f32)));
        assert_eq!(values(device, &out), expected.collect::<Vec<f32>>(), "{name}");
    });
}

#[test]
fn a_refused_call_leaves_the_device_working() {
    each_device("a_refused_call_leaves_the_device_working", |name, device| {
        let x = memory(device, &bytes(&[1.0, 2.0]));
        let at = Binding { memory: &x, offset: 0 };
        for (kernel, threads) in [("no_such_kernel", 256), ("add_values", 4096)] {
            let launch =
                Launch { kernel, grid: [1; 3], threads: [threads, 1, 1], buffers: &[at, at], args: &[2, 0, 0, 0] };
            // SAFETY: it does not run; it would add the two values.
            let refused = unsafe { device.launch(&launch) }.unwrap_err();
            assert!(
                matches!(&refused, DeviceError::Refused { operation, .. } if operation == kernel),
                "{name}: {refused}"
            );
        }
        let refused = device.alloc(1 << 60).err().unwrap();
        assert_eq!(refused, DeviceError::OutOfMemory { bytes: 1 << 60 }, "{name}");
        combine(device, "add_values", &x, &x, 0).unwrap();
        assert_eq!(values(device, &x), [2.0, 4.0], "{name}");
    });
}

/// Memory of another device, of the same kind too, is refused by every call.
fn refuses_foreign_memory(name: &str, device: &dyn Device, other: &dyn Device) {
    let own = memory(device, &bytes(&[1.0, 2.0]));
    for foreign in [memory(other, &bytes(&[3.0, 4.0])), Memory::new(8, 0u8)] {
        let [mine, theirs] = [&own, &foreign].map(|memory| Binding { memory, offset: 0 });
        let results = [
            device.upload(&foreign, 0, &[0; 8]),
            device.read(&foreign, 0, &mut [0; 8]),
            device.copy(mine, theirs, 8),
            device.copy(theirs, mine, 8),
            combine(device, "add_values", &own, &foreign, 0),
        ];
        for result in results {
            assert_eq!(result, Err(DeviceError::foreign()), "{name}");
        }
    }
    assert_eq!(values(device, &own), [1.0, 2.0], "{name}");
}

#[test]
fn memory_of_another_device_is_refused() {
    let test = "memory_of_another_device_is_refused";
    if emulated::available(test) {
        let device = || Emulated::new(Order::Ascending, 64);
        refuses_foreign_memory("emulated", &device(), &device());
    }
    for gpu in devices::gpus(test) {
        refuses_foreign_memory(&gpu.name, &*gpu.device, &*devices::open(gpu.compute.backend()));
    }
}

/// Calls from several threads at once, each about memory of its own.
#[test]
fn threads_share_a_device() {
    each_device("threads_share_a_device", |name, device| {
        std::thread::scope(|scope| {
            for t in 0..4 {
                scope.spawn(move || {
                    let mut kept = Vec::new();
                    for i in 0..25 {
                        let x = memory(device, &bytes(&vec![(t * 100 + i) as f32; 3000]));
                        let y = memory(device, &bytes(&vec![1.0; 3000]));
                        combine(device, "add_values", &x, &y, 0).unwrap();
                        kept.push(x);
                    }
                    for (i, x) in kept.iter().enumerate() {
                        assert_eq!(values(device, x), vec![(t * 100 + i + 1) as f32; 3000], "{name}, thread {t}");
                    }
                });
            }
        });
    });
}

/// A device that is closed gives back what it had, and another can be opened.
#[test]
fn devices_can_be_opened_again() {
    for gpu in devices::gpus("devices_can_be_opened_again") {
        for _ in 0..3 {
            let again = kin_infer::gpu::create_compute_on(gpu.compute.backend()).unwrap();
            let x = again.upload(&[1.0, 2.0]).unwrap();
            let (mut out, other) = ([0.0; 2], Arc::clone(&again));
            drop(again);
            other.read(&x, &mut out).unwrap();
            assert_eq!(out, [1.0, 2.0]);
        }
    }
}
