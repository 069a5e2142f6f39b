//! Rows of a decoder: a prompt at once, and tokens one by one after it.

use std::path::Path;
use std::sync::Arc;

use kin_infer::gpu::Profiled;
use kin_infer::modules::ModelFolder;
use kin_infer::{BertConfig, BertModel, LoadOptions};

use super::Args;
use super::encoder::made_up;
use super::machine::Limit;
use super::report::{Done, Row};
use crate::common::Head;
use crate::failure::Result;

pub fn rows(args: &Args, folder: &Path, compute: &Arc<Profiled>) -> Result<Vec<Row>> {
    let folder = ModelFolder::read(folder)?.transformer_dir;
    let config = BertConfig::from_folder(&folder)?;
    let options = LoadOptions { precision: args.precision.get(), ..LoadOptions::default() };
    let model = Arc::new(BertModel::load_with_options(&folder, config, compute.clone(), options)?);
    Head::CausalLm.check(&model)?;
    let vocabulary = model.spec().embedding.vocab_size as u32;
    let (prompt, new) = (args.prompt_tokens as usize, args.new_tokens as usize);
    let ids: Vec<u32> = (0..prompt + new).map(|i| made_up(i, vocabulary)).collect();
    // The kept keys are those of the same prompt, whichever threads computed them: its bits are the same.
    let mut kept = None;
    let (first, model_of_prompt) = (ids[..prompt].to_vec(), model.clone());
    Ok(vec![
        Row {
            name: format!("prompt of {prompt} tokens"),
            limit: Limit::Flops,
            run: Box::new(move || {
                let mut cache = model_of_prompt.kv_cache()?;
                model_of_prompt.prefill(&mut cache, &first)?;
                Ok(Done { texts: 1, tokens: prompt })
            }),
        },
        Row {
            name: format!("{new} tokens after it, one by one"),
            limit: Limit::Bytes,
            run: Box::new(move || {
                let cache = match &mut kept {
                    Some(cache) => cache,
                    none => {
                        let mut cache = model.kv_cache()?;
                        model.prefill(&mut cache, &ids[..prompt])?;
                        none.insert(cache)
                    }
                };
                let mut cache = model.share_cache(cache, prompt)?;
                for id in &ids[prompt..] {
                    model.extend(&mut cache, std::slice::from_ref(id))?;
                }
                Ok(Done { texts: 1, tokens: new })
            }),
        },
    ])
}
