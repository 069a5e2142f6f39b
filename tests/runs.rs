//! What runs show of themselves: tracing spans, places, and cancellation in the middle of a forward pass.

mod common;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use kin_infer::batch::BatchLimits;
use kin_infer::cpu::CpuCompute;
use kin_infer::gpu::{Epilogue, GpuCompute};
use kin_infer::watchdog::{Phase, Run};
use kin_infer::weights::Checkpoint;
use kin_infer::{BertConfig, BertModel, Embedder, InferError, Sequence};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};
use tracing_core::span::Current;

/// A span that was opened.
#[derive(Debug, Clone, Default)]
struct Seen {
    name: &'static str,
    metadata: Option<&'static Metadata<'static>>,
    parent: Option<&'static str>,
    fields: BTreeMap<&'static str, u64>,
}

/// Keeps every span of this crate, and cancels a run when so many layers were entered.
#[derive(Default)]
struct Spans {
    seen: Mutex<Vec<Seen>>,
    cancel_at: Mutex<Option<(usize, Run)>>,
}

thread_local! {
    /// The spans that this thread is in, as indices into `seen`.
    static INSIDE: RefCell<Vec<u64>> = const { RefCell::new(Vec::new()) };
}

struct Fields<'a>(&'a mut BTreeMap<&'static str, u64>);

impl Visit for Fields<'_> {
    fn record_u64(&mut self, field: &Field, value: u64) {
        self.0.insert(field.name(), value);
    }

    fn record_debug(&mut self, _: &Field, _: &dyn std::fmt::Debug) {}
}

impl Subscriber for &'static Spans {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("kin_infer")
    }

    fn new_span(&self, span: &Attributes<'_>) -> Id {
        let mut seen = self.seen.lock().unwrap();
        let parent = INSIDE.with_borrow(|inside| inside.last().map(|id| seen[*id as usize].name));
        let mut fields = BTreeMap::new();
        span.record(&mut Fields(&mut fields));
        let metadata = span.metadata();
        seen.push(Seen { name: metadata.name(), metadata: Some(metadata), parent, fields });
        let layers = seen.iter().filter(|s| s.name == "layer").count();
        if let Some((_, run)) = self.cancel_at.lock().unwrap().as_ref().filter(|(at, _)| *at == layers) {
            run.cancel();
        }
        Id::from_u64(seen.len() as u64)
    }

    fn record(&self, span: &Id, values: &Record<'_>) {
        let mut seen = self.seen.lock().unwrap();
        values.record(&mut Fields(&mut seen[span.into_u64() as usize - 1].fields));
    }

    fn current_span(&self) -> Current {
        let inside = INSIDE.with_borrow(|inside| inside.last().copied());
        let Some(id) = inside else { return Current::none() };
        let seen = self.seen.lock().unwrap();
        Current::new(Id::from_u64(id + 1), seen[id as usize].metadata.unwrap())
    }

    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn event(&self, _: &Event<'_>) {}

    fn enter(&self, span: &Id) {
        INSIDE.with_borrow_mut(|inside| inside.push(span.into_u64() - 1));
    }

    fn exit(&self, span: &Id) {
        INSIDE.with_borrow_mut(|inside| {
            if let Some(at) = inside.iter().rposition(|id| *id == span.into_u64() - 1) {
                inside.remove(at);
            }
        });
    }
}

/// The subscriber of this process; the lock keeps the tests apart.
fn spans() -> (&'static Spans, MutexGuard<'static, ()>) {
    static ONE: std::sync::OnceLock<&'static Spans> = std::sync::OnceLock::new();
    static LOCK: Mutex<()> = Mutex::new(());
    let guard = LOCK.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let one = ONE.get_or_init(|| {
        let one: &'static Spans = Box::leak(Box::default());
        tracing::subscriber::set_global_default(one).unwrap();
        one
    });
    one.seen.lock().unwrap().clear();
    *one.cancel_at.lock().unwrap() = None;
    (one, guard)
}

