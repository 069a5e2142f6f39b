//! Texts with their ids, from arguments, lines of text or JSON lines, read in windows so that memory stays bounded.

use std::fs::File;
use std::io::{BufRead, BufReader, IsTerminal, stdin};
use std::path::{Path, PathBuf};

use clap::ValueEnum;
use serde::Deserialize;
use serde_json::Value;

use crate::failure::{Failure, Result};

/// Largest number of texts in a window.
const WINDOW_ITEMS: usize = 512;
/// A window is closed by the text that passes this many bytes.
const WINDOW_BYTES: usize = 8 << 20;

#[derive(clap::Args)]
pub struct InputArgs {
    /// Read texts from FILE, or from stdin with `-` (the default when no text is an argument): one text a line, empty
    /// lines included, with the line number from 1 as id; or JSON lines
    #[arg(long, value_name = "FILE|-")]
    pub input: Option<PathBuf>,
    /// How --input is read. `auto`: a name that ends in .jsonl or .ndjson holds JSON lines, everything else and stdin
    /// holds plain text. JSON lines are {"id": ..., "text": ...}; an id is a string or a whole number and comes back
    /// unchanged; without one it is the line number from 1
    #[arg(long, value_enum, default_value_t = InputFormat::Auto)]
    pub input_format: InputFormat,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum InputFormat {
    Auto,
    Text,
    Jsonl,
}

/// A text and its id, a JSON string or number.
#[derive(Debug)]
pub struct Item {
    pub id: Value,
    pub text: String,
}

/// An input that could not be read; the message names its line.
#[derive(Debug)]
pub struct BadLine(pub String);

/// Where texts come from.
pub struct Items {
    source: Source,
    /// Bytes of the file, where there is one.
    pub total_bytes: Option<u64>,
    /// Bytes read so far.
    pub read_bytes: u64,
}

enum Source {
    Arguments(std::iter::Enumerate<std::vec::IntoIter<String>>),
    Lines { reader: Box<dyn BufRead>, name: PathBuf, jsonl: bool, line: u64 },
}

#[derive(Deserialize)]
struct Record {
    id: Option<Value>,
    text: String,
}

impl Items {
    /// From the texts of the command line if there are any, else from `args`.
    pub fn open(texts: Vec<String>, args: &InputArgs) -> Result<Self> {
        if !texts.is_empty() {
            let source = Source::Arguments(texts.into_iter().enumerate());
            return Ok(Self { source, total_bytes: None, read_bytes: 0 });
        }
        let file = args.input.as_deref().filter(|p| *p != Path::new("-"));
        if args.input.is_none() && stdin().is_terminal() {
            return Err(Failure::Usage("nothing to read: give texts, --input FILE, or pipe lines to stdin".into()));
        }
        let extension = file.and_then(Path::extension).is_some_and(|e| e == "jsonl" || e == "ndjson");
        let jsonl = args.input_format == InputFormat::Jsonl || (args.input_format == InputFormat::Auto && extension);
        let (reader, total_bytes): (Box<dyn BufRead>, _) = match file {
            None => (Box::new(BufReader::new(stdin())), None),
            Some(path) => {
                let opened = File::open(path).map_err(|e| Failure::io(path, &e))?;
                let regular = opened.metadata().ok().filter(std::fs::Metadata::is_file);
                (Box::new(BufReader::with_capacity(1 << 16, opened)), regular.map(|m| m.len()))
            }
        };
        let name = file.unwrap_or(Path::new("stdin")).to_path_buf();
        Ok(Self { source: Source::Lines { reader, name, jsonl, line: 0 }, total_bytes, read_bytes: 0 })
    }

    /// The next texts and unreadable lines, in order; empty at the end.
    pub fn window(&mut self) -> Result<Vec<std::result::Result<Item, BadLine>>> {
        let mut window = Vec::new();
        let mut bytes = 0;
        while window.len() < WINDOW_ITEMS && bytes < WINDOW_BYTES {
            let Some(item) = self.next()? else { break };
            bytes += item.as_ref().map_or(0, |i| i.text.len());
            window.push(item);
        }
        Ok(window)
    }

    fn next(&mut self) -> Result<Option<std::result::Result<Item, BadLine>>> {
        let (reader, name, jsonl, line) = match &mut self.source {
            Source::Arguments(texts) => {
                return Ok(texts.next().map(|(i, text)| Ok(Item { id: i.to_string().into(), text })));
            }
            Source::Lines { reader, name, jsonl, line } => (reader, name, *jsonl, line),
        };
        loop {
            let mut bytes = Vec::new();
            let read = reader.read_until(b'\n', &mut bytes).map_err(|e| Failure::io(name, &e))?;
            if read == 0 {
                return Ok(None);
            }
            self.read_bytes += read as u64;
            *line += 1;
            if *line == 1 && bytes.starts_with(b"\xef\xbb\xbf") {
                bytes.drain(..3);
            }
            if bytes.last() == Some(&b'\n') {
                bytes.pop();
            }
            if bytes.last() == Some(&b'\r') {
                bytes.pop();
            }
            if jsonl && bytes.iter().all(u8::is_ascii_whitespace) {
                continue;
            }
            let item = parse(bytes, *line, jsonl);
            return Ok(Some(item.map_err(|why| BadLine(format!("{}: line {line}: {why}", name.display())))));
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
    let record: Record =
        serde_json::from_str(&text).map_err(|e| format!("expected {{\"id\": ..., \"text\": ...}}: {e}"))?;
    let id = match record.id {
        None => numbered(),
        Some(id) => checked_id(id)?,
    };
    Ok(Item { id, text: record.text })
}

/// An id that survives the way through JSON unchanged.
pub fn checked_id(id: Value) -> std::result::Result<Value, String> {
    if id.is_string() || id.is_i64() || id.is_u64() {
        return Ok(id);
    }
    Err(format!("`id` is {id}; it has to be a string or a whole number of 64 bits"))
}

/// An id as one field of a line: a string without its quotes, control characters as spaces.
pub fn id_field(id: &Value) -> String {
    match id {
        Value::String(text) => field(text),
        other => other.to_string(),
    }
}

/// A text as one field of a line: control characters become spaces.
pub fn field(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}
