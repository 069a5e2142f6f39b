//! A model argument to a folder: the library looks locally; a build with the feature `download` fetches what is absent.

use std::path::PathBuf;

use crate::failure::Result;

/// The folder a model argument names.
#[cfg(not(feature = "download"))]
pub fn resolve(model: &str) -> Result<PathBuf> {
    use crate::failure::Failure;
    kin_infer::hub::resolve(model).map_err(|e| match kin_infer::hub::is_hub_id(model) {
        true => Failure::Failed(format!("{e}; this build does not download (its feature `download` does)")),
        false => e.into(),
    })
}

/// The folder a model argument names, fetched from the hub when it is an id that is nowhere here.
#[cfg(feature = "download")]
pub fn resolve(model: &str) -> Result<PathBuf> {
    let local = match kin_infer::hub::resolve(model) {
        Ok(folder) => return Ok(folder),
        Err(e) => e,
    };
    if !kin_infer::hub::is_hub_id(model) || kin_infer::env::hub_offline() {
        return Err(local.into());
    }
    fetch(model)?;
    Ok(kin_infer::hub::resolve(model)?)
}

/// Brings the files of a model that are read here into the local hub cache, config.json last: a snapshot that has it is
/// complete.
#[cfg(feature = "download")]
fn fetch(model: &str) -> Result<()> {
    use std::io::IsTerminal;

    use crate::failure::Failure;
    let failed = |what: &str, e: hf_hub::api::sync::ApiError| {
        Failure::Failed(format!("model `{model}`: downloading {what}: {e}; HF_HUB_OFFLINE=1 forbids downloads"))
    };
    let mut builder = hf_hub::api::sync::ApiBuilder::from_env().with_retries(3);
    builder = builder.with_progress(std::io::stderr().is_terminal());
    if let Some(cache) = kin_infer::env::hub_cache() {
        builder = builder.with_cache_dir(cache);
    }
    if let Some(endpoint) = kin_infer::env::hub_endpoint() {
        builder = builder.with_endpoint(endpoint);
    }
    let repo = builder.build().map_err(|e| failed("its list of files", e))?.model(model.to_string());
    let info = repo.info().map_err(|e| failed("its list of files", e))?;
    let mut files: Vec<String> = info.siblings.into_iter().map(|s| s.rfilename).filter(|f| is_read(f)).collect();
    files.sort_by_key(|f| (f == "config.json", f.clone()));
    for file in files {
        repo.get(&file).map_err(|e| failed(&file, e))?;
    }
    Ok(())
}

/// Whether a file of a hub model is one that is read here: settings, vocabularies and safetensors, at the top or in a
/// module's folder; not the exports for other engines.
#[cfg(any(feature = "download", test))]
fn is_read(file: &str) -> bool {
    let other_engines = ["onnx/", "openvino/", "coreml/", "tflite/"];
    let kinds = [".json", ".txt", ".model", ".jinja", ".safetensors"];
    file.split('/').count() <= 2
        && kinds.iter().any(|k| file.ends_with(k))
        && !other_engines.iter().any(|e| file.starts_with(e))
}

#[cfg(test)]
mod tests {
    #[test]
    fn only_what_is_read_is_fetched() {
        let read =
            ["config.json", "model.safetensors", "1_Pooling/config.json", "vocab.txt", "2_Dense/model.safetensors"];
        let left = ["pytorch_model.bin", "onnx/config.json", "README.md", "a/b/c.json", "openvino/x.txt"];
        assert!(read.iter().all(|f| super::is_read(f)));
        assert!(!left.iter().any(|f| super::is_read(f)));
    }
}