fn model(name: &str) -> BertModel {
    let folder = common::fixture(name);
    BertModel::load(&folder, BertConfig::from_folder(&folder).unwrap()).unwrap()
}

/// Sequences of different lengths, `count` of them.
fn sequences(count: usize) -> Vec<Sequence> {
    (0..count).map(|i| Sequence::new((0..1 + i % 30).map(|t| (t % 20) as u32).collect())).collect()
}

fn bits(results: Vec<kin_infer::Result<kin_infer::Encoded>>) -> Vec<Vec<u32>> {
    results.into_iter().map(|r| r.unwrap().hidden.iter().map(|v| v.to_bits()).collect()).collect()
}

#[test]
fn an_embedding_shows_its_spans() {
    let (spans, _guard) = spans();
    let embedder = Embedder::load(&common::fixture("st-tiny")).unwrap();
    let layers = embedder.model().spec().layers.len();
    let texts: Vec<String> = (0..60).map(|i| "the cat sat on a mat ".repeat(1 + i % 4)).collect();
    let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    let outer = tracing::debug_span!(target: "kin_infer_test", "outer").entered();
    let counted = embedder.embed_each_counted(&texts, &kin_infer::EmbedOptions::default()).unwrap();
    drop(outer);
    let lengths: Vec<u64> = counted.iter().map(|c| c.as_ref().unwrap().tokens as u64).collect();

    let seen = spans.seen.lock().unwrap().clone();
    let named = |name: &str| seen.iter().filter(|s| s.name == name).cloned().collect::<Vec<_>>();
    assert_eq!(named("load").len(), 1);
    let tokenise = named("tokenise");
    assert_eq!((tokenise.len(), tokenise[0].fields["texts"]), (1, 60));
    let forward = named("forward");
    let sum = |field: &str| forward.iter().map(|s| s.fields[field]).sum::<u64>();
    assert_eq!(sum("texts"), 60);
    assert_eq!(sum("tokens"), lengths.iter().sum::<u64>());
    assert_eq!(sum("area"), lengths.iter().map(|len| len * len).sum::<u64>());
    assert!(forward.iter().all(|s| s.parent == Some("outer")), "also on the pool's threads: {forward:?}");
    if cfg!(target_os = "linux") {
        assert!(forward.iter().all(|s| s.fields["peak"] > 1 << 20), "{forward:?}");
    }
    let layer = named("layer");
    assert_eq!(layer.len(), layers * forward.len());
    assert!(layer.iter().all(|s| s.parent == Some("forward") && s.fields["l"] < layers as u64));
    assert_eq!(named("pool").len(), forward.len());
    assert!(named("pool").iter().all(|s| s.parent == Some("forward")));
}

#[test]
fn a_run_is_cancelled_between_layers() {
    let (spans, _guard) = spans();
    let whole = model("bert-base");
    let (layers, sequences) = (whole.spec().layers.len(), sequences(40));
    assert!(layers >= 2);
    let expected = bits(whole.encode(&sequences));

    let run = Run::new();
    run.items_from(1000);
    spans.seen.lock().unwrap().clear();
    *spans.cancel_at.lock().unwrap() = Some((2, run.clone()));
    let one_thread = rayon::ThreadPoolBuilder::new().num_threads(1).build().unwrap();
    let results = one_thread.install(|| whole.clone().with_run(&run).encode(&sequences));
    *spans.cancel_at.lock().unwrap() = None;

    let cancelled = results.iter().filter(|r| matches!(r, Err(InferError::Cancelled))).count();
    assert_eq!(cancelled, sequences.len(), "the first batch was in its second layer");
    let seen = spans.seen.lock().unwrap().clone();
    assert_eq!(seen.iter().filter(|s| s.name == "layer").count(), 2, "no layer follows");
    assert_eq!(seen.iter().filter(|s| s.name == "pool").count(), 0);
    assert_eq!(run.place().phase, Phase::Forward);
    assert!(run.place().item.is_some_and(|item| (1000..1040).contains(&item)), "{:?}", run.place());

    // What the run was cancelled in still works, for others and afterwards.
    assert_eq!(bits(whole.encode(&sequences)), expected);
    assert_eq!(bits(whole.clone().with_run(&Run::new()).encode(&sequences)), expected);
}

