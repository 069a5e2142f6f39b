//! README.md's table of what runs, rendered from the fixtures: what a row says is what a test compares with the
//! reference. `KIN_INFER_UPDATE=1 cargo test --test support_table` writes it.

mod common;

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;

use common::{Reference, decoders, encoders, fixture};
use kin_infer::arch::{
    HeadChoice, HeadSpec, LongFrequencies, ModelSpec, NormPlace, Numbering, RopeSpec, ScorePositions,
};
use kin_infer::cpu::CpuCompute;
use kin_infer::weights::Checkpoint;
use kin_infer::{BertConfig, BertModel, ModelArchitecture};

const BEGIN: &str = "<!-- support:begin -->\n";
const END: &str = "<!-- support:end -->";

/// The name of a row. Two families share a `model_type`, and their fixtures tell them apart.
fn title(architecture: ModelArchitecture, fixture: &str) -> String {
    match architecture {
        ModelArchitecture::Bert if fixture.starts_with("jina-") => "JinaBERT v2".to_string(),
        ModelArchitecture::Albert => "ALBERT".to_string(),
        ModelArchitecture::Bert => "BERT".to_string(),
        ModelArchitecture::Deberta => "DeBERTa".to_string(),
        ModelArchitecture::DebertaV2 => "DeBERTa v2, v3".to_string(),
        ModelArchitecture::DistilBert => "DistilBERT".to_string(),
        ModelArchitecture::Electra => "ELECTRA".to_string(),
        ModelArchitecture::Gemma2 => "Gemma 2".to_string(),
        ModelArchitecture::Gemma3 => "Gemma 3, EmbeddingGemma".to_string(),
        ModelArchitecture::Gpt2 => "GPT-2".to_string(),
        ModelArchitecture::Gte => "GTE".to_string(),
        ModelArchitecture::Llama => "LLaMA".to_string(),
        ModelArchitecture::ModernBert => "ModernBERT".to_string(),
        ModelArchitecture::Mpnet => "MPNet".to_string(),
        ModelArchitecture::NomicBert => "Nomic BERT".to_string(),
        ModelArchitecture::Phi3 => "Phi-3".to_string(),
        ModelArchitecture::Roberta => "RoBERTa, XLM-R, CamemBERT".to_string(),
        ModelArchitecture::T5 => "T5, mT5 (encoder)".to_string(),
        other => format!("{other:?}"),
    }
}

/// What the fixtures of a family show.
#[derive(Default)]
struct Row {
    model_types: BTreeSet<String>,
    positions: BTreeSet<String>,
    scalings: BTreeSet<String>,
    norms: BTreeSet<String>,
    feed_forward: BTreeSet<String>,
    heads: BTreeSet<String>,
    weights: BTreeSet<String>,
    fixtures: usize,
    causal: bool,
}

impl Row {
    fn add(&mut self, name: &str) {
        let folder = fixture(name);
        let config = BertConfig::from_folder(&folder).unwrap();
        let model_type = config.model_type.clone();
        let load = |head| {
            let compute = Arc::new(CpuCompute::new().unwrap());
            BertModel::load_with_head(&folder, config.clone(), compute, head)
        };
        let model = load(HeadChoice::Configured).unwrap_or_else(|e| panic!("{name}: {e}"));
        let spec = model.spec();
        self.model_types.insert(format!("`{model_type}`"));
        self.positions.extend(positions(spec));
        if let ScorePositions::Rope(ropes) = &spec.attention.positions {
            self.scalings.extend(ropes.iter().filter_map(scaling).map(str::to_string));
        }
        self.norms.insert(norms(spec));
        let gated = if spec.feed_forward.gated { "gated " } else { "" };
        self.feed_forward.insert(format!("{gated}{}", spec.feed_forward.activation));
        self.heads.extend(head(spec));
        if Reference::open(name).names().iter().any(|n| n == "seq.0.splade") {
            self.heads.extend(head(load(HeadChoice::MaskedLm).unwrap().spec()));
        }
        let checkpoint = Checkpoint::open(&folder).unwrap();
        let used = model.report().used.iter().map(|name| checkpoint.get(name).unwrap().dtype_name().to_string());
        self.weights.extend(used);
        self.fixtures += 1;
        self.causal |= spec.attention.causal;
    }

