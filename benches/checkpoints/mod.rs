//! A random checkpoint of each family: its config.json and its tensors, named as published checkpoints name them.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use kin_infer::gpu::GpuCompute;
use kin_infer::{BertConfig, BertModel};
use safetensors::tensor::{Dtype, TensorView, serialize_to_file};
use serde_json::{Value, json};

/// What all families share.
#[derive(Clone, Copy)]
pub struct Size {
    pub hidden: usize,
    pub heads: usize,
    pub layers: usize,
    pub vocab: usize,
    pub tokens: usize,
}

/// One family's checkpoint, described.
pub struct Family {
    pub name: &'static str,
    config: Value,
    tensors: Vec<(String, Vec<usize>)>,
}

/// Tensors by the parts that families are made of.
struct Tensors(Vec<(String, Vec<usize>)>);

impl Tensors {
    fn add(&mut self, name: impl Into<String>, shape: &[usize]) -> &mut Self {
        self.0.push((name.into(), shape.to_vec()));
        self
    }

    fn linear(&mut self, name: &str, n: usize, k: usize) -> &mut Self {
        self.add(format!("{name}.weight"), &[n, k]).add(format!("{name}.bias"), &[n])
    }

    fn norm(&mut self, name: &str, n: usize) -> &mut Self {
        self.add(format!("{name}.weight"), &[n]).add(format!("{name}.bias"), &[n])
    }

    /// Word, token type (0 of them: none) and position embeddings, and their norm.
    fn embeddings(&mut self, s: Size, width: usize, types: usize, positions: usize) -> &mut Self {
        self.add("embeddings.word_embeddings.weight", &[s.vocab, width]);
        for (name, rows) in [("token_type", types), ("position", positions)] {
            if rows > 0 {
                self.add(format!("embeddings.{name}_embeddings.weight"), &[rows, width]);
            }
        }
        self.norm("embeddings.LayerNorm", width)
    }

    /// A layer of linear layers, (name, rows, columns), and norms of the hidden size.
    fn layer(&mut self, s: Size, at: &str, linear: &[(&str, usize, usize)], norms: &[&str]) -> &mut Self {
        for (name, n, k) in linear {
            self.linear(&format!("{at}.{name}"), *n, *k);
        }
        for name in norms {
            self.norm(&format!("{at}.{name}"), s.hidden);
        }
        self
    }

    /// BERT's layers, of which attention's projections have these names.
    fn bert_layers(&mut self, s: Size, projections: &[&str]) -> &mut Self {
        let (h, i) = (s.hidden, 4 * s.hidden);
        for l in 0..s.layers {
            let at = format!("encoder.layer.{l}");
            for name in projections {
                self.linear(&format!("{at}.attention.self.{name}"), h, h);
            }
            let linear = [("attention.output.dense", h, h), ("intermediate.dense", i, h), ("output.dense", h, i)];
            self.layer(s, &at, &linear, &["attention.output.LayerNorm", "output.LayerNorm"]);
        }
        self
    }
}

const QKV: [&str; 3] = ["query", "key", "value"];

/// Every family, at the proportions of its base model.
pub fn families(s: Size) -> Vec<Family> {
    let mut families = vec![bert(s), roberta(s), albert(s), electra(s), distilbert(s), mpnet(s)];
    families.extend([jina(s), nomic(s), gte(s), modernbert(s), t5(s)]);
    families.extend([deberta(s), deberta_v2(s, "deberta-v2", 0), deberta_v2(s, "deberta-v2, convolution", 3)]);
    families
}

/// The family's own keys over those that most share.
fn family(name: &'static str, s: Size, own: Value, tensors: &mut Tensors) -> Family {
    let mut config = json!({
        "hidden_size": s.hidden, "num_hidden_layers": s.layers, "num_attention_heads": s.heads,
        "intermediate_size": 4 * s.hidden, "vocab_size": s.vocab, "max_position_embeddings": s.tokens,
        "hidden_act": "gelu",
    });
    if let (Some(config), Some(own)) = (config.as_object_mut(), own.as_object()) {
        config.extend(own.clone());
    }
    Family { name, config, tensors: std::mem::take(&mut tensors.0) }
}

