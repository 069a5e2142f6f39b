//! Records cut into pieces that fit the model's window, and where a run stands among them.

use std::collections::VecDeque;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use super::{Found, Item, Records, id_field};
use crate::failure::{Failure, Result};

/// A window is closed by the text that passes this many bytes.
const WINDOW_BYTES: usize = 8 << 20;
/// Lines that are counted at once, and their bytes.
const AHEAD: (usize, usize) = (512, 64 << 10);

/// How long records are cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Split {
    /// Into pieces of whole lines, as many as fit the model's window; their ids are ID:FIRST-LAST, lines from 1
    Lines,
    /// As `lines`, and before and after each function, method and type of source code, whose language the ending of the
    /// id tells: Rust, Python, JavaScript, TypeScript, Go, Java, C or C++. In builds with the feature `functions`
    Functions,
    /// Not: a record is one text
    None,
}

/// Counts the tokens of texts.
type Count = dyn Fn(&[&str]) -> Vec<usize>;

/// Cuts texts at line boundaries into pieces of at most `limit` tokens.
pub struct Splitter {
    /// Tokens of texts with all that is put around them.
    pub count: Box<Count>,
    pub limit: usize,
    /// Lines of a record, from 1 and ascending, at which a piece begins.
    pub cuts: fn(&Item) -> Vec<usize>,
}

impl Split {
    /// The lines at which it begins pieces whatever the window.
    ///
    /// # Errors
    /// Of functions in a build that cannot find them.
    pub fn cuts(self) -> Result<fn(&Item) -> Vec<usize>> {
        match self {
            Self::Lines | Self::None => Ok(|_| Vec::new()),
            #[cfg(feature = "functions")]
            Self::Functions => Ok(|item| super::functions::cuts(&id_field(&item.id), &item.text)),
            #[cfg(not(feature = "functions"))]
            Self::Functions => {
                let why = "--split functions: this build is without the feature `functions`; build with --features \
                           kin-infer-cli/functions, or take --split lines";
                Err(Failure::Usage(why.to_string()))
            }
        }
    }
}

/// How far a run has come in its input.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Place {
    /// Records that were begun.
    pub records: u64,
    /// Pieces of the last of them that are done.
    pub pieces: u64,
    /// SHA-256 of the input up to the end of that record.
    pub input: String,
    /// Bytes of it.
    pub bytes: u64,
}

/// How much a window holds.
#[derive(Debug, Clone, Copy)]
pub struct Amount {
    /// Texts and unreadable records.
    pub texts: usize,
    /// What the texts weigh together; the text that passes it is the last one.
    pub weight: usize,
}

impl Amount {
    /// So many texts, whatever they weigh.
    pub fn texts(texts: usize) -> Self {
        Self { texts, weight: usize::MAX }
    }
}

/// The texts to embed, in the order of their records.
pub struct Pieces {
    records: Records,
    splitter: Option<Splitter>,
    /// The record that is being cut, and pieces taken of it.
    open: Option<OpenRecord>,
    taken: u64,
}

impl Pieces {
    pub fn new(records: Records, splitter: Option<Splitter>) -> Self {
        Self { records, splitter, open: None, taken: 0 }
    }

    pub fn records(&self) -> &Records {
        &self.records
    }

    /// The next texts and unreadable records, in order; empty at the end. `weigh` says what a text weighs.
    pub fn window(&mut self, most: Amount, weigh: impl Fn(&str) -> usize) -> Result<Vec<Found>> {
        let (mut window, mut bytes, mut weight) = (Vec::new(), 0, 0);
        while window.len() < most.texts && weight < most.weight && bytes < WINDOW_BYTES {
            let Some(found) = self.next()? else { break };
            if let Ok(item) = &found {
                bytes += item.text.len();
                weight += weigh(&item.text);
            }
            window.push(found);
        }
        Ok(window)
    }

