//! [`KvCache`]: what a decoder remembers of a sequence, so that each further token costs one pass.

use crate::error::{InferError, Result};
use crate::gpu::{Buffer, KvStore};
use crate::model::{BertModel, Next};

/// The tokens of one sequence, and the keys and values each layer has computed for them.
///
/// Memory: for each layer, blocks of 512 tokens of 2 * 512 * kv_heads * head_dim * 4 bytes (head_dim rounded up to 16
/// for values). A layer without a window keeps ceil(len / 512) blocks; one with a window of w tokens at most
/// ceil(w / 512) + 1. Blocks are never moved: growing copies nothing, and [`BertModel::share_cache`] copies none
/// before it is written to.
pub struct KvCache {
    ids: Vec<u32>,
    layers: Vec<KvStore>,
    /// Tokens whose keys are stored; the others are computed before anything new is.
    computed: usize,
    /// Which rotations the stored keys have.
    regime: Vec<usize>,
}

impl KvCache {
    /// The tokens so far.
    pub fn ids(&self) -> &[u32] {
        &self.ids
    }

    /// Number of tokens.
    pub fn len(&self) -> usize {
        self.ids.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.ids.is_empty()
    }
}

/// Computed tokens of a cache after a failure: its layers may hold different numbers of keys, and are made anew.
const UNSURE: usize = usize::MAX;

/// Tokens that a prompt is cut into, so that its activations stay small. No cut shows in a result.
pub(super) const CHUNK: usize = 512;

impl BertModel {
    /// A cache of no tokens.
    ///
    /// # Errors
    /// A model that is no decoder.
    pub fn kv_cache(&self) -> Result<KvCache> {
        let attention = &self.spec().attention;
        if !attention.causal {
            let detail =
                format!("`{}` reads whole sequences; a key and value cache needs a decoder", self.spec().family);
            return Err(InferError::InvalidArgument(detail));
        }
        let store = |_| self.compute().kv_store(attention.kv_heads, attention.head_dim);
        let layers = (0..self.spec().layers.len()).map(store).collect::<Result<_>>()?;
        Ok(KvCache { ids: Vec::new(), layers, computed: 0, regime: Vec::new() })
    }

    /// A cache of the first `len` tokens of another, which stays as it is.
    pub fn share_cache(&self, cache: &KvCache, len: usize) -> Result<KvCache> {
        let layers = cache.layers.iter().map(|l| self.compute().kv_share(l)).collect::<Result<_>>()?;
        let mut copy =
            KvCache { ids: cache.ids.clone(), layers, computed: cache.computed, regime: cache.regime.clone() };
        self.truncate_cache(&mut copy, len)?;
        Ok(copy)
    }

    /// Forgets the tokens from `len` on. Where a layer has let go of keys that the shorter sequence needs (windows), the
    /// next call computes the tokens that are left again.
    pub fn truncate_cache(&self, cache: &mut KvCache, len: usize) -> Result<()> {
        let unsure = cache.computed > cache.ids.len();
        cache.ids.truncate(len);
        let len = cache.ids.len();
        if unsure {
            return self.keep(cache, 0);
        }
        if len >= cache.computed {
            return Ok(());
        }
        let windows = self.spec().layers.iter().map(|l| l.window);
        let missing = cache.layers.iter().zip(windows).any(|(store, window)| {
            let needed = window.map_or(0, |w| len.saturating_sub(w as usize));
            store.first() > needed
        });
        self.keep(cache, if missing { 0 } else { len })
    }

    /// Keeps the stored keys of the first `len` tokens.
    fn keep(&self, cache: &mut KvCache, len: usize) -> Result<()> {
        cache.computed = UNSURE;
        for store in &mut cache.layers {
            if len == 0 {
                *store = self.compute().kv_store(store.kv_heads(), store.head_dim())?;
            } else {
                let first = store.first().min(len);
                self.compute().kv_keep(store, first, len)?;
            }
        }
        cache.computed = len;
        Ok(())
    }

    /// Makes the cache hold exactly `ids`, using what it holds of their beginning, and gives the scores of the next
    /// token, `[vocab_size]`.
    ///
    /// # Errors
    /// As [`extend`](Self::extend).
    pub fn prefill(&self, cache: &mut KvCache, ids: &[u32]) -> Result<Vec<f32>> {
        let common = cache.ids.iter().zip(ids).take_while(|(a, b)| a == b).count();
        // The last token runs again where all are known: its scores are not kept.
        let common = common.min(ids.len().saturating_sub(1));
        self.truncate_cache(cache, common)?;
        self.extend(cache, &ids[common..])
    }

    /// Adds tokens to the sequence and gives the scores of the next one, `[vocab_size]`.
    ///
    /// # Errors
    /// No tokens, ids the vocabulary lacks, positions the model lacks, scores that are not finite, memory that cannot be
    /// had. The cache then holds what it held.
    pub fn extend(&self, cache: &mut KvCache, ids: &[u32]) -> Result<Vec<f32>> {
        let mut scores = self.extend_all(&mut [(cache, ids)]);
        scores.pop().unwrap_or_else(|| Err(InferError::input(0, "no scores came back")))
    }