fn bert(s: Size) -> Family {
    let mut t = Tensors(Vec::new());
    t.embeddings(s, s.hidden, 2, s.tokens).bert_layers(s, &QKV);
    family("bert", s, json!({"model_type": "bert"}), &mut t)
}

fn roberta(s: Size) -> Family {
    let mut t = Tensors(Vec::new());
    t.embeddings(s, s.hidden, 1, s.tokens + 2).bert_layers(s, &QKV);
    let own = json!({"model_type": "roberta", "max_position_embeddings": s.tokens + 2, "type_vocab_size": 1});
    family("roberta", s, own, &mut t)
}

fn albert(s: Size) -> Family {
    let (mut t, h, i, width) = (Tensors(Vec::new()), s.hidden, 4 * s.hidden, s.hidden / 6);
    t.embeddings(s, width, 2, s.tokens).linear("encoder.embedding_hidden_mapping_in", h, width);
    let attention = ["query", "key", "value", "dense"].map(|p| format!("attention.{p}"));
    let mut linear: Vec<_> = attention.iter().map(|name| (name.as_str(), h, h)).collect();
    linear.extend([("ffn", i, h), ("ffn_output", h, i)]);
    let norms = ["attention.LayerNorm", "full_layer_layer_norm"];
    t.layer(s, "encoder.albert_layer_groups.0.albert_layers.0", &linear, &norms);
    family("albert", s, json!({"model_type": "albert", "embedding_size": width, "hidden_act": "gelu_new"}), &mut t)
}

fn electra(s: Size) -> Family {
    let (mut t, width) = (Tensors(Vec::new()), s.hidden / 6);
    t.embeddings(s, width, 2, s.tokens).linear("embeddings_project", s.hidden, width).bert_layers(s, &QKV);
    family("electra", s, json!({"model_type": "electra", "embedding_size": width}), &mut t)
}

fn distilbert(s: Size) -> Family {
    let (mut t, h, i) = (Tensors(Vec::new()), s.hidden, 4 * s.hidden);
    t.embeddings(s, h, 0, s.tokens);
    for l in 0..s.layers {
        let attention = ["q_lin", "k_lin", "v_lin", "out_lin"].map(|p| format!("attention.{p}"));
        let mut linear: Vec<_> = attention.iter().map(|name| (name.as_str(), h, h)).collect();
        linear.extend([("ffn.lin1", i, h), ("ffn.lin2", h, i)]);
        t.layer(s, &format!("transformer.layer.{l}"), &linear, &["sa_layer_norm", "output_layer_norm"]);
    }
    let own = json!({"model_type": "distilbert", "dim": h, "n_layers": s.layers, "n_heads": s.heads, "hidden_dim": i});
    family("distilbert", s, own, &mut t)
}

fn mpnet(s: Size) -> Family {
    let (mut t, h, i) = (Tensors(Vec::new()), s.hidden, 4 * s.hidden);
    t.embeddings(s, h, 0, s.tokens + 2).add("encoder.relative_attention_bias.weight", &[32, s.heads]);
    for l in 0..s.layers {
        let attention = ["q", "k", "v", "o"].map(|p| format!("attention.attn.{p}"));
        let mut linear: Vec<_> = attention.iter().map(|name| (name.as_str(), h, h)).collect();
        linear.extend([("intermediate.dense", i, h), ("output.dense", h, i)]);
        t.layer(s, &format!("encoder.layer.{l}"), &linear, &["attention.LayerNorm", "output.LayerNorm"]);
    }
    family("mpnet", s, json!({"model_type": "mpnet", "max_position_embeddings": s.tokens + 2}), &mut t)
}

fn jina(s: Size) -> Family {
    let (mut t, h, i) = (Tensors(Vec::new()), s.hidden, 4 * s.hidden);
    t.embeddings(s, h, 2, 0);
    for l in 0..s.layers {
        let attention = QKV.map(|p| format!("attention.self.{p}"));
        let mut linear: Vec<_> = attention.iter().map(|name| (name.as_str(), h, h)).collect();
        linear.extend([("attention.output.dense", h, h), ("mlp.wo", h, i)]);
        let at = format!("encoder.layer.{l}");
        t.layer(s, &at, &linear, &["attention.output.LayerNorm", "mlp.layernorm"]);
        t.add(format!("{at}.mlp.gated_layers.weight"), &[2 * i, h]);
    }
    let own = json!({
        "model_type": "bert", "architectures": ["JinaBertModel"], "position_embedding_type": "alibi",
        "feed_forward_type": "geglu",
    });
    family("jina", s, own, &mut t)
}

