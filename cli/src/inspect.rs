//! `inspect`: what a model computes, what of its files is used, and what it takes.

use std::path::Path;

use kin_infer::modules::{ModelFolder, Module};
use kin_infer::tokenizer::{Window, window};
use kin_infer::{BertConfig, BertModel, Embedder};
use serde_json::{Map, Value, json};

use crate::common::{Compute, Model};
use crate::failure::{Done, Result};
use crate::output::Sink;

#[derive(clap::Args)]
#[command(after_help = "\
The model is loaded as for use, so that a model `inspect` describes is one that works; a model without a tokenizer is
described too.

Examples:
  kin-infer inspect models/all-MiniLM-L6-v2
  kin-infer inspect models/all-MiniLM-L6-v2 --tensors --json")]
pub struct Args {
    /// A folder with config.json beside the weights, or a hub id that lies in the local hub cache
    #[arg(value_name = "MODEL")]
    model: String,
    /// Name every tensor instead of counting them
    #[arg(long)]
    tensors: bool,
    /// Print one JSON object instead of lines of name, tab, value
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    compute: Compute,
}

struct Described {
    model_type: String,
    words: Vec<(&'static str, String)>,
    window: Window,
    modules: Vec<String>,
    used: Vec<String>,
    ignored: Vec<String>,
    file_bytes: u64,
    weight_bytes: usize,
    assumptions: Vec<String>,
}

pub fn run(args: &Args) -> Result<Done> {
    let folder = Model { model: args.model.clone() }.folder()?;
    let described = describe(&folder, &args.compute)?;
    let mut out = Sink::stdout();
    if args.json {
        out.json(&described.json(args.tensors))?;
    } else {
        for (name, value) in described.lines(args.tensors) {
            out.line(&format!("{name}\t{value}"))?;
        }
    }
    out.commit()?;
    Ok(Done::Whole)
}

fn describe(folder: &Path, compute: &Compute) -> Result<Described> {
    let compute = compute.open()?;
    let about = ModelFolder::read(folder)?;
    let dir = &about.transformer_dir;
    let config = BertConfig::from_folder(dir)?;
    let limit = config.effective_max_seq_len();
    let found = window(dir, Some(limit))?.unwrap_or(Window { limit, source: "config.json".to_string() });
    let has_tokenizer = ["tokenizer.json", "vocab.txt"].iter().any(|name| dir.join(name).is_file());
    let with = |model: &BertModel, assumptions: Vec<String>| {
        let modules = if about.assumed_pooling && model.labels() > 0 { &[] } else { &about.modules[..] };
        let report = model.report();
        Described {
            model_type: model.config().model_type.clone(),
            words: model.spec().words(),
            window: found,
            modules: modules.iter().map(module_words).collect(),
            used: report.used.clone(),
            ignored: report.ignored.clone(),
            file_bytes: report.bytes,
            weight_bytes: model.weight_bytes(),
            assumptions,
        }
    };
    let (spec, _) = kin_infer::arch::describe(&config)?;
    let classifies = spec.head != kin_infer::arch::HeadSpec::None;
    if has_tokenizer && !(classifies && about.assumed_pooling) {
        let embedder = Embedder::load_with_compute(folder, compute)?;
        return Ok(with(embedder.model(), embedder.assumptions()));
    }
    let model = BertModel::load_with_compute(dir, config, compute)?;
    let without = "no tokenizer: the model takes token ids only".to_string();
    Ok(with(&model, if has_tokenizer { Vec::new() } else { vec![without] }))
}

fn module_words(module: &Module) -> String {
    match module {
        Module::Pooling(p) => {
            let prompt = if p.include_prompt { "" } else { ", the prompt's tokens left out" };
            let modes: Vec<String> = p.modes.iter().map(ToString::to_string).collect();
            format!("pooling: {}{prompt}", modes.join(", then "))
        }
        Module::Dense(d) => {
            let bias = if d.bias { "with" } else { "without" };
            format!("dense: {} to {}, {bias} bias, {}", d.in_features, d.out_features, d.activation)
        }
        Module::LayerNorm(n) => format!("LayerNorm over {}", n.dimension),
        Module::Normalize => "normalise to length 1".to_string(),
        Module::TokenFilter(f) => format!("token filter: {} tokens left out", f.skipped.len()),
        Module::Splade(_) => "SPLADE".to_string(),
    }
}

impl Described {
    fn lines(&self, tensors: bool) -> Vec<(&str, String)> {
        let mut lines = vec![("model_type", self.model_type.clone())];
        lines.extend(self.words.iter().map(|(name, value)| (*name, value.clone())));
        lines.push(("window", format!("{} tokens: {}", self.window.limit, self.window.source)));
        lines.extend(self.modules.iter().map(|words| ("module", words.clone())));
        lines.push(("tensors used", self.used.len().to_string()));
        lines.push(("tensors ignored", self.ignored.len().to_string()));
        if tensors {
            lines.extend(self.used.iter().map(|name| ("used", name.clone())));
            lines.extend(self.ignored.iter().map(|name| ("ignored", name.clone())));
        }
        lines.push(("checkpoint", format!("{} bytes", self.file_bytes)));
        lines.push((
            "memory",
            format!("{} bytes of packed matrices; embedding rows are read from the file", self.weight_bytes),
        ));
        lines.extend(self.assumptions.iter().map(|words| ("assumed", words.clone())));
        lines
    }

    fn json(&self, tensors: bool) -> Value {
        let words: Map<String, Value> = self.words.iter().map(|(k, v)| (k.to_string(), v.clone().into())).collect();
        let names = |list: &[String]| if tensors { json!(list) } else { json!(list.len()) };
        json!({
            "model_type": self.model_type,
            "spec": words,
            "window": {"tokens": self.window.limit, "source": self.window.source},
            "modules": self.modules,
            "tensors_used": names(&self.used),
            "tensors_ignored": names(&self.ignored),
            "parameter_bytes": self.file_bytes,
            "weight_bytes": self.weight_bytes,
            "assumptions": self.assumptions,
        })
    }
}