    fn next(&mut self) -> Result<Option<Found>> {
        loop {
            if let (Some(open), Some(splitter)) = (&mut self.open, &self.splitter) {
                if let Some(item) = open.piece(splitter) {
                    self.taken += 1;
                    return Ok(Some(Ok(item)));
                }
                self.open = None;
            }
            let Some(found) = self.records.next()? else { return Ok(None) };
            if let Some(whole) = self.begin(found) {
                self.taken = 1;
                return Ok(Some(whole));
            }
        }
    }

    /// Opens a record to be cut, or gives back one that is not.
    fn begin(&mut self, found: Found) -> Option<Found> {
        self.taken = 0;
        match found {
            Ok(item) => match &self.splitter {
                Some(splitter) => {
                    self.open = Some(OpenRecord::new(item, splitter));
                    None
                }
                None => Some(Ok(item)),
            },
            bad => Some(bad),
        }
    }

    /// After all that was taken so far.
    pub fn place(&self) -> Place {
        let records = &self.records;
        Place { records: records.read, pieces: self.taken, input: records.digest(), bytes: records.read_bytes }
    }

    /// Goes to a place that an earlier run of the same input came to; `false` if the input is another.
    pub fn go_to(&mut self, place: &Place) -> Result<bool> {
        let mut last = None;
        while self.records.read < place.records {
            last = self.records.next()?;
            if last.is_none() {
                return Ok(false);
            }
        }
        if self.records.digest() != place.input {
            return Ok(false);
        }
        let whole = last.and_then(|found| self.begin(found));
        if whole.is_some() {
            self.taken = 1;
        }
        while self.taken < place.pieces {
            let piece =
                self.open.as_mut().zip(self.splitter.as_ref()).and_then(|(open, splitter)| open.piece(splitter));
            if piece.is_none() {
                return Err(Failure::Failed("the texts are cut into other pieces than before".to_string()));
            }
            self.taken += 1;
        }
        Ok(true)
    }
}

/// A record of which lines are taken.
struct OpenRecord {
    item: Item,
    /// Number of the next line, from 1.
    line: usize,
    /// The next lines, with the number of their tokens.
    ahead: VecDeque<(std::ops::Range<usize>, usize)>,
    /// Where the lines after those begin.
    rest: usize,
    /// Lines at which a piece begins.
    cuts: Vec<usize>,
}

impl OpenRecord {
    fn new(item: Item, splitter: &Splitter) -> Self {
        let cuts = (splitter.cuts)(&item);
        Self { item, line: 1, ahead: VecDeque::new(), rest: 0, cuts }
    }

    /// The next piece: as many lines as fit, up to the next cut, without blank ones at its ends, one at least.
    fn piece(&mut self, splitter: &Splitter) -> Option<Item> {
        while self.is_blank(splitter, 0)? {
            self.ahead.pop_front();
            self.line += 1;
        }
        let around = (splitter.count)(&[""]).first().copied().unwrap_or(0);
        let room = splitter.limit.saturating_sub(around);
        let (mut lines, mut tokens) = (0, 0);
        while let Some((_, more)) = self.ahead(splitter, lines) {
            tokens += more.saturating_sub(around);
            if lines > 0 && (tokens > room || self.cuts.binary_search(&(self.line + lines)).is_ok()) {
                break;
            }
            lines += 1;
        }
        // The tokens of a text are not always those of its lines.
        while lines > 1 && (splitter.count)(&[self.text(lines)]).iter().any(|n| *n > splitter.limit) {
            lines -= 1;
        }
        let mut kept = lines;
        while kept > 1 && self.is_blank(splitter, kept - 1)? {
            kept -= 1;
        }
        let (first, last) = (self.line, self.line + kept - 1);
        let id = format!("{}:{first}-{last}", id_field(&self.item.id));
        let piece = Item { id: id.into(), text: self.text(kept).to_string() };
        self.ahead.drain(..lines);
        self.line += lines;
        Some(piece)
    }

    /// The first `lines` lines, without the end of the last.
    fn text(&self, lines: usize) -> &str {
        let (start, end) = (self.ahead[0].0.start, self.ahead[lines - 1].0.end);
        let text = &self.item.text[start..end];
        let text = text.strip_suffix('\n').unwrap_or(text);
        text.strip_suffix('\r').unwrap_or(text)
    }

