//! Lines of text and JSON lines, from a file or stdin.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, stdin};
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::Value;

use super::{Bad, Found, Item, LONGEST, Tee, checked_id, too_long};
use crate::failure::{Failure, Result};

pub struct Lines {
    reader: Box<dyn BufRead>,
    name: PathBuf,
    jsonl: bool,
    line: u64,
}

#[derive(Deserialize)]
struct Record {
    id: Option<Value>,
    text: String,
}

impl Lines {
    /// Opens a file, or stdin; with the bytes it has, where that is known.
    pub fn open(file: Option<&Path>, jsonl: bool) -> Result<(Self, Option<u64>)> {
        let (reader, bytes): (Box<dyn BufRead>, _) = match file {
            None => (Box::new(BufReader::new(stdin())), None),
            Some(path) => {
                let opened = File::open(path).map_err(|e| Failure::io(path, &e))?;
                let regular = opened.metadata().ok().filter(std::fs::Metadata::is_file);
                (Box::new(BufReader::with_capacity(1 << 16, opened)), regular.map(|m| m.len()))
            }
        };
        let name = file.unwrap_or(Path::new("stdin")).to_path_buf();
        Ok((Self { reader, name, jsonl, line: 0 }, bytes))
    }

    pub fn next(&mut self, tee: &mut Tee) -> Result<Option<Found>> {
        loop {
            let Some(bytes) = self.line(tee).map_err(|e| Failure::io(&self.name, &e))? else { return Ok(None) };
            let found = match bytes {
                Some(bytes) if self.jsonl && bytes.iter().all(u8::is_ascii_whitespace) => continue,
                Some(bytes) => parse(bytes, self.line, self.jsonl),
                None => Err(too_long()),
            };
            let at = |why| Bad(format!("{}: line {}: {why}", self.name.display(), self.line));
            return Ok(Some(found.map_err(at)));
        }
    }

    /// The next line without its end: `None` at the end of the input, `Some(None)` for one that is too long.
    fn line(&mut self, tee: &mut Tee) -> std::io::Result<Option<Option<Vec<u8>>>> {
        let mut bytes = Vec::new();
        self.reader.by_ref().take(LONGEST as u64).read_until(b'\n', &mut bytes)?;
        if bytes.is_empty() {
            return Ok(None);
        }
        tee.update(&bytes);
        self.line += 1;
        if bytes.len() == LONGEST && bytes.last() != Some(&b'\n') {
            return self.pass_over(tee).map(|()| Some(None));
        }
        if self.line == 1 && bytes.starts_with(b"\xef\xbb\xbf") {
            bytes.drain(..3);
        }
        for end in [b'\n', b'\r'] {
            if bytes.last() == Some(&end) {
                bytes.pop();
            }
        }
        Ok(Some(Some(bytes)))
    }

    /// Reads the rest of a line and lets it go.
    fn pass_over(&mut self, tee: &mut Tee) -> std::io::Result<()> {
        loop {
            let block = self.reader.fill_buf()?;
            let end = block.iter().position(|b| *b == b'\n');
            let len = end.map_or(block.len(), |at| at + 1);
            tee.update(&block[..len]);
            self.reader.consume(len);
            if end.is_some() || len == 0 {
                return Ok(());
            }
        }
    }
}

fn parse(bytes: Vec<u8>, line: u64, jsonl: bool) -> std::result::Result<Item, String> {
    let text = String::from_utf8(bytes)
        .map_err(|e| format!("not UTF-8 at byte {} of the line", e.utf8_error().valid_up_to()))?;
    let numbered = || Value::from(line.to_string());
    if !jsonl {
        return Ok(Item { id: numbered(), text });
    }
    let expected = |why: &dyn std::fmt::Display| format!("expected {{\"id\": ..., \"text\": ...}}: {why}");
    // Derived readers of records take arrays too.
    if text.trim_start().starts_with('[') {
        return Err(expected(&"found an array"));
    }
    let record: Record = serde_json::from_str(&text).map_err(|e| expected(&e))?;
    let id = match record.id {
        None => numbered(),
        Some(id) => checked_id(id)?,
    };
    Ok(Item { id, text: record.text })
}
