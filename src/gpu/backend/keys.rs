//! Stored keys and values: blocks of 64 tokens in one arena for all stores of a shape, so that one launch serves every
//! sequence of a batch. A store is a list of blocks; stores that go on from the same keys share them until one writes.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, Weak};

use super::args::{KV_BLOCK, StoreArgs};
use super::memory::Pool;
use super::{DeviceCompute, at, word};
use crate::error::{InferError, Result};
use crate::gpu::device::{Binding, Memory};
use crate::gpu::{Columns, KvStore};

/// Tokens of a block.
const BLOCK: usize = KV_BLOCK as usize;

/// Blocks of a new arena.
const FIRST_BLOCKS: usize = 32;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|e| e.into_inner())
}

/// The arenas of a backend, by key heads and features of a head. One that no store uses is gone.
#[derive(Default)]
pub(super) struct Arenas(Mutex<HashMap<(usize, usize), Weak<Arena>>>);

impl Arenas {
    pub fn of(&self, pool: &Arc<Pool>, kv_heads: usize, head_dim: usize) -> Arc<Arena> {
        let mut arenas = lock(&self.0);
        let slot = arenas.entry((kv_heads, head_dim)).or_default();
        slot.upgrade().unwrap_or_else(|| {
            let arena = Arc::new(Arena {
                pool: Arc::clone(pool),
                block_bytes: kv_heads.saturating_mul(head_dim).saturating_mul(BLOCK * 4),
                planes: Mutex::default(),
                free: Mutex::default(),
            });
            *slot = Arc::downgrade(&arena);
            arena
        })
    }
}

/// Blocks of keys and of values, `[block][kv_head][64][dim]` each.
pub(super) struct Arena {
    pool: Arc<Pool>,
    /// Bytes of a block's keys, and of its values.
    block_bytes: usize,
    /// Held while blocks are written or moved; never taken where `free` is held.
    planes: Mutex<Planes>,
    free: Mutex<Vec<u32>>,
}

#[derive(Clone, Default)]
struct Planes {
    memory: Option<(Arc<Memory>, Arc<Memory>)>,
    blocks: usize,
}

impl Arena {
    /// A block that no store uses; the arena grows where it has none.
    fn take(self: &Arc<Self>, planes: &mut Planes) -> Result<Arc<Block>> {
        let free = lock(&self.free).pop();
        let id = match free {
            Some(id) => id,
            None => {
                let first = planes.blocks;
                self.grow(planes)?;
                let mut free = lock(&self.free);
                free.extend((first + 1..planes.blocks).rev().map(word));
                word(first)
            }
        };
        Ok(Arc::new(Block { arena: Arc::clone(self), id }))
    }

    /// Twice as many blocks, or where memory for them cannot be had, a few more.
    fn grow(&self, planes: &mut Planes) -> Result<()> {
        let larger = (planes.blocks * 2).max(FIRST_BLOCKS);
        match self.grow_to(planes, larger) {
            Err(InferError::OutOfMemory { .. }) if larger > planes.blocks + 1 => {
                self.grow_to(planes, planes.blocks + (planes.blocks / 8).max(1))
            }
            other => other,
        }
    }

    fn grow_to(&self, planes: &mut Planes, blocks: usize) -> Result<()> {
        let bytes = blocks.saturating_mul(self.block_bytes);
        if bytes / 4 > u32::MAX as usize {
            let what = "an arena of more than 2^32 stored keys' values".to_string();
            return Err(InferError::OutOfMemory { what, bytes });
        }
        let keys = Arc::new(self.pool.fresh(bytes, "stored keys")?);
        let values = Arc::new(self.pool.fresh(bytes, "stored values")?);
        if let Some((old_keys, old_values)) = &planes.memory {
            for (from, to) in [(old_keys, &keys), (old_values, &values)] {
                self.copy((from, 0), (to, 0), planes.blocks)?;
            }
        }
        *planes = Planes { memory: Some((keys, values)), blocks };
        Ok(())
    }

    fn copy(&self, from: (&Memory, usize), to: (&Memory, usize), blocks: usize) -> Result<()> {
        let place = |(memory, block): (_, usize)| Binding { memory, offset: block * self.block_bytes };
        let copied = self.pool.device().copy(place(from), place(to), blocks * self.block_bytes);
        copied.map_err(|e| self.pool.error(e, "a copy of stored keys"))
    }
}

