//! `create_compute` where a GPU backend of the build finds no device: the CPU computes, and the reason is told once. In
//! a process of its own: what is told once is told to the first that listens.

use std::fmt::Debug;
use std::sync::{Arc, Mutex};

use kin_infer::gpu::{GpuBackend, absent_backends, create_compute, discover_devices, force_cpu_from_env};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

/// Keeps the warnings' fields.
#[derive(Clone, Default)]
struct Warnings(Arc<Mutex<Vec<String>>>);

struct Fields(String);

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.0 += &format!("{}={value:?};", field.name());
    }
}

impl Subscriber for Warnings {
    fn enabled(&self, metadata: &Metadata) -> bool {
        *metadata.level() == Level::WARN
    }
    fn new_span(&self, _: &Attributes) -> Id {
        Id::from_u64(1)
    }
    fn record(&self, _: &Id, _: &Record) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn event(&self, event: &Event) {
        let mut fields = Fields(String::new());
        event.record(&mut fields);
        self.0.lock().unwrap().push(fields.0);
    }
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

#[test]
fn what_is_absent_is_told_once() {
    let warnings = Warnings::default();
    let (computes, devices) = tracing::subscriber::with_default(warnings.clone(), || {
        ([create_compute().unwrap(), create_compute().unwrap()], discover_devices())
    });
    let (absent, warnings) = (absent_backends(), warnings.0.lock().unwrap().clone());
    assert_eq!(devices.last().unwrap().backend, GpuBackend::Cpu);
    let used = computes[0].backend();
    assert_eq!(computes[1].backend(), used);
    assert!(devices.iter().any(|device| device.backend == used));
    if used != GpuBackend::Cpu || force_cpu_from_env() {
        use std::io::Write;
        let why = "there is a GPU, or KIN_INFER_FORCE_CPU is set";
        let _ = writeln!(std::io::stderr(), "1 skipped: what_is_absent_is_told_once: {why}");
        return;
    }
    assert_eq!(devices.len(), 1);
    assert_eq!(warnings.len(), absent.len(), "{warnings:?}");
    for (warning, absent) in warnings.iter().zip(&absent) {
        let told = [format!("backend={}", absent.backend), absent.reason.clone(), "used=cpu".to_string()];
        assert!(told.iter().all(|part| warning.contains(part)), "{warning}: {told:?}");
    }
    if cfg!(feature = "cuda") {
        assert_eq!(absent[0].backend, GpuBackend::Cuda);
        assert!(!absent[0].reason.is_empty());
    } else {
        assert!(absent.is_empty(), "{absent:?}");
    }
}
