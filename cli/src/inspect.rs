//! `inspect`: what a model computes, what of its files is used, and what it takes.

use std::collections::BTreeMap;
use std::path::Path;

use kin_infer::arch::{HeadChoice, HeadSpec};
use kin_infer::modules::{ModelFolder, Module, Output, Task};
use kin_infer::pooling::Pooler;
use kin_infer::tokenizer::{TextTokenizer, Window, has_tokenizer, window};
use kin_infer::weights::Checkpoint;
use kin_infer::{BertConfig, BertModel};
use serde_json::{Map, Value, json};

use crate::common::{Compute, Head, Model};
use crate::failure::{Done, Result};
use crate::output::Sink;

#[derive(clap::Args)]
#[command(after_help = "\
The model is loaded as for use, so that a model `inspect` describes is one that works; a model without a tokenizer is
described too. Each line is a name, a tab and what it says: the layers, embeddings, positions, norms, attention,
feed-forward block and head; the longest sequence that the positions allow, and the window that texts are cut to with
what set it; the modules after the transformer, the prompts, what a text becomes; tensors and their types, memory,
assumptions. Blocks of other types than Q8_0 and Q4_0 are multiplied as the F32 values that they stand for: the CPU
keeps them as small as in the file and widens them while it multiplies.

Examples:
  kin-infer inspect models/all-MiniLM-L6-v2
  kin-infer inspect models/all-MiniLM-L6-v2 --tensors --json
  kin-infer inspect models/minilm-q8_0.gguf")]
pub struct Args {
    /// A folder with config.json beside the weights, a GGUF file, or a hub id that lies in the local hub cache
    #[arg(value_name = "MODEL")]
    model: String,
    /// Which head the model is loaded with. `auto` is the one that modules.json uses; without modules.json the classifier
    /// or the decoder's, whichever config.json names
    #[arg(long, value_enum, default_value_t = Head::Auto)]
    head: Head,
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
    /// What the folder makes of a text.
    output: String,
    window: Window,
    modules: Vec<String>,
    late: Vec<String>,
    prompts: Vec<String>,
    used: Vec<String>,
    ignored: Vec<String>,
    widened: Vec<String>,
    /// Number of tensors by the type of their elements.
    types: BTreeMap<String, usize>,
    file_bytes: u64,
    weight_bytes: usize,
    assumptions: Vec<String>,
}

pub fn run(args: &Args) -> Result<Done> {
    let folder = Model { model: args.model.clone() }.folder()?;
    let described = describe(&folder, args)?;
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

/// Loads what the folder's use needs, and says what it is.
fn describe(folder: &Path, args: &Args) -> Result<Described> {
    let compute = args.compute.open()?;
    let about = ModelFolder::read(folder)?;
    let dir = &about.transformer_dir;
    let config = BertConfig::from_folder(dir)?;
    let limit = config.effective_max_seq_len();
    let window = window(dir, Some(limit))?.unwrap_or(Window { limit, source: "config.json".to_string() });
    let auto = match (about.task, about.assumed_pooling) {
        (Task::FillMask, _) => HeadChoice::MaskedLm,
        (_, true) => HeadChoice::Configured,
        (_, false) => HeadChoice::Vectors,
    };
    let model = BertModel::load_with_head(dir, config, compute, args.head.choice(auto))?;
    args.head.check(&model)?;
    let headless = matches!(model.spec().head, HeadSpec::None);
    // Nothing is assumed of a head's folder: its scores are the output.
    let modules = if about.assumed_pooling && !headless { &[][..] } else { &about.modules };
    let mut assumptions = Vec::new();
    if headless && about.output() != Output::Sparse {
        Pooler::load(modules, model.spec().hidden_size, model.compute())?;
        if about.assumed_pooling {
            let source = about.source();
            assumptions.push(format!("no {source}: token vectors are averaged and the mean is L2-normalised"));
        }
    }
    if has_tokenizer(dir)? {
        TextTokenizer::from_folder(dir)?;
    } else {
        assumptions.push("no tokenizer: the model takes token ids only".to_string());
    }
    let report = model.report();
    Ok(Described {
        model_type: model.config().model_type.clone(),
        words: model.spec().words(),
        output: output_words(&model, &about, modules),
        window,
        modules: modules.iter().map(module_words).collect(),
        late: late_words(&about),
        prompts: prompt_words(&about),
        used: report.used.clone(),
        ignored: report.ignored.clone(),
        widened: report.widened.clone(),
        types: types(dir)?,
        file_bytes: report.bytes,
        weight_bytes: model.weight_bytes(),
        assumptions,
    })
}

/// How many tensors of each type there are.
fn types(dir: &Path) -> Result<BTreeMap<String, usize>> {
    let checkpoint = Checkpoint::open(dir)?;
    let mut types = BTreeMap::new();
    for tensor in checkpoint.names().filter_map(|name| checkpoint.get(name)) {
        *types.entry(tensor.dtype_name().to_string()).or_default() += 1;
    }
    Ok(types)
}

fn output_words(model: &BertModel, about: &ModelFolder, modules: &[Module]) -> String {
    let spec = model.spec();
    let pooled = || match Pooler::load(modules, spec.hidden_size, model.compute()) {
        Ok(pooler) if pooler.pools() => pooler.dimension(),
        Ok(pooler) => pooler.token_dimension(),
        Err(_) => spec.hidden_size,
    };
    match (about.output(), spec.head) {
        (_, HeadSpec::Classifier { labels, .. }) => format!("{labels} score(s) a text or pair"),
        (Output::Sparse, _) => format!("a sparse vector of {} entries a text", spec.embedding.vocab_size),
        (_, HeadSpec::MaskedLm { .. } | HeadSpec::CausalLm { .. }) => {
            format!("{} scores a token", spec.embedding.vocab_size)
        }
        (Output::TokenVectors, _) => format!("a vector of {} values a token", pooled()),
        _ => {
            let whole = pooled();
            let cut = about.truncate_dim.filter(|d| *d < whole).map(|d| format!(", cut to {d}"));
            format!("a vector of {whole} values a text{}", cut.unwrap_or_default())
        }
    }
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
        Module::TokenFilter(f) => {
            let of = match (f.of_queries, f.of_documents) {
                (true, true) => "queries and documents",
                (true, false) => "queries",
                (false, true) => "documents",
                (false, false) => "nothing",
            };
            let only =
                f.only.as_ref().map_or(String::new(), |ids| format!(", only {} token ids of documents", ids.len()));
            format!("token filter: {} tokens left out of {of}{only}", f.skipped.len())
        }
        Module::Splade(p) => {
            let weight = if p.twice { "log(1 + log(1 + relu(score)))" } else { "log(1 + relu(score))" };
            let over = if p.sum { "sum" } else { "maximum" };
            format!("SPLADE: {over} over the tokens of {weight}")
        }
    }
}