/// A block in use; it is free again when the last store lets go of it.
struct Block {
    arena: Arc<Arena>,
    id: u32,
}

impl Drop for Block {
    fn drop(&mut self) {
        lock(&self.arena.free).push(self.id);
    }
}

/// The blocks of one store; those whose tokens are forgotten are gone.
#[derive(Clone)]
pub(super) struct Keys {
    arena: Arc<Arena>,
    blocks: Vec<Option<Arc<Block>>>,
}

impl Keys {
    pub fn new(arena: Arc<Arena>) -> Self {
        Self { arena, blocks: Vec::new() }
    }

    /// Whether there are blocks for so many tokens.
    pub fn hold(&self, tokens: usize) -> bool {
        tokens.div_ceil(BLOCK) <= self.blocks.len()
    }

    /// The blocks' numbers, for kernels; those of forgotten tokens are any.
    pub fn numbers(&self) -> impl Iterator<Item = u32> + '_ {
        self.blocks.iter().map(|b| b.as_ref().map_or(0, |b| b.id))
    }

    /// The memory of keys and values of all stores of this shape; none before the first key.
    pub fn planes(&self) -> Option<(Arc<Memory>, Arc<Memory>)> {
        lock(&self.arena.planes).memory.clone()
    }

    /// Whether blocks of the two have the same memory.
    pub fn same_arena(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.arena, &other.arena)
    }

    /// The block that holds token `at`, made or copied so that no other store sees what is written to it.
    fn writable(&mut self, planes: &mut Planes, at: usize) -> Result<u32> {
        let (arena, index) = (&self.arena, at / BLOCK);
        if index >= self.blocks.len() {
            self.blocks.push(Some(arena.take(planes)?));
        }
        let Some(block) = self.blocks[index].as_mut() else {
            return Err(InferError::InvalidArgument("kv_append: the block to write was forgotten".to_string()));
        };
        if Arc::get_mut(block).is_none() {
            let copy = arena.take(planes)?;
            if let Some((keys, values)) = &planes.memory {
                for plane in [keys, values] {
                    arena.copy((plane, block.id as usize), (plane, copy.id as usize), 1)?;
                }
            }
            *block = copy;
        }
        Ok(block.id)
    }
}

impl DeviceCompute {
    pub(super) fn append(&self, store: &mut KvStore, k: Columns, v: Columns, rows: Range<usize>) -> Result<()> {
        let (kv_heads, head_dim, first, len) = (store.kv_heads(), store.head_dim(), store.first(), store.len());
        let (k_at, v_at) = (at(k.buffer)?, at(v.buffer)?);
        let keys = store.storage_mut::<Keys>()?;
        if rows.is_empty() {
            return Ok(());
        }
        let arena = Arc::clone(&keys.arena);
        let mut planes = lock(&arena.planes);
        let slot = |at: usize| Ok(keys.writable(&mut planes, at)? * KV_BLOCK + word(at % BLOCK));
        let slots = (len..len + rows.len()).map(slot).collect::<Result<Vec<u32>>>()?;
        let Some((key_plane, value_plane)) = &planes.memory else { unreachable!("an arena with blocks has memory") };
        let from = |c: Columns, binding: Binding| word(binding.offset / 4 + rows.start * c.stride + c.first);
        let args = StoreArgs {
            rows: word(rows.len()),
            kv_heads: word(kv_heads),
            head_dim: word(head_dim),
            k_first: from(k, k_at),
            k_stride: word(k.stride),
            v_first: from(v, v_at),
            v_stride: word(v.stride),
        };
        let table = self.words(&slots)?; // of this layer and step alone
        let of = |memory| Binding { memory, offset: 0 };
        let buffers = [of(k_at.memory), of(v_at.memory), table.binding(), of(key_plane), of(value_plane)];
        let grid = [rows.len().div_ceil(4), (kv_heads * head_dim).div_ceil(64), 1];
        self.launch("store_keys", grid, [64, 4, 1], &buffers, &args)?;
        store.set_range(first, len + rows.len());
        Ok(())
    }
}

/// Drops the blocks that hold no key of `first..len`.
pub(super) fn keep(store: &mut KvStore, first: usize, len: usize) -> Result<()> {
    let keys = store.storage_mut::<Keys>()?;
    keys.blocks.truncate(len.div_ceil(BLOCK));
    keys.blocks.iter_mut().take(first / BLOCK).for_each(|b| *b = None);
    store.set_range(first, len);
    Ok(())
}
