//! Long runs: their input, their commands, their ends.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::{Ran, fixture, kin_infer};

pub fn model() -> String {
    fixture("st-tiny").display().to_string()
}

/// Texts of a few words, some of them twice, with two lines that are no text.
pub fn documents(folder: &Path, n: usize) -> PathBuf {
    let words = ["hello", "world", "searching", "the", "parser", "errors", "fn", "main", "number"];
    let text = |i: usize| (0..i % 17 + 1).map(|k| words[(i * 7 + k * k) % words.len()]).collect::<Vec<_>>().join(" ");
    let mut bytes = Vec::new();
    for i in 0..n {
        let line = json!({"id": format!("d{i}"), "text": text(if i % 5 == 0 { i / 2 } else { i })});
        bytes.extend_from_slice(format!("{line}\n").as_bytes());
        if i == n / 3 || i == n / 2 {
            bytes.extend_from_slice(b"{\"id\": \"bad\", \"text\": \"\xff\"}\n");
        }
    }
    let file = folder.join("docs.jsonl");
    std::fs::write(&file, bytes).unwrap();
    file
}

/// The files of an output, without its journal.
pub fn output_files(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let named = entries.map(|path| (path.file_name().unwrap().to_str().unwrap().to_string(), path));
    let wanted = named.filter(|(name, _)| name.starts_with("out.") && !name.ends_with(".journal"));
    wanted.map(|(name, path)| (name, std::fs::read(path).unwrap())).collect()
}

pub fn command(input: &Path, output: &Path, more: &[&str]) -> Command {
    let mut command = kin_infer();
    command.args(["embed", "--model", &model(), "--threads", "2", "--input"]).arg(input).arg("--output").arg(output);
    command.args(more).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Runs to the end; a run that hangs fails the test.
pub fn ended(mut child: Child) -> Ran {
    let start = Instant::now();
    while child.try_wait().unwrap().is_none() {
        if start.elapsed() > Duration::from_secs(120) {
            child.kill().unwrap();
            panic!("a run hangs");
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    let output = child.wait_with_output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    Ran { code: output.status.code().unwrap_or(-1), stdout: text(output.stdout), stderr: text(output.stderr) }
}

pub fn embed(input: &Path, output: &Path, more: &[&str]) -> Ran {
    ended(command(input, output, more).spawn().unwrap())
}

/// What the whole lines of an output's journal hold.
pub fn journal(output: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(format!("{}.journal", output.display())).unwrap();
    let entries = text.lines().filter_map(|line| line.split_once(" {"));
    entries.filter_map(|(_, rest)| serde_json::from_str(&format!("{{{rest}")).ok()).collect()
}

/// Texts and failures of each batch in a journal.
pub fn batches(output: &Path) -> Vec<u64> {
    let entries = journal(output);
    let found = entries.iter().filter_map(|entry| entry["batch"]["batch"].as_object());
    found.map(|batch| batch["texts"].as_u64().unwrap() + batch["failed"].as_array().unwrap().len() as u64).collect()
}

/// Numbers that look random (xorshift).
pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }
}