    fn is_blank(&mut self, splitter: &Splitter, at: usize) -> Option<bool> {
        let (range, _) = self.ahead(splitter, at)?;
        Some(self.item.text[range].trim().is_empty())
    }

    /// A line that is not taken yet; none after the last.
    fn ahead(&mut self, splitter: &Splitter, at: usize) -> Option<(std::ops::Range<usize>, usize)> {
        while at >= self.ahead.len() && self.rest < self.item.text.len() {
            let mut ranges = Vec::new();
            let start = self.rest;
            while ranges.len() < AHEAD.0 && self.rest < self.item.text.len() && self.rest - start < AHEAD.1 {
                let rest = &self.item.text[self.rest..];
                let end = self.rest + rest.find('\n').map_or(rest.len(), |at| at + 1);
                ranges.push(self.rest..end);
                self.rest = end;
            }
            let lines: Vec<&str> = ranges.iter().map(|range| &self.item.text[range.clone()]).collect();
            let counts = (splitter.count)(&lines);
            self.ahead.extend(ranges.into_iter().zip(counts));
        }
        self.ahead.get(at).cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A token a word, and one around them. `glued`: a line's end is a token where another line follows.
    fn splitter(limit: usize, glued: bool) -> Splitter {
        let count = move |text: &str| {
            let ends = text.trim_end_matches('\n').matches('\n').count();
            1 + text.split_whitespace().count() + if glued { ends } else { 0 }
        };
        Splitter {
            count: Box::new(move |texts| texts.iter().map(|text| count(text)).collect()),
            limit,
            cuts: |_| Vec::new(),
        }
    }

    fn pieces(text: &str, splitter: &Splitter) -> Vec<(String, String)> {
        let mut open = OpenRecord::new(Item { id: "f".into(), text: text.to_string() }, splitter);
        std::iter::from_fn(|| open.piece(splitter)).map(|item| (id_field(&item.id), item.text)).collect()
    }

    #[test]
    fn pieces_are_whole_lines_within_the_limit() {
        let text = "\n\na b\nc\n\nd e f g h i\n  \nj\r\nk\r\n\n";
        let found = pieces(text, &splitter(4, false));
        let expected = [("f:3-4", "a b\nc"), ("f:6-6", "d e f g h i"), ("f:8-9", "j\r\nk")];
        assert_eq!(found, expected.map(|(id, text)| (id.to_string(), text.to_string())));
        assert_eq!(pieces(text, &splitter(100, false)), [("f:3-9".to_string(), text.trim().to_string())]);
        let glued: Vec<_> = pieces("a\nb\nc\nd\n", &splitter(4, true)).into_iter().map(|(id, _)| id).collect();
        assert_eq!(glued, ["f:1-2", "f:3-4"], "a b c are 5 tokens together, and 4 by their lines");
        for blank in ["", "\n \n\t\n"] {
            assert!(pieces(blank, &splitter(4, false)).is_empty());
        }
    }

    #[test]
    fn pieces_begin_at_cuts() {
        let cut = Splitter { cuts: |_| vec![1, 3, 6, 9], ..splitter(4, false) };
        let found: Vec<_> = pieces("a\nb\nc\n\n\nd\ne e\nf\n", &cut).into_iter().map(|(id, _)| id).collect();
        assert_eq!(found, ["f:1-2", "f:3-3", "f:6-7", "f:8-8"]);
    }

    #[test]
    fn many_lines_are_all_there_once() {
        let text: String = (0..5000).map(|i| format!("{}\n", "w ".repeat(i % 13 + 1).trim())).collect();
        for limit in [2, 9, 40] {
            let found = pieces(&text, &splitter(limit, false));
            let all: String = found.iter().map(|(_, text)| format!("{text}\n")).collect();
            assert_eq!(all, text);
            let longest = found.iter().filter(|(_, t)| t.contains('\n')).map(|(_, t)| t.split_whitespace().count());
            assert!(longest.max().is_none_or(|words| words < limit));
        }
    }
}
