//! The text files of a folder, without what git ignores, in the order of their paths.

use std::collections::HashSet;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use ignore::{DirEntry, Walk, WalkBuilder};

use super::{Bad, Found, Item, Tee, too_long};

/// A file with a zero byte among so many first ones is no text; git goes by the same rule.
const SNIFFED: u64 = 8000;

pub struct Folder {
    root: PathBuf,
    walk: Walk,
    /// Files that are not input.
    own: HashSet<PathBuf>,
    /// Files that hold no text.
    pub left_out: usize,
}

impl Folder {
    /// The files of `own`, real paths, are no input.
    pub fn open(root: &Path, own: &[PathBuf]) -> Self {
        let walk = WalkBuilder::new(root).require_git(false).sort_by_file_name(Ord::cmp).build();
        Self { root: root.to_path_buf(), walk, own: own.iter().cloned().collect(), left_out: 0 }
    }

    pub fn next(&mut self, tee: &mut Tee) -> Option<Found> {
        loop {
            let entry = match self.walk.next()? {
                Ok(entry) => entry,
                Err(e) => return Some(Err(Bad(e.to_string()))),
            };
            if !entry.file_type().is_some_and(|kind| kind.is_file()) || self.is_own(&entry) {
                continue;
            }
            let path = entry.path();
            match self.read(path, tee) {
                Ok(Some(item)) => return Some(Ok(item)),
                Ok(None) => self.left_out += 1,
                Err(why) => return Some(Err(Bad(format!("{}: {why}", path.display())))),
            }
        }
    }

    /// The file as a record, its path from the folder, with `/`, as id; none if it holds no text.
    fn read(&self, path: &Path, tee: &mut Tee) -> std::result::Result<Option<Item>, String> {
        let io = |e: std::io::Error| e.to_string();
        let inner = path.strip_prefix(&self.root).unwrap_or(path);
        let parts: Option<Vec<&str>> = inner.iter().map(|part| part.to_str()).collect();
        let id = parts.ok_or("its name is not UTF-8")?.join("/");
        let mut file = File::open(path).map_err(io)?;
        let mut start = Vec::new();
        file.by_ref().take(SNIFFED).read_to_end(&mut start).map_err(io)?;
        if start.contains(&0) {
            return Ok(None);
        }
        tee.framed(id.as_bytes());
        let bytes = tee.read(file, &start).map_err(io)?.ok_or_else(too_long)?;
        tee.framed(&(bytes.len() as u64).to_le_bytes());
        let text = String::from_utf8(bytes).map_err(|e| {
            let at = e.utf8_error().valid_up_to();
            let line = e.as_bytes()[..at].iter().filter(|b| **b == b'\n').count() + 1;
            format!("not UTF-8 at byte {at}, in line {line}")
        })?;
        let text = text.strip_prefix('\u{feff}').map(str::to_owned).unwrap_or(text);
        Ok((!text.trim().is_empty()).then(|| Item { id: id.into(), text }))
    }

    /// Whether a file is one of the run's own.
    fn is_own(&self, entry: &DirEntry) -> bool {
        let is_own = |path: PathBuf| self.own.contains(&path);
        !self.own.is_empty() && entry.path().canonicalize().is_ok_and(is_own)
    }
}