#[test]
fn a_cancelled_run_computes_nothing() {
    let (spans, _guard) = spans();
    let embedder = Embedder::load(&common::fixture("st-tiny")).unwrap();
    let run = Run::new();
    run.cancel();
    spans.seen.lock().unwrap().clear();
    let results = embedder.with_run(&run).embed_each(&["one", "two"], &kin_infer::EmbedOptions::default()).unwrap();
    assert!(results.iter().all(|r| matches!(r, Err(InferError::Cancelled))), "{results:?}");
    assert!(spans.seen.lock().unwrap().iter().all(|s| s.name != "layer"));
}

#[test]
fn operations_stop_at_the_next_tile() {
    let (_, _guard) = spans();
    let folder = common::fixture("bert-base");
    let checkpoint = Checkpoint::open(&folder).unwrap();
    let name = checkpoint.names().find(|n| n.ends_with("intermediate.dense.weight")).unwrap().to_string();
    let tensor = checkpoint.tensor(&name).unwrap().clone();
    let (n, k) = (tensor.shape()[0], tensor.shape()[1]);
    let flag = Arc::new(AtomicBool::new(false));
    let plain = CpuCompute::new().unwrap();
    let polling = plain.cancellable(&flag).unwrap();
    let weight = plain.prepare_weight(&[tensor]).unwrap();
    let x = plain.upload(&vec![1.0; 100 * k]).unwrap();
    let product = |compute: &dyn GpuCompute| {
        let mut out = plain.upload(&vec![-7.0; 100 * n]).unwrap();
        let done = compute.matmul(&x, 100, &weight, Epilogue::NONE, &mut out);
        let mut values = vec![0.0; 100 * n];
        plain.read(&out, &mut values).unwrap();
        (done, values.iter().map(|v: &f32| v.to_bits()).collect::<Vec<_>>())
    };
    let (done, expected) = product(&plain);
    done.unwrap();
    let (done, found) = product(&*polling);
    done.unwrap();
    assert_eq!(found, expected, "a flag that is not set changes no bit");
    flag.store(true, Ordering::Relaxed);
    let (done, found) = product(&*polling);
    assert!(matches!(done, Err(InferError::Cancelled)));
    assert!(found.iter().all(|v| *v == (-7.0f32).to_bits()), "no tile was computed");
    product(&plain).0.unwrap();
}

#[test]
fn a_text_that_the_plan_has_no_room_for_fails_alone() {
    let (_, _guard) = spans();
    let whole = model("bert-base");
    let sequences: Vec<Sequence> = [3, 30, 4].map(|len| Sequence::new(vec![1; len])).into();
    let expected = bits(whole.encode(&sequences));
    let limits = BatchLimits { tokens: 8, room: Some(1), ..BatchLimits::default() };
    let mut results = whole.clone().with_limits(limits).encode(&sequences);
    match results.remove(1) {
        Err(InferError::OutOfMemory { what, bytes }) => {
            assert!(what.contains("30 tokens") && bytes > 30 * 4, "{what}, {bytes}");
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(bits(results), [expected[0].clone(), expected[2].clone()]);
    let roomy = BatchLimits { room: Some(1 << 30), ..limits };
    assert_eq!(bits(whole.with_limits(roomy).encode(&sequences)), expected, "limits change no bit");
}

#[test]
fn limits_change_no_bit() {
    let (_, _guard) = spans();
    let whole = model("bert-base");
    let sequences = sequences(60);
    let expected = bits(whole.encode(&sequences));
    for (tokens, area, window, workers) in
        [(1, 1, 1, 1), (64, 500, 100, 1), (64, usize::MAX, usize::MAX, 3), (100_000, usize::MAX, usize::MAX, 2)]
    {
        let limits = BatchLimits { tokens, area, window, workers, ..BatchLimits::default() };
        assert_eq!(bits(whole.clone().with_limits(limits).encode(&sequences)), expected, "{limits:?}");
    }
}
