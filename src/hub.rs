//! What a model argument names: a folder, or a hub id that lies in the local hub cache.

use std::path::{Path, PathBuf};

use crate::error::{InferError, Result};

/// The folder of a model given as a path or as a hub id `owner/name` that is in the local hub cache.
///
/// # Errors
/// [`InvalidArgument`](InferError::InvalidArgument) that says where was looked.
pub fn resolve(model: &str) -> Result<PathBuf> {
    let path = Path::new(model);
    if path.is_dir() {
        return Ok(path.to_path_buf());
    }
    if path.exists() {
        return Err(InferError::model(path, "a model is a folder with config.json beside its weights, not one file"));
    }
    let parts: Vec<&str> = model.split('/').collect();
    let is_id = parts.len() <= 2 && parts.iter().all(|p| !p.is_empty() && *p != "." && *p != "..");
    let Some(cache) = crate::env::hub_cache().filter(|_| is_id) else {
        return Err(InferError::InvalidArgument(format!("model `{model}`: no such folder")));
    };
    let repo = cache.join(format!("models--{}", parts.join("--")));
    snapshot(&repo).ok_or_else(|| {
        InferError::InvalidArgument(format!(
            "model `{model}`: no such folder, and the local hub cache has no {}; give a folder, or bring the model \
             there first (this version does not download)",
            repo.display()
        ))
    })
}

/// The snapshot `refs/main` names, else the only one.
fn snapshot(repo: &Path) -> Option<PathBuf> {
    let snapshots = repo.join("snapshots");
    if let Ok(commit) = std::fs::read_to_string(repo.join("refs/main")) {
        let folder = snapshots.join(commit.trim());
        if folder.is_dir() {
            return Some(folder);
        }
    }
    let mut folders = std::fs::read_dir(snapshots).ok()?.flatten().map(|e| e.path()).filter(|p| p.is_dir());
    let only = folders.next()?;
    folders.next().is_none().then_some(only)
}
