//! The files of a model folder, and the folder that appears whole or not at all.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use crate::error::{InferError, Result};
use crate::weights::Checkpoint;

/// The file of weights that needs no list.
pub(super) const SINGLE: &str = "model.safetensors";

/// The list of shards.
pub(super) const INDEX: &str = "model.safetensors.index.json";

/// Endings of weights for other programs, and of weights that are written anew.
const OTHER_WEIGHTS: [&str; 12] =
    ["onnx", "h5", "msgpack", "ot", "gguf", "ggml", "tflite", "ckpt", "pth", "pt", "mlmodel", "lock"];

/// Folders of such weights, and of tools.
const OTHER_FOLDERS: [&str; 8] = ["onnx", "openvino", "coreml", "tflite", "original", ".git", ".cache", ".locks"];

/// Deepest folder that is looked into: modules lie one below the model.
const DEPTH: usize = 4;

/// Files of a model folder, as paths inside it.
#[derive(Default)]
pub(super) struct Copies {
    pub files: Vec<PathBuf>,
    pub left_out: Vec<String>,
}

/// Refuses an output that exists, unless it is an empty folder.
pub(super) fn check_output(output: &Path) -> Result<()> {
    match fs::read_dir(output) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(e) => Err(InferError::io(output, e)),
        Ok(mut entries) => match entries.next() {
            None => Ok(()),
            Some(_) => {
                let detail = format!("{} exists and is not empty; name a new folder", output.display());
                Err(InferError::InvalidArgument(detail))
            }
        },
    }
}

/// Refuses an output inside the folder that it is made from: it would be part of that model from then on.
pub(super) fn check_outside(source: &Path, output: &Path) -> Result<()> {
    let (Ok(source), Ok(output)) = (source.canonicalize(), std::path::absolute(output)) else { return Ok(()) };
    let there = output.ancestors().find_map(|folder| folder.canonicalize().ok());
    if there.is_some_and(|folder| folder.starts_with(&source)) {
        let detail = format!("{} lies in the model's own folder; name one outside of it", output.display());
        return Err(InferError::InvalidArgument(detail));
    }
    Ok(())
}

/// What belongs into a copy of `folder` beside the transformer's weights.
pub(super) fn to_copy(folder: &Path, transformer: &Path, checkpoint: &Checkpoint) -> Result<Copies> {
    let mut copies = Copies::default();
    let weights = Weights { folder: transformer, files: checkpoint.files().collect() };
    walk(folder, Path::new(""), &weights, DEPTH, &mut copies)?;
    copies.files.sort();
    copies.left_out.sort();
    Ok(copies)
}

/// The files that are written anew.
struct Weights<'a> {
    folder: &'a Path,
    files: Vec<&'a Path>,
}

impl Weights<'_> {
    /// Whether a file of the transformer's folder holds weights, or lists them.
    fn are_in(&self, path: &Path, name: &str) -> bool {
        let kinds = name.starts_with("pytorch_model") || name.ends_with(".safetensors") || name == INDEX;
        kinds && path.parent() == Some(self.folder)
    }

    fn are_of_checkpoint(&self, path: &Path, name: &str) -> bool {
        self.files.contains(&path) || name == INDEX
    }
}

fn walk(root: &Path, inside: &Path, weights: &Weights, depth: usize, copies: &mut Copies) -> Result<()> {
    let folder = root.join(inside);
    for entry in fs::read_dir(&folder).map_err(|e| InferError::io(&folder, e))? {
        let entry = entry.map_err(|e| InferError::io(&folder, e))?;
        let (path, inside) = (entry.path(), inside.join(entry.file_name()));
        let kind = entry.file_type().map_err(|e| InferError::io(&path, e))?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if kind.is_dir() {
            if depth == 0 || OTHER_FOLDERS.contains(&name.as_str()) {
                copies.left_out.push(inside.display().to_string());
            } else {
                walk(root, &inside, weights, depth - 1, copies)?;
            }
            continue;
        }
        // A link to a file is a file, as in the hub's cache; what else there is does not belong to a model.
        let is_file = fs::metadata(&path).is_ok_and(|m| m.is_file());
        let other = Path::new(&name).extension().is_some_and(|e| OTHER_WEIGHTS.iter().any(|other| e == *other));
        if weights.are_in(&path, &name) && weights.are_of_checkpoint(&path, &name) {
            continue;
        }
        if !is_file || other || weights.are_in(&path, &name) {
            copies.left_out.push(inside.display().to_string());
        } else {
            copies.files.push(inside);
        }
    }
    Ok(())
}

