//! Texts to rows, each text once: of equal texts one is embedded, and of those in the cache none.

use std::collections::HashMap;
use std::path::Path;
use std::rc::Rc;

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
}

type Row = kin_infer::Result<Counted<Encoded>>;

impl Rows {
    pub fn new(encoder: Encoder, request: Request) -> Self {
        let dimension = request.dimensions.unwrap_or(encoder.dimension());
        Self { encoder: Rc::new(encoder), request, dimension, cache: None, known: 0 }
    }

    /// As part of a run that is watched.
    pub fn watched(&mut self, run: &Run) {
        self.encoder = Rc::new(Encoder::clone(&self.encoder).with_run(run));
    }

    /// Keeps rows in a file; `identity` is all but the text that they depend on.
    pub fn open_cache(&mut self, path: &Path, identity: Vec<(String, String)>) -> Result<()> {
        self.cache = Some((RowCache::open(path)?, identity));
        Ok(())
    }

    /// Gives `each` the row of every text, in order, in portions whose rows fit memory.
    pub fn encode(&mut self, texts: &[&str], mut each: impl FnMut(&Self, usize, &Row) -> Result<()>) -> Result<()> {
        let mut start = 0;
        for portion in portions(texts, self.encoder.kind()) {
            let (rows, places) = self.unique(portion)?;
            for (i, place) in places.into_iter().enumerate() {
                each(self, start + i, &rows[place])?;
            }
            start += portion.len();
        }
        if let Some((cache, _)) = &mut self.cache {
            cache.flush()?;
        }
        Ok(())
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
        let Some((cache, identity)) = &mut self.cache else { return self.encoder.encode(texts, &self.request) };
        let keys: Vec<RowKey> = texts.iter().map(|text| RowKey::new(identity, text)).collect();
        let mut rows: Vec<Option<Row>> = Vec::with_capacity(texts.len());
        for key in &keys {
            let bytes = cache.get(key)?;
            rows.push(bytes.and_then(|b| from_bytes(&b, self.encoder.kind(), self.dimension)).map(Ok));
        }
        let absent: Vec<usize> = (0..texts.len()).filter(|i| rows[*i].is_none()).collect();
        self.known += texts.len() - absent.len();
        let made = self.encoder.encode(&absent.iter().map(|i| texts[*i]).collect::<Vec<_>>(), &self.request)?;
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