fn nomic(s: Size) -> Family {
    let (mut t, h, i) = (Tensors(Vec::new()), s.hidden, 4 * s.hidden);
    t.embeddings(s, h, 2, 0);
    for l in 0..s.layers {
        let at = format!("encoder.layers.{l}");
        t.layer(s, &at, &[], &["norm1", "norm2"]);
        let linear = [("attn.Wqkv", 3 * h, h), ("attn.out_proj", h, h), ("mlp.fc11", i, h), ("mlp.fc12", i, h)];
        for (name, n, k) in linear.into_iter().chain([("mlp.fc2", h, i)]) {
            t.add(format!("{at}.{name}.weight"), &[n, k]);
        }
    }
    let own = json!({
        "model_type": "nomic_bert", "n_embd": h, "n_layer": s.layers, "n_head": s.heads, "n_inner": i,
        "activation_function": "swiglu", "rotary_emb_fraction": 1.0, "type_vocab_size": 2,
    });
    family("nomic", s, own, &mut t)
}

fn gte(s: Size) -> Family {
    let (mut t, h, i) = (Tensors(Vec::new()), s.hidden, 4 * s.hidden);
    t.embeddings(s, h, 0, 0);
    for l in 0..s.layers {
        let at = format!("encoder.layer.{l}");
        let linear = [("attention.qkv_proj", 3 * h, h), ("attention.o_proj", h, h), ("mlp.down_proj", h, i)];
        t.layer(s, &at, &linear, &["attn_ln", "mlp_ln"]).add(format!("{at}.mlp.up_gate_proj.weight"), &[2 * i, h]);
    }
    let scaling = json!({"type": "ntk", "factor": 2.0});
    family("gte", s, json!({"model_type": "new", "rope_theta": 500_000, "rope_scaling": scaling}), &mut t)
}

fn modernbert(s: Size) -> Family {
    let (mut t, h, i) = (Tensors(Vec::new()), s.hidden, s.hidden * 3 / 2);
    t.add("embeddings.tok_embeddings.weight", &[s.vocab, h]).add("embeddings.norm.weight", &[h]);
    for l in 0..s.layers {
        let at = format!("layers.{l}");
        if l > 0 {
            t.add(format!("{at}.attn_norm.weight"), &[h]);
        }
        t.add(format!("{at}.mlp_norm.weight"), &[h]);
        for (name, n, k) in [("attn.Wqkv", 3 * h, h), ("attn.Wo", h, h), ("mlp.Wi", 2 * i, h), ("mlp.Wo", h, i)] {
            t.add(format!("{at}.{name}.weight"), &[n, k]);
        }
    }
    t.add("final_norm.weight", &[h]);
    family("modernbert", s, json!({"model_type": "modernbert", "intermediate_size": i}), &mut t)
}

fn t5(s: Size) -> Family {
    let (mut t, h, i) = (Tensors(Vec::new()), s.hidden, s.hidden * 8 / 3);
    t.add("shared.weight", &[s.vocab, h]);
    t.add("encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight", &[32, s.heads]);
    for l in 0..s.layers {
        let at = format!("encoder.block.{l}.layer");
        for part in ["q", "k", "v", "o"] {
            t.add(format!("{at}.0.SelfAttention.{part}.weight"), &[h, h]);
        }
        for (part, n, k) in [("wi_0", i, h), ("wi_1", i, h), ("wo", h, i)] {
            t.add(format!("{at}.1.DenseReluDense.{part}.weight"), &[n, k]);
        }
        t.add(format!("{at}.0.layer_norm.weight"), &[h]).add(format!("{at}.1.layer_norm.weight"), &[h]);
    }
    t.add("encoder.final_layer_norm.weight", &[h]);
    let own = json!({
        "model_type": "t5", "d_model": h, "num_layers": s.layers, "num_heads": s.heads, "d_ff": i,
        "d_kv": h / s.heads, "feed_forward_proj": "gated-gelu",
    });
    family("t5", s, own, &mut t)
}