/// Copies `files` from one folder to another.
pub(super) fn copy(from: &Path, to: &Path, files: &[PathBuf]) -> Result<()> {
    for file in files {
        let (source, target) = (from.join(file), to.join(file));
        create_folders(target.parent().unwrap_or(to))?;
        let mut reader = File::open(&source).map_err(|e| InferError::io(&source, e))?;
        write_through(&target, |writer| io::copy(&mut reader, writer).map(drop))?;
    }
    Ok(())
}

pub(super) fn create_folders(folder: &Path) -> Result<()> {
    fs::create_dir_all(folder).map_err(|e| InferError::io(folder, e))
}

/// Makes a new file, and waits until the disk has it.
pub(super) fn write_through(path: &Path, write: impl FnOnce(&mut File) -> io::Result<()>) -> Result<()> {
    let all = || {
        let mut file = File::create_new(path)?;
        write(&mut file)?;
        file.sync_all()
    };
    all().map_err(|e| InferError::io(path, e))
}

/// A folder under a temporary name, removed unless it is committed.
pub(super) struct PendingFolder<'a> {
    partial: PathBuf,
    target: &'a Path,
}

impl<'a> PendingFolder<'a> {
    /// Makes the folder beside `target`.
    pub fn new(target: &'a Path) -> Result<Self> {
        let Some(name) = target.file_name() else {
            return Err(InferError::InvalidArgument(format!("{} is no name of a folder", target.display())));
        };
        let mut partial = std::ffi::OsString::from(".");
        partial.push(name);
        partial.push(format!(".partial-{}", std::process::id()));
        let partial = target.with_file_name(partial);
        if let Some(parent) = target.parent() {
            create_folders(parent)?;
        }
        fs::create_dir(&partial).map_err(|e| InferError::io(&partial, e))?;
        Ok(Self { partial, target })
    }

    pub fn path(&self) -> &Path {
        &self.partial
    }

    /// Gives the folder its name.
    pub fn commit(self) -> Result<()> {
        sync_folders(&self.partial)?;
        let parent = self.target.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let rename = || {
            // Not every system renames over an empty folder.
            match fs::remove_dir(self.target) {
                Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
                _ => {}
            }
            fs::rename(&self.partial, self.target)
        };
        rename().map_err(|e| InferError::io(self.target, e))?;
        sync_folder(parent)
    }
}

impl Drop for PendingFolder<'_> {
    fn drop(&mut self) {
        // After a commit there is nothing of this name; after an error the rest is no use.
        let _ = fs::remove_dir_all(&self.partial);
    }
}

/// Waits until the disk has the names in a folder and those below.
fn sync_folders(folder: &Path) -> Result<()> {
    for entry in fs::read_dir(folder).map_err(|e| InferError::io(folder, e))? {
        let entry = entry.map_err(|e| InferError::io(folder, e))?;
        if entry.path().is_dir() {
            sync_folders(&entry.path())?;
        }
    }
    sync_folder(folder)
}

/// Only Unix lets a folder be opened to be written through.
fn sync_folder(folder: &Path) -> Result<()> {
    if cfg!(unix) {
        File::open(folder).and_then(|f| f.sync_all()).map_err(|e| InferError::io(folder, e))?;
    }
    Ok(())
}
