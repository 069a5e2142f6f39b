//! What a model argument names: a folder, a GGUF file, or a hub id that lies in the local hub cache.

use std::path::{Path, PathBuf};

use crate::error::{InferError, Result};
use crate::weights::GgufFile;

/// The folder or GGUF file of a model given as a path or as a hub id `owner/name` that is in the local hub cache.
///
/// # Errors
/// [`InvalidArgument`](InferError::InvalidArgument) that says where was looked.
pub fn resolve(model: &str) -> Result<PathBuf> {
    let path = Path::new(model);
    if path.is_dir() {
        return Ok(path.to_path_buf());
    }
    if GgufFile::find(path)?.is_some() {
        return Ok(path.to_path_buf());
    }
    if path.exists() {
        let detail = "a model is a folder with config.json beside its weights or a GGUF file, not another file";
        return Err(InferError::model(path, detail));
    }
    let Some(repo) = cached_repo(model) else {
        return Err(InferError::InvalidArgument(format!("model `{model}`: no such folder")));
    };
    snapshot(&repo)?.ok_or_else(|| {
        InferError::InvalidArgument(format!(
            "model `{model}`: no such folder, and the local hub cache has no complete {}",
            repo.display()
        ))
    })
}

/// Whether the argument has the form of a hub id, `owner/name` or `name`.
pub fn is_hub_id(model: &str) -> bool {
    let parts: Vec<&str> = model.split('/').collect();
    let word = |p: &&str| {
        !p.starts_with('.') && !p.is_empty() && p.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c))
    };
    parts.len() <= 2 && parts.iter().all(word)
}

fn cached_repo(model: &str) -> Option<PathBuf> {
    let cache = crate::env::hub_cache().filter(|_| is_hub_id(model))?;
    Some(cache.join(format!("models--{}", model.replace('/', "--"))))
}

/// The snapshot `refs/main` names, else the only one; one with neither config.json nor a GGUF file is a download that
/// did not end.
///
/// # Errors
/// A snapshot of several GGUF files, one of which has to be named.
fn snapshot(repo: &Path) -> Result<Option<PathBuf>> {
    let snapshots = repo.join("snapshots");
    let complete = |folder: &Path| {
        Ok(folder.join("config.json").is_file() || folder.is_dir() && GgufFile::find(folder)?.is_some())
    };
    if let Ok(commit) = std::fs::read_to_string(repo.join("refs/main")) {
        let folder = snapshots.join(commit.trim());
        if complete(&folder)? {
            return Ok(Some(folder));
        }
    }
    let Ok(entries) = std::fs::read_dir(snapshots) else { return Ok(None) };
    let mut only = None;
    for folder in entries.flatten().map(|entry| entry.path()) {
        if complete(&folder)? && only.replace(folder).is_some() {
            return Ok(None);
        }
    }
    Ok(only)
}
