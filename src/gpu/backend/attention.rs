//! Attention over packed sequences and over stored keys: kernels/attention.h.
//!
//! The fused operation runs scores, softmax and values over as many tiles at a time as their scores fit a workspace that
//! stays in a device's cache; what the whole batch's scores would take plays no part.

use std::collections::HashMap;
use std::sync::Arc;

use super::args::*;
use super::keys::Keys;
use super::memory::Pooled;
use super::tiles::{self, Layout, Tile};
use super::{DeviceCompute, at, indices, out, word};
use crate::error::{InferError, Result};
use crate::gpu::device::Binding;
use crate::gpu::{AttentionShape, Buffer, Columns, KvStore, ScoreBias, StoredAttention, checks};

/// Tiles of a launch: they are a grid's y.
const MOST_TILES: usize = 32_768;

const THREADS: [u32; 3] = [256, 1, 1];

/// Vectors of heads: columns of a matrix, or stored keys, of which `first` and `stride` are not used.
#[derive(Clone, Copy)]
struct View<'a> {
    at: Binding<'a>,
    first: usize,
    stride: usize,
}

impl<'a> View<'a> {
    fn of(c: Columns<'a>) -> Result<Self> {
        Ok(Self { at: at(c.buffer)?, first: c.first, stride: c.stride })
    }
}

/// The operands of disentangled terms.
#[derive(Clone, Copy)]
struct Terms<'a> {
    map: Binding<'a>,
    /// Rows of the tables.
    rows: usize,
    reach: usize,
    position_keys: Option<Binding<'a>>,
    position_queries: Option<Binding<'a>>,
}

/// Everything but the tiles.
#[derive(Clone, Copy)]
struct Operands<'a> {
    heads: usize,
    kv_heads: usize,
    dim: usize,
    scale: f32,
    softcap: Option<f32>,
    behind: u32,
    ahead: u32,
    /// `ATTENTION_STORED` for stored keys.
    flags: u32,
    bias: (u32, Binding<'a>, usize),
    terms: Option<Terms<'a>>,
    positions: Binding<'a>,
    blocks: Binding<'a>,
}

/// The tiles of some launches, and the heads that they are launched for.
struct Part<'a> {
    tiles: &'a [Tile],
    table: Arc<Pooled>,
    /// Keys of a sequence at most.
    longest: usize,
    head: usize,
    heads: usize,
    key_terms: Option<&'a KeyTerms>,
}

/// The products of the keys of some sequences with the position queries, [heads][keys][rows] a sequence, all heads.
struct KeyTerms {
    products: Pooled,
    /// Where a sequence's begin, by the row of its first key.
    begins: HashMap<usize, usize>,
}

impl Part<'_> {
    /// Queries of a tile at most.
    fn most_queries(&self) -> usize {
        self.tiles.iter().map(|t| t.count).max().unwrap_or(0)
    }
}

impl<'a> Operands<'a> {
    fn new(s: &AttentionShape<'a>) -> Result<Self> {
        let positions = indices(s.positions)?;
        let map = match s.bias {
            ScoreBias::Disentangled(d) => Some(indices(d.map)?),
            _ => None,
        };
        checks::attention(s, &positions.host, map.map(|m| m.host.as_slice()))?;
        let positions = positions.device.binding();
        let (bias, terms) = match s.bias {
            ScoreBias::None => ((BIAS_NONE, positions, 0), None),
            ScoreBias::Alibi { slopes } => ((BIAS_ALIBI, at(slopes)?, 0), None),
            ScoreBias::Distance { table, reach } => ((BIAS_DISTANCE, at(table)?, reach), None),
            ScoreBias::Disentangled(d) => {
                let terms = Terms {
                    map: indices(d.map)?.device.binding(),
                    rows: d.map.bound(),
                    reach: d.reach,
                    position_keys: d.position_keys.map(at).transpose()?,
                    position_queries: d.position_queries.map(at).transpose()?,
                };
                ((BIAS_NONE, positions, 0), Some(terms))
            }
        };
        Ok(Self {
            heads: s.heads,
            kv_heads: s.kv_heads,
            dim: s.head_dim,
            scale: s.scale,
            softcap: s.softcap,
            behind: s.window.behind,
            ahead: s.window.ahead,
            flags: 0,
            bias,
            terms,
            positions,
            blocks: positions,
        })
    }