    fn line(&self, title: &str) -> String {
        let list = |set: &BTreeSet<String>| match set.is_empty() {
            true => "none".to_string(),
            false => set.iter().cloned().collect::<Vec<_>>().join(", "),
        };
        let [types, mut positions, norms] = [&self.model_types, &self.positions, &self.norms].map(list);
        if !self.scalings.is_empty() {
            positions = positions.replace("rotary", &format!("rotary ({})", list(&self.scalings)));
        }
        let [feed_forward, heads, weights] = [&self.feed_forward, &self.heads, &self.weights].map(list);
        let count = self.fixtures;
        format!("| {title} | {types} | {positions} | {norms} | {feed_forward} | {heads} | {weights} | {count} |\n")
    }
}

fn positions(spec: &ModelSpec) -> Vec<String> {
    let learned = spec.embedding.positions.map(|p| match p.numbering {
        Numbering::Position => "learned".to_string(),
        Numbering::AfterPadding(_) => "learned after padding".to_string(),
    });
    let scores = match &spec.attention.positions {
        ScorePositions::None => vec![],
        ScorePositions::Alibi => vec!["ALiBi".to_string()],
        ScorePositions::Rope(_) => vec!["rotary".to_string()],
        ScorePositions::Buckets(_) => vec!["relative bias".to_string()],
        ScorePositions::Disentangled(_) => vec!["disentangled".to_string()],
    };
    let window = spec.layers.iter().any(|l| l.window.is_some()).then(|| "windows".to_string());
    learned.into_iter().chain(scores).chain(window).collect()
}

/// What rescales a rotation.
fn scaling(rope: &RopeSpec) -> Option<&'static str> {
    const KINDS: [&str; 6] = ["linear", "LLaMA 3", "LongRoPE", "mixed NTK", "NTK", "YaRN"];
    if let Some(LongFrequencies::DynamicNtk { .. }) = rope.longer.as_ref().map(|l| &l.frequencies) {
        return Some("dynamic NTK");
    }
    let kind = KINDS.iter().find(|kind| rope.rescaled.starts_with(**kind)).copied();
    assert!(kind.is_some() || rope.rescaled.is_empty(), "{}", rope.rescaled);
    kind
}

fn norms(spec: &ModelSpec) -> String {
    let place = match spec.norm.place {
        NormPlace::Post => "post",
        NormPlace::Pre => "pre",
        NormPlace::Both => "both sides",
        NormPlace::Parallel => "pre, parallel blocks",
    };
    let qk = if spec.attention.qk_norm.is_some() { ", queries and keys" } else { "" };
    format!("{} ({place}{qk})", spec.norm.kind)
}

fn head(spec: &ModelSpec) -> Option<String> {
    match spec.head {
        HeadSpec::None => None,
        HeadSpec::Classifier { .. } => Some("classifier".to_string()),
        HeadSpec::MaskedLm { .. } => Some("masked LM".to_string()),
        HeadSpec::CausalLm { .. } => Some("next token".to_string()),
    }
}

/// The block between the marks: encoders, then decoders, each in the order of their names.
fn table() -> String {
    let mut rows: Vec<(String, Row)> = Vec::new();
    for name in encoders().into_iter().chain(decoders()) {
        let config = BertConfig::from_folder(&fixture(&name)).unwrap();
        let title = title(config.architecture().unwrap(), &name);
        let at = rows.iter().position(|(known, _)| *known == title).unwrap_or(rows.len());
        if at == rows.len() {
            rows.push((title, Row::default()));
        }
        rows[at].1.add(&name);
    }
    let known = |name: &str| rows.iter().any(|(_, row)| row.model_types.contains(&format!("`{name}`")));
    for (name, _) in ModelArchitecture::ALL {
        assert!(known(name), "no fixture has the model type {name}");
    }
    rows.sort_by_key(|(title, row)| (row.causal, title.to_lowercase()));
    let head = "| family | `model_type` | positions | norms | feed-forward | heads | weights | fixtures |\n\
                |---|---|---|---|---|---|---|---|\n";
    rows.iter().fold(head.to_string(), |text, (title, row)| text + &row.line(title))
}

#[test]
fn the_readme_says_what_the_fixtures_show() {
    let file = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("README.md");
    let readme = std::fs::read_to_string(&file).unwrap();
    let begin = readme.find(BEGIN).expect("README.md has the mark of the table's beginning") + BEGIN.len();
    let end = begin + readme[begin..].find(END).expect("README.md has the mark of the table's end");
    let expected = table();
    if common::update() {
        std::fs::write(&file, [&readme[..begin], &expected, &readme[end..]].concat()).unwrap();
        return;
    }
    assert!(
        readme[begin..end] == expected,
        "README.md's table is not what the fixtures show; KIN_INFER_UPDATE=1 cargo test --test support_table writes \
         this between its marks:\n{expected}"
    );
}
