//! The files that a run writes, and what it must not write over.

use std::path::{Path, PathBuf};

use super::Args;
use crate::failure::{Failure, Result};
use crate::output::real_path;
use crate::rows::names;

/// The files that a run may write, by their real paths.
///
/// # Errors
/// When one of them is what the run reads, or is written twice.
pub fn files(args: &Args) -> Result<Vec<PathBuf>> {
    let mut own = args.file().map_or(Vec::new(), outputs);
    let clash = |what: &str, path: &Path, with: &str| {
        let why = format!("{what} {} is {with}, which would be written over: choose another name", path.display());
        Err(Failure::Usage(why))
    };
    if let Some(cache) = &args.cache {
        let path = real_path(cache);
        if own.contains(&path) {
            return clash("--cache", cache, "a file of --output");
        }
        own.push(path);
    }
    match args.input.file() {
        Some(input) if own.contains(&real_path(input)) => clash("--input", input, "a file of --output or --cache"),
        _ => Ok(own),
    }
}

/// The output with what may lie beside it.
fn outputs(output: &Path) -> Vec<PathBuf> {
    let output = real_path(output);
    let name = output.file_name().unwrap_or_default();
    names(name).into_iter().map(|name| output.with_file_name(name)).collect()
}