    /// [`extend`](Self::extend) of several sequences in one pass over the weights; each gets the bits it gets alone.
    pub fn extend_all(&self, items: &mut [(&mut KvCache, &[u32])]) -> Vec<Result<Vec<f32>>> {
        let lengths = vec![self.spec().embedding.vocab_size; items.len()];
        let finite = |scores: Vec<f32>| scores.iter().all(|s| s.is_finite()).then_some(scores);
        let whole = |scores: &Buffer| {
            let rows = scores.len() / self.spec().embedding.vocab_size;
            Ok(self.read(scores, &lengths[..rows])?.into_iter().map(finite).collect())
        };
        self.next_all(items, &whole)
    }

    /// As [`extend_all`](Self::extend_all), and of the next token's scores only the id of the largest of the first
    /// `among`, the lowest of equal ones: the others are not read from the device.
    pub(super) fn largest_all(&self, items: &mut [(&mut KvCache, &[u32])], among: usize) -> Vec<Result<u32>> {
        let vocab = self.spec().embedding.vocab_size;
        self.next_all(items, &|scores| self.compute().arg_max(scores, vocab, among.min(vocab)))
    }

    /// What `next` makes of the scores of each sequence's next token; nothing where one is not finite.
    fn next_all<T: Send>(&self, items: &mut [(&mut KvCache, &[u32])], next: &Next<Option<T>>) -> Vec<Result<T>> {
        let before: Vec<usize> = items.iter().map(|(cache, _)| cache.ids.len()).collect();
        let results = match self.try_next_all(items, next) {
            Ok(found) => found.into_iter().map(Ok).collect(),
            Err(e) if items.len() == 1 => vec![Err(e)],
            // What the batch cannot have, each sequence alone may.
            Err(_) => {
                let mut results = Vec::new();
                for (item, len) in items.iter_mut().zip(&before) {
                    item.0.ids.truncate(*len);
                    item.0.computed = UNSURE;
                    let alone = self.try_next_all(std::slice::from_mut(item), next).map(|mut s| s.swap_remove(0));
                    results.push(alone);
                }
                results
            }
        };
        let finite = |(i, result): (usize, Result<Option<T>>)| {
            let stage = "the next token's scores".to_string();
            result.map_err(|e| e.with_item(i))?.ok_or(InferError::NonFiniteOutput { item: i, stage })
        };
        let results: Vec<_> = results.into_iter().enumerate().map(finite).collect();
        for ((item, len), result) in items.iter_mut().zip(before).zip(&results) {
            if result.is_err() {
                item.0.ids.truncate(len);
                item.0.computed = UNSURE;
            }
        }
        results
    }

    fn try_next_all<T: Send>(
        &self,
        items: &mut [(&mut KvCache, &[u32])],
        next: &Next<Option<T>>,
    ) -> Result<Vec<Option<T>>> {
        for (i, (cache, ids)) in items.iter_mut().enumerate() {
            if ids.is_empty() {
                return Err(InferError::input(i, "it has no new tokens"));
            }
            cache.ids.extend_from_slice(ids);
            let regime = self.rotation_regime(cache.ids.len());
            let stale = cache.computed > cache.ids.len() - ids.len() || cache.regime != regime;
            if stale {
                // Also where a length changes the rotation of earlier keys.
                self.keep(cache, 0)?;
            }
            cache.regime = regime;
        }
        // Long prompts first, one by one and chunk by chunk, until every sequence has at most a chunk left.
        for (i, (cache, _)) in items.iter_mut().enumerate() {
            while cache.ids.len() - cache.computed > CHUNK {
                self.advance::<()>(&mut [&mut **cache], CHUNK, None).map_err(|e| e.with_item(i))?;
            }
        }
        let mut caches: Vec<&mut KvCache> = items.iter_mut().map(|(cache, _)| &mut **cache).collect();
        self.advance(&mut caches, usize::MAX, Some(next))
    }

    /// Computes up to `most` tokens of each sequence that are not computed yet, and what `next` makes of the scores of the
    /// tokens after the last ones.
    fn advance<T: Send>(&self, caches: &mut [&mut KvCache], most: usize, next: Option<&Next<T>>) -> Result<Vec<T>> {
        let parts: Vec<(std::ops::Range<usize>, Vec<u32>)> = caches
            .iter()
            .map(|c| {
                let end = c.ids.len().min(c.computed.saturating_add(most));
                (c.computed..end, c.ids[c.computed..end].to_vec())
            })
            .collect();
        let lengths: Vec<usize> = caches.iter().map(|c| c.ids.len()).collect();
        let mut stores: Vec<&mut Vec<KvStore>> = caches.iter_mut().map(|c| &mut c.layers).collect();
        let found = self.run_stored(&parts, &lengths, &mut stores, next)?;
        caches.iter_mut().zip(parts).for_each(|(c, (range, _))| c.computed = range.end);
        Ok(found)
    }
}
