//! [`Run`]: what a run of work tells its watchdog, and the flag that asks it to end.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::error::{InferError, Result};

/// What a run is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(u8)]
pub enum Phase {
    /// Nothing yet.
    #[default]
    Start,
    /// Reading and preparing a model.
    Load,
    /// Turning texts into token ids.
    Tokenise,
    /// Forming batches.
    Plan,
    /// The layers of the model.
    Forward,
    /// What follows the last layer: pooling, heads.
    Pool,
    /// Persisting results.
    Write,
}

impl Phase {
    const ALL: [Self; 7] =
        [Self::Start, Self::Load, Self::Tokenise, Self::Plan, Self::Forward, Self::Pool, Self::Write];

    /// Its name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Start => "start",
            Self::Load => "load",
            Self::Tokenise => "tokenise",
            Self::Plan => "plan",
            Self::Forward => "forward",
            Self::Pool => "pool",
            Self::Write => "write",
        }
    }
}

/// Where a run is: the step that told last. Batches that run side by side all tell.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Place {
    /// What it does.
    pub phase: Phase,
    /// Which item, counted over the whole run.
    pub item: Option<u64>,
    /// Which layer, in the phase [`Phase::Forward`].
    pub layer: Option<usize>,
}

/// Bits of a packed [`Place`]: 4 of the phase, 20 of the layer, 40 of the item; the last two are 0 for none.
const LAYER_BITS: u32 = 20;
const ITEM_BITS: u32 = 40;

impl Place {
    fn pack(self) -> u64 {
        let counted = |value: Option<u64>, bits: u32| value.map_or(0, |v| (v + 1).min((1 << bits) - 1));
        let layer = counted(self.layer.map(|l| l as u64), LAYER_BITS);
        (self.phase as u64) << (LAYER_BITS + ITEM_BITS) | layer << ITEM_BITS | counted(self.item, ITEM_BITS)
    }

    fn unpack(packed: u64) -> Self {
        let part = |shift: u32, bits: u32| packed >> shift & ((1 << bits) - 1);
        let phase = (packed >> (LAYER_BITS + ITEM_BITS)) as usize;
        Self {
            phase: Phase::ALL.get(phase).copied().unwrap_or_default(),
            item: part(0, ITEM_BITS).checked_sub(1),
            layer: part(ITEM_BITS, LAYER_BITS).checked_sub(1).map(|l| l as usize),
        }
    }
}

/// A run of work: how much of it was persisted, where it is, and whether it ought to end. Clones are the same run.
///
/// A run is told to a model by `with_run`; the forward pass then notes its place and polls the flag, at the price of a
/// store and a load a layer. A flag that was set stays set: what comes back is whole, or
/// [`InferError::Cancelled`].
#[derive(Debug, Clone, Default)]
pub struct Run {
    state: Arc<State>,
}

#[derive(Debug, Default)]
struct State {
    id: u64,
    cancel: Arc<AtomicBool>,
    place: AtomicU64,
    first_item: AtomicU64,
    persisted: AtomicU64,
    planned_bytes: AtomicU64,
}

impl Run {
    /// A run that no watchdog looks at.
    pub fn new() -> Self {
        Self::default()
    }

    pub(super) fn with_id(id: u64) -> Self {
        Self { state: Arc::new(State { id, ..State::default() }) }
    }

    /// Its number; 0 where no watchdog gave one.
    pub fn id(&self) -> u64 {
        self.state.id
    }

    /// `n` more units (rows, batches: whatever the rate counts) are persisted: on disk, delivered, safe. This, and
    /// nothing else, is progress.
    pub fn bump(&self, n: u64) {
        self.state.persisted.fetch_add(n, Ordering::Relaxed);
    }

    /// Units persisted so far.
    pub fn persisted(&self) -> u64 {
        self.state.persisted.load(Ordering::Relaxed)
    }

    /// Items of the calls to come are counted from here on: an index in a call plus `item` is an index in the run.
    pub fn items_from(&self, item: u64) {
        self.state.first_item.store(item, Ordering::Relaxed);
    }

    /// The memory the run was planned to take, for reports.
    pub fn set_planned_bytes(&self, bytes: u64) {
        self.state.planned_bytes.store(bytes, Ordering::Relaxed);
    }

    /// The memory it was planned to take, where that was said.
    pub fn planned_bytes(&self) -> Option<u64> {
        Some(self.state.planned_bytes.load(Ordering::Relaxed)).filter(|bytes| *bytes > 0)
    }

    /// The run enters a phase.
    pub fn enter(&self, phase: Phase) {
        self.state.place.store(Place { phase, item: None, layer: None }.pack(), Ordering::Relaxed);
    }

    /// The run enters a phase with the item of this index in the call.
    pub(crate) fn enter_item(&self, phase: Phase, item: usize, layer: Option<usize>) {
        let item = Some(item as u64 + self.state.first_item.load(Ordering::Relaxed));
        self.state.place.store(Place { phase, item, layer }.pack(), Ordering::Relaxed);
    }

    /// Where it is.
    pub fn place(&self) -> Place {
        Place::unpack(self.state.place.load(Ordering::Relaxed))
    }

    /// Asks the run to end: work in progress stops at the next layer or tile.
    pub fn cancel(&self) {
        self.state.cancel.store(true, Ordering::Relaxed);
    }

    /// Whether it was asked to end.
    pub fn cancelled(&self) -> bool {
        self.state.cancel.load(Ordering::Relaxed)
    }

    /// The flag itself, for signal handlers. Whoever sets it must not reset it.
    pub fn cancel_flag(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.state.cancel)
    }

    /// [`InferError::Cancelled`] where the run was asked to end.
    pub fn check(&self) -> Result<()> {
        if self.cancelled() { Err(InferError::Cancelled) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_survive_packing() {
        for place in [
            Place::default(),
            Place { phase: Phase::Write, item: None, layer: None },
            Place { phase: Phase::Forward, item: Some(0), layer: Some(0) },
            Place { phase: Phase::Pool, item: Some(123_456_789_012), layer: Some(1_000_000) },
        ] {
            assert_eq!(Place::unpack(place.pack()), place);
        }
        let beyond = Place { phase: Phase::Forward, item: Some(u64::MAX - 1), layer: Some(usize::MAX - 1) };
        assert_eq!(Place::unpack(beyond.pack()).phase, Phase::Forward, "what does not fit spills nowhere");
    }

    #[test]
    fn items_are_counted_over_the_run() {
        let run = Run::new();
        run.items_from(512);
        run.enter_item(Phase::Forward, 3, Some(7));
        assert_eq!(run.place(), Place { phase: Phase::Forward, item: Some(515), layer: Some(7) });
        run.enter(Phase::Write);
        assert_eq!(run.place(), Place { phase: Phase::Write, item: None, layer: None });
    }

    #[test]
    fn a_cancelled_run_says_so_to_every_clone() {
        let run = Run::new();
        let other = run.clone();
        assert!(other.check().is_ok());
        run.cancel();
        assert!(matches!(other.check(), Err(InferError::Cancelled)));
    }
}