/// What late interaction is told of queries and documents.
fn late_words(about: &ModelFolder) -> Vec<String> {
    let late = &about.late;
    let length = |of: &str, n: Option<usize>| n.map(|n| format!("{of} of at most {n} tokens"));
    let expansion = late.expansion.as_ref().map(|e| {
        let attend = if e.attend { "" } else { ", which the others do not attend to (refused)" };
        format!("queries filled up to {} tokens{attend}", e.length)
    });
    [length("queries", late.query_length), length("documents", late.document_length), expansion]
        .into_iter()
        .flatten()
        .collect()
}

fn prompt_words(about: &ModelFolder) -> Vec<String> {
    let default = about.default_prompt_name.as_deref();
    let line = |(name, text): (&String, &String)| {
        let usual = if default == Some(name) { " (the default)" } else { "" };
        format!("{name}{usual}: {text:?}")
    };
    about.prompts.iter().map(line).collect()
}

impl Described {
    fn lines(&self, tensors: bool) -> Vec<(&str, String)> {
        let mut lines = vec![("model_type", self.model_type.clone())];
        lines.extend(self.words.iter().map(|(name, value)| (*name, value.clone())));
        lines.push(("window", format!("{} tokens: {}", self.window.limit, self.window.source)));
        lines.extend(self.modules.iter().map(|words| ("module", words.clone())));
        lines.extend(self.late.iter().map(|words| ("late interaction", words.clone())));
        lines.extend(self.prompts.iter().map(|words| ("prompt", words.clone())));
        lines.push(("output", self.output.clone()));
        lines.push(("tensors used", self.used.len().to_string()));
        lines.push(("tensors ignored", self.ignored.len().to_string()));
        if !self.widened.is_empty() {
            lines.push(("tensors multiplied in F32", self.widened.len().to_string()));
        }
        if tensors {
            lines.extend(self.used.iter().map(|name| ("used", name.clone())));
            lines.extend(self.ignored.iter().map(|name| ("ignored", name.clone())));
            lines.extend(self.widened.iter().map(|name| ("widened", name.clone())));
        }
        lines.push(("checkpoint", format!("{} bytes", self.file_bytes)));
        let types: Vec<String> = self.types.iter().map(|(name, count)| format!("{count} of {name}")).collect();
        lines.push(("tensor types", types.join(", ")));
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
            "late_interaction": self.late,
            "prompts": self.prompts,
            "output": self.output,
            "tensors_used": names(&self.used),
            "tensors_ignored": names(&self.ignored),
            "tensors_widened": names(&self.widened),
            "tensor_types": self.types,
            "parameter_bytes": self.file_bytes,
            "weight_bytes": self.weight_bytes,
            "assumptions": self.assumptions,
        })
    }
}
