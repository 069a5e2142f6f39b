//! Texts to rows, each text once: of equal texts one is embedded, and of those in the cache none.

use std::collections::HashMap;
use std::path::Path;
use std::rc::Rc;

use kin_infer::InferError;
use kin_infer::durable::{RowCache, RowKey};
use kin_infer::embedder::Counted;
use kin_infer::watchdog::Run;

use super::cached::{from_bytes, to_bytes};
use crate::encoder::{Encoded, Encoder, Kind, Request};
use crate::failure::Result;

/// Bytes of text whose token vectors are held at once: there are fewer tokens than bytes.
const TOKEN_BYTES: usize = 32 << 10;

pub struct Rows {
    pub encoder: Rc<Encoder>,
    pub request: Request,
    pub dimension: usize,
    cache: Option<(RowCache, Vec<(String, String)>)>,
    /// Texts that were not embedded, because they were known.
    pub known: usize,
    /// What those that were embedded weigh; see [`weight`](Self::weight).
    pub computed: usize,
    run: Run,
    /// Texts of the run before the next.
    before: u64,
}

/// Bytes of text that a token has, about.
const TOKEN: usize = 4;

type Row = kin_infer::Result<Counted<Encoded>>;

impl Rows {
    pub fn new(encoder: Encoder, request: Request) -> Self {
        let dimension = request.dimensions.unwrap_or(encoder.dimension());
        let encoder = Rc::new(encoder);
        Self { encoder, request, dimension, cache: None, known: 0, computed: 0, run: Run::new(), before: 0 }
    }

    /// As part of a run that embedded so many texts `before`.
    pub fn in_run(&mut self, run: &Run, before: usize) {
        self.encoder = Rc::new(Encoder::clone(&self.encoder).with_run(run));
        (self.run, self.before) = (run.clone(), before as u64);
    }

    /// What embedding a text costs, in bytes of text: no more than the window holds counts, and no text is free.
    pub fn weight(&self) -> impl Fn(&str) -> usize + use<> {
        let prompt = self.encoder.prompt(&self.request).len() + 2 * TOKEN;
        let most = self.encoder.window_of(&self.request).limit.saturating_mul(TOKEN);
        move |text| (text.len() + prompt).min(most)
    }

    /// Keeps rows in a file; `identity` is all but the text that they depend on.
    pub fn open_cache(&mut self, path: &Path, identity: Vec<(String, String)>) -> Result<()> {
        self.cache = Some((RowCache::open(path)?, identity));
        Ok(())
    }

    /// Gives `each` the row of every text, in order, in portions whose rows fit memory. A portion during which the run is
    /// cancelled gives none, and neither do those after it: then it is `false`.
    pub fn encode(&mut self, texts: &[&str], each: impl FnMut(&Self, usize, &Row) -> Result<()>) -> Result<bool> {
        let whole = self.portions(texts, each);
        // What was embedded is known from here on, whatever became of the rest.
        if let Some((cache, _)) = &mut self.cache {
            cache.flush()?;
        }
        whole
    }

    fn portions(&mut self, texts: &[&str], mut each: impl FnMut(&Self, usize, &Row) -> Result<()>) -> Result<bool> {
        let mut start = 0;
        for portion in portions(texts, self.encoder.kind()) {
            // Equal and known texts are left out of what is embedded: an item lies at its number or later.
            self.run.items_from(self.before);
            let (rows, places) = self.unique(portion)?;
            if rows.iter().any(|row| matches!(row, Err(InferError::Cancelled))) {
                return Ok(false);
            }
            for (i, place) in places.into_iter().enumerate() {
                each(self, start + i, &rows[place])?;
            }
            start += portion.len();
            self.before += portion.len() as u64;
        }
        Ok(true)
    }

    /// The rows of the different texts, and which of them each text has.
    fn unique(&mut self, texts: &[&str]) -> Result<(Vec<Row>, Vec<usize>)> {
        let mut first: HashMap<&str, usize> = HashMap::new();
        let (mut different, mut places) = (Vec::new(), Vec::with_capacity(texts.len()));
        for text in texts {
            let place = *first.entry(text).or_insert(different.len());
            if place == different.len() {
                different.push(*text);
            }
            places.push(place);
        }
        self.known += texts.len() - different.len();
        Ok((self.rows(&different)?, places))
    }

    fn rows(&mut self, texts: &[&str]) -> Result<Vec<Row>> {
        let weight = self.weight();
        let Some((cache, identity)) = &mut self.cache else {
            self.computed += texts.iter().map(|text| weight(text)).sum::<usize>();
            return self.encoder.encode(texts, &self.request);
        };
        let keys: Vec<RowKey> = texts.iter().map(|text| RowKey::new(identity, text)).collect();
        let mut rows: Vec<Option<Row>> = Vec::with_capacity(texts.len());
        for key in &keys {
            let bytes = cache.get(key)?;
            rows.push(bytes.and_then(|b| from_bytes(&b, self.encoder.kind(), self.dimension)).map(Ok));
        }
        let absent: Vec<usize> = (0..texts.len()).filter(|i| rows[*i].is_none()).collect();
        self.known += texts.len() - absent.len();
        let new: Vec<&str> = absent.iter().map(|i| texts[*i]).collect();
        self.computed += new.iter().map(|text| weight(text)).sum::<usize>();
        let made = self.encoder.encode(&new, &self.request)?;
        for (i, row) in absent.into_iter().zip(made) {
            if let Ok(row) = &row {
                cache.put(keys[i], &to_bytes(row));
            }
            rows[i] = Some(row);
        }
        Ok(rows.into_iter().flatten().collect())
    }
}

/// Texts in portions whose results fit memory: one vector a token is a hundred times the text.
fn portions<'a>(texts: &'a [&'a str], kind: Kind) -> Vec<&'a [&'a str]> {
    if kind != Kind::Tokens {
        return vec![texts];
    }
    let (mut portions, mut start, mut bytes) = (Vec::new(), 0, 0);
    for (i, text) in texts.iter().enumerate() {
        bytes += text.len();
        if bytes > TOKEN_BYTES && i > start {
            portions.push(&texts[start..i]);
            (start, bytes) = (i, text.len());
        }
    }
    portions.push(&texts[start..]);
    portions
}