/// The keys of disentangled attention.
fn disentangled(model_type: &str) -> Value {
    json!({
        "model_type": model_type, "relative_attention": true, "pos_att_type": ["c2p", "p2c"],
        "position_biased_input": false, "type_vocab_size": 0,
    })
}

fn deberta(s: Size) -> Family {
    let (mut t, h) = (Tensors(Vec::new()), s.hidden);
    t.embeddings(s, h, 0, 0).add("encoder.rel_embeddings.weight", &[2 * s.tokens, h]).bert_layers(s, &[]);
    for l in 0..s.layers {
        let at = format!("encoder.layer.{l}.attention.self");
        t.add(format!("{at}.in_proj.weight"), &[3 * h, h]);
        t.add(format!("{at}.q_bias"), &[h]).add(format!("{at}.v_bias"), &[h]);
        t.add(format!("{at}.pos_proj.weight"), &[h, h]).linear(&format!("{at}.pos_q_proj"), h, h);
    }
    family("deberta", s, disentangled("deberta"), &mut t)
}

fn deberta_v2(s: Size, name: &'static str, taps: usize) -> Family {
    let (mut t, h, buckets) = (Tensors(Vec::new()), s.hidden, s.tokens / 2);
    t.embeddings(s, h, 0, 0).add("encoder.rel_embeddings.weight", &[2 * buckets, h]).norm("encoder.LayerNorm", h);
    t.bert_layers(s, &["query_proj", "key_proj", "value_proj"]);
    let mut own = disentangled("deberta-v2");
    own["position_buckets"] = json!(buckets);
    own["share_att_key"] = json!(true);
    own["norm_rel_ebd"] = json!("layer_norm");
    if taps > 0 {
        own["conv_kernel_size"] = json!(taps);
        own["conv_act"] = json!("gelu");
        t.add("encoder.conv.conv.weight", &[h, h, taps]).add("encoder.conv.conv.bias", &[h]);
        t.norm("encoder.conv.LayerNorm", h);
    }
    family(name, s, own, &mut t)
}

/// A folder that is removed again.
struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0); // what is left in a temporary folder does no harm
    }
}

/// Small random values; a norm's scales are near 1.
pub struct Values {
    weights: Vec<u8>,
    scales: Vec<u8>,
}

impl Values {
    /// Enough for the tensors of these families.
    pub fn new(families: &[Family]) -> Self {
        let len = |t: &(String, Vec<usize>)| t.1.iter().product::<usize>();
        let most = families.iter().flat_map(|f| f.tensors.iter().map(len)).max().unwrap_or(0);
        let mut state = 0x9e37_79b9_7f4a_7c15u64;
        let mut uniform = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 40) as f32 / (1u32 << 24) as f32 - 0.5
        };
        let weights = (0..most).flat_map(|_| (uniform() * 0.1).to_le_bytes()).collect();
        let scales = (0..most.min(1 << 16)).flat_map(|_| (1.0 + uniform() * 0.5).to_le_bytes()).collect();
        Self { weights, scales }
    }
}

impl Family {
    /// Writes the checkpoint into a temporary folder and loads it onto a backend.
    pub fn load(&self, values: &Values, compute: Arc<dyn GpuCompute>) -> kin_infer::Result<BertModel> {
        let unique = format!("kin-infer-families-{}-{}", std::process::id(), self.name.replace(", ", "-"));
        let folder = Folder(std::env::temp_dir().join(unique));
        self.write(&folder.0, values).expect("a temporary folder");
        BertModel::load_with_compute(&folder.0, BertConfig::from_folder(&folder.0)?, compute)
    }

    fn write(&self, folder: &Path, values: &Values) -> std::io::Result<()> {
        std::fs::create_dir_all(folder)?;
        std::fs::write(folder.join("config.json"), self.config.to_string())?;
        let views = self.tensors.iter().map(|(name, shape)| {
            let norm = shape.len() == 1 && name.ends_with(".weight");
            let bytes = &(if norm { &values.scales } else { &values.weights })[..shape.iter().product::<usize>() * 4];
            (name, TensorView::new(Dtype::F32, shape.clone(), bytes).expect("the bytes fit the shape"))
        });
        serialize_to_file(views, None, &folder.join("model.safetensors")).map_err(std::io::Error::other)
    }
}