    /// Query heads that share a key head.
    fn group(&self) -> usize {
        self.heads / self.kv_heads
    }
}

impl DeviceCompute {
    fn part<'a>(&self, tiles: &'a [Tile], layout: Layout) -> Result<Part<'a>> {
        let (words, _) = tiles::words(tiles, layout);
        let (Layout::Tiles { heads } | Layout::Sequences { heads }) = layout;
        let longest = tiles.iter().map(|t| t.len).max().unwrap_or(0);
        Ok(Part { tiles, table: self.table(words)?, longest, head: 0, heads, key_terms: None })
    }

    /// Raw scores of a part's tiles, `q` sharing its columns among `q_group` heads and `k` among `k_group`.
    fn launch_scores(
        &self,
        o: &Operands,
        part: &Part,
        (q, q_group): (View, usize),
        (k, k_group): (View, usize),
        flags: u32,
        scores: Binding,
    ) -> Result<()> {
        let args = ScoreArgs {
            dim: word(o.dim),
            head: word(part.head),
            kv_heads: word(o.kv_heads),
            q_first: word(q.first),
            q_stride: word(q.stride),
            q_group: word(q_group),
            k_first: word(k.first),
            k_stride: word(k.stride),
            k_group: word(k_group),
            behind: o.behind,
            ahead: o.ahead,
            flags,
        };
        let grid = [part.longest.div_ceil(64), part.tiles.len(), part.heads];
        let buffers = [q.at, k.at, part.table.binding(), o.blocks, o.positions, scores];
        self.launch("attention_scores", grid, THREADS, &buffers, &args)
    }

    /// Scores with the disentangled terms. With ATTENTION_WINDOW in `window`, only of keys that are seen.
    fn launch_all_scores(
        &self,
        o: &Operands,
        part: &Part,
        q: View,
        k: View,
        window: u32,
        scores: Binding,
    ) -> Result<()> {
        self.launch_scores(o, part, (q, 1), (k, o.group()), o.flags | window, scores)?;
        match o.terms {
            Some(terms) => self.launch_terms(o, part, q, &terms, scores),
            None => Ok(()),
        }
    }

    fn launch_terms(&self, o: &Operands, part: &Part, q: View, terms: &Terms, scores: Binding) -> Result<()> {
        let (query_tiles, by_query) = self.query_terms(o, part, q, terms)?;
        let by_key = part.key_terms;
        let key_bases = match by_key {
            Some(terms_by_key) => {
                let base = |t: &Tile| word(terms_by_key.begins[&t.keys] + part.head * t.len * terms.rows);
                self.table(part.tiles.iter().map(base).collect())?
            }
            None => Arc::clone(&part.table),
        };
        let args = TermArgs {
            reach: word(terms.reach),
            rows: word(terms.rows),
            flags: by_query.as_ref().map_or(0, |_| TERMS_BY_QUERY) | by_key.map_or(0, |_| TERMS_BY_KEY),
        };
        let buffers = [
            scores,
            part.table.binding(),
            o.positions,
            terms.map,
            by_query.as_ref().map_or(scores, Pooled::binding),
            query_tiles.binding(),
            by_key.map_or(scores, |terms| terms.products.binding()),
            key_bases.binding(),
        ];
        let grid = [part.longest.div_ceil(64), part.tiles.len(), part.heads];
        self.launch("attention_terms", grid, [64, 4, 1], &buffers, &args)
    }

    /// The products of the tiles' queries with the position keys, and the tiles' words.
    fn query_terms(&self, o: &Operands, part: &Part, q: View, terms: &Terms) -> Result<(Arc<Pooled>, Option<Pooled>)> {
        let (rows, layout) = (terms.rows, Layout::Tiles { heads: part.heads });
        let tiles: Vec<Tile> = part.tiles.iter().map(|tile| Tile { keys: 0, len: rows, ..*tile }).collect();
        let over_rows = Part { head: part.head, ..self.part(&tiles, layout)? };
        let Some(table) = terms.position_keys else { return Ok((over_rows.table, None)) };
        let products = self.values(tiles::words(&tiles, layout).1)?;
        let table = View { at: table, first: 0, stride: o.heads * o.dim };
        self.launch_scores(o, &over_rows, (q, 1), (table, 1), 0, products.binding())?;
        Ok((over_rows.table, Some(products)))
    }

    /// The products of the keys of the tiles' sequences with the position queries, where there are any.
    fn key_terms(&self, o: &Operands, tiles: &[Tile], k: View) -> Result<Option<KeyTerms>> {
        let Some(Terms { rows, position_queries: Some(table), .. }) = o.terms else { return Ok(None) };
        let (mut begins, mut over_rows, mut words, mut end) = (HashMap::new(), Vec::new(), Vec::new(), 0);
        for Tile { keys, len, .. } in tiles {
            if begins.contains_key(keys) {
                continue;
            }
            begins.insert(*keys, end);
            for tile in tiles::of_sequence(*keys..keys + len, 0, *len) {
                let tile = Tile { len: rows, ..tile };
                words.extend(tile.words(end + tile.query * rows, len * rows));
                over_rows.push(tile);
            }
            end += o.heads * len * rows;
        }
        let products = self.values(end)?;
        let table = View { at: table, first: 0, stride: o.heads * o.dim };
        for (tiles, words) in over_rows.chunks(MOST_TILES).zip(words.chunks(MOST_TILES * TILE_WORDS as usize)) {
            let words = self.table(words.to_vec())?;
            let part = Part { tiles, table: words, longest: rows, head: 0, heads: o.heads, key_terms: None };
            self.launch_scores(o, &part, (k, o.group()), (table, 1), 0, products.binding())?;
        }
        Ok(Some(KeyTerms { products, begins }))
    }

    fn launch_softmax(&self, o: &Operands, part: &Part, fill: u32, scores: Binding) -> Result<()> {
        let (bias, bias_at, reach) = o.bias;
        let args = SoftmaxArgs {
            head: word(part.head),
            behind: o.behind,
            ahead: o.ahead,
            flags: o.flags | fill | if o.softcap.is_some() { SOFTMAX_CAPPED } else { 0 },
            bias,
            reach: word(reach),
            scale: o.scale,
            softcap: o.softcap.unwrap_or(1.0),
        };
        let most = part.most_queries();
        let (kernel, groups) =
            if most == 1 { ("attention_softmax_one", 1) } else { ("attention_softmax", most.div_ceil(8)) };
        let buffers = [scores, part.table.binding(), o.positions, bias_at];
        self.launch(kernel, [groups, part.tiles.len(), part.heads], THREADS, &buffers, &args)
    }

    fn launch_values(&self, o: &Operands, part: &Part, v: View, scores: Binding, to: Binding) -> Result<()> {
        let args = ValueArgs {
            dim: word(o.dim),
            head: word(part.head),
            kv_heads: word(o.kv_heads),
            v_first: word(v.first),
            v_stride: word(v.stride),
            k_group: word(o.group()),
            out_stride: word(o.heads * o.dim),
            behind: o.behind,
            ahead: o.ahead,
            flags: o.flags,
        };
        let grid = [o.dim.div_ceil(64), part.tiles.len(), part.heads];
        let buffers = [scores, v.at, part.table.binding(), o.blocks, o.positions, to];
        if part.most_queries() == 1 {
            return self.launch("attention_values_one", grid, [64, 4, 1], &buffers, &args);
        }
        self.launch("attention_values", grid, THREADS, &buffers, &args)
    }

    /// Calls `run` for the tiles of whole sequences whose scores lie in one buffer.
    fn each_part(
        &self,
        s: &AttentionShape,
        tiles: &[Tile],
        key_terms: Option<&KeyTerms>,
        run: impl Fn(&Part) -> Result<()>,
    ) -> Result<()> {
        let (words, _) = tiles::words(tiles, Layout::Sequences { heads: s.heads });
        for (tiles, words) in tiles.chunks(MOST_TILES).zip(words.chunks(MOST_TILES * TILE_WORDS as usize)) {
            let longest = tiles.iter().map(|t| t.len).max().unwrap_or(0);
            run(&Part { tiles, table: self.table(words.to_vec())?, longest, head: 0, heads: s.heads, key_terms })?;
        }
        Ok(())
    }

    pub(super) fn scores(&self, q: Columns, k: Columns, s: &AttentionShape, scores: &mut Buffer) -> Result<()> {
        checks::expect("attention", "the score buffer", scores.len(), s.score_len())?;
        let o = Operands::new(s)?;
        checks::heads("the query", q, s.heads, s)?;
        checks::heads("the key", k, s.kv_heads, s)?;
        let (q, k, scores) = (View::of(q)?, View::of(k)?, out(scores)?);
        let tiles = tiles::of_segments(s.segments);
        let key_terms = self.key_terms(&o, &tiles, k)?;
        self.each_part(s, &tiles, key_terms.as_ref(), |part| self.launch_all_scores(&o, part, q, k, 0, scores))
    }

    pub(super) fn weights_of_scores(&self, scores: &mut Buffer, s: &AttentionShape) -> Result<()> {
        checks::expect("softmax", "the score buffer", scores.len(), s.score_len())?;
        let (o, scores) = (Operands::new(s)?, out(scores)?);
        let tiles = tiles::of_segments(s.segments);
        self.each_part(s, &tiles, None, |part| self.launch_softmax(&o, part, SOFTMAX_FILL, scores))
    }

    pub(super) fn weighed_values(
        &self,
        scores: &Buffer,
        v: Columns,
        s: &AttentionShape,
        to: &mut Buffer,
    ) -> Result<()> {
        let needed = checks::size(&[s.segments.total(), s.heads, s.head_dim]);
        checks::expect("attention", "the score buffer", scores.len(), s.score_len())?;
        checks::expect("attention", "the output", to.len(), needed)?;
        let o = Operands::new(s)?;
        checks::heads("the value", v, s.kv_heads, s)?;
        let (v, scores, to) = (View::of(v)?, at(scores)?, out(to)?);
        let tiles = tiles::of_segments(s.segments);
        self.each_part(s, &tiles, None, |part| self.launch_values(&o, part, v, scores, to))
    }

    pub(super) fn whole_attention(
        &self,
        q: Columns,
        k: Columns,
        v: Columns,
        s: &AttentionShape,
        to: &mut Buffer,
    ) -> Result<()> {
        let needed = checks::size(&[s.segments.total(), s.heads, s.head_dim]);
        checks::expect("attention", "the output", to.len(), needed)?;
        let o = Operands::new(s)?;
        checks::heads("the query", q, s.heads, s)?;
        checks::heads("the key", k, s.kv_heads, s)?;
        checks::heads("the value", v, s.kv_heads, s)?;
        let views = (View::of(q)?, View::of(k)?, View::of(v)?);
        self.fused(&o, &tiles::of_segments(s.segments), views, out(to)?)
    }

    pub(super) fn attend_stores(
        &self,
        q: Columns,
        stores: &[&KvStore],
        s: &StoredAttention,
        to: &mut Buffer,
    ) -> Result<()> {
        let Some(first) = stores.first() else { return Ok(()) };
        let (mut blocks, mut tiles) = (Vec::new(), Vec::new());
        let arena = first.storage::<Keys>()?;
        for (store, rows) in stores.iter().zip(s.segments.iter()) {
            let keys = store.storage::<Keys>()?;
            if !keys.same_arena(arena) {
                return Err(InferError::InvalidArgument("attend: a store of another backend".to_string()));
            }
            if !keys.hold(store.len()) {
                let detail = format!("attend: a store said to hold {} keys, more than it was given", store.len());
                return Err(InferError::InvalidArgument(detail));
            }
            tiles.extend(tiles::of_sequence(rows, blocks.len(), store.len()));
            blocks.extend(keys.numbers());
        }
        let Some((keys, values)) = arena.planes() else { return Ok(()) };
        let blocks = self.words(&blocks)?;
        let (keys, values) = (Binding { memory: &keys, offset: 0 }, Binding { memory: &values, offset: 0 });
        let o = Operands {
            heads: s.heads,
            kv_heads: first.kv_heads(),
            dim: first.head_dim(),
            scale: s.scale,
            softcap: s.softcap,
            behind: s.behind,
            ahead: 0,
            flags: ATTENTION_STORED,
            bias: (BIAS_NONE, blocks.binding(), 0),
            terms: None,
            positions: blocks.binding(),
            blocks: blocks.binding(),
        };
        let stored = |at| View { at, first: 0, stride: 0 };
        self.fused(&o, &tiles, (View::of(q)?, stored(keys), stored(values)), out(to)?)
    }

    /// Attention of the tiles. The products of keys with position queries are computed once a sequence: for as many whole
    /// sequences as the workspace holds the scores of, at least one.
    fn fused(&self, o: &Operands, tiles: &[Tile], views: (View, View, View), to: Binding) -> Result<()> {
        let by_key = o.terms.is_some_and(|terms| terms.position_queries.is_some());
        let mut rest = tiles;
        while !rest.is_empty() {
            let whole = if by_key { tiles::whole_sequences(rest, self.fitting(o, rest)) } else { rest.len() };
            let (tiles, others) = rest.split_at(whole);
            let key_terms = self.key_terms(o, tiles, views.1)?;
            self.fused_with(o, tiles, key_terms.as_ref(), views, to)?;
            rest = others;
        }
        Ok(())
    }

    /// How many tiles the workspace holds the scores of; at least one.
    fn fitting(&self, o: &Operands, tiles: &[Tile]) -> usize {
        let mut taken = 0;
        let fits = |t: &&Tile| {
            taken += t.scores() * o.heads;
            taken <= self.workspace
        };
        tiles.iter().take(MOST_TILES).take_while(fits).count().max(1)
    }

    /// Attention of the tiles, as many at a time as the workspace holds the scores of; of one whose scores it does not
    /// hold, as many heads.
    fn fused_with(
        &self,
        o: &Operands,
        tiles: &[Tile],
        key_terms: Option<&KeyTerms>,
        (q, k, v): (View, View, View),
        to: Binding,
    ) -> Result<()> {
        let mut rest = tiles;
        while !rest.is_empty() {
            let (tiles, others) = rest.split_at(self.fitting(o, rest));
            rest = others;
            let all: usize = tiles.iter().map(Tile::scores).sum();
            let heads = (self.workspace / all.max(1)).clamp(1, o.heads);
            let scores = self.values(all * heads)?;
            let layout = Layout::Tiles { heads };
            for head in (0..o.heads).step_by(heads) {
                let part = Part { head, heads: heads.min(o.heads - head), key_terms, ..self.part(tiles, layout)? };
                self.launch_all_scores(o, &part, q, k, ATTENTION_WINDOW, scores.binding())?;
                self.launch_softmax(o, &part, 0, scores.binding())?;
                self.launch_values(o, &part, v, scores.binding(), to)?;
            }
        }
        Ok(())
    }
}
