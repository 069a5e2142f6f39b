//! Which tokenizer a folder without `tokenizer.json` holds: a family per row, found by class or by model type.

use std::path::Path;

use serde_json::Value;

use super::special::Role;
use super::template::Template;
use super::{failure, template};
use crate::error::Result;
use crate::modules::json::JsonFile;

/// What tells one family from another.
pub(super) struct Family {
    /// Values of `tokenizer_class`, without `Tokenizer` and `Fast`.
    classes: &'static [&'static str],
    /// Values of `model_type` in config.json, for folders that name no class.
    model_types: &'static [&'static str],
    pub(super) vocabulary: Vocabulary,
    pub(super) template: Template,
    /// Special tokens where the configuration says nothing.
    pub(super) roles: &'static [(Role, &'static str)],
    /// Whether a mask token given as plain text takes the spaces before it.
    pub(super) mask_strips_left: bool,
}

/// The files of a family and how they are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Vocabulary {
    /// vocab.txt.
    WordPiece,
    /// vocab.json and merges.txt.
    ByteBpe(Split),
    /// A SentencePiece model.
    SentencePiece(Layout),
}

/// How a text is cut before byte-level BPE.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Split {
    Gpt2,
    /// As GPT-2's, with digits one by one.
    Digits,
    Qwen2,
    /// Words of the vocabulary come out whole, whatever the merges.
    Llama3,
    /// As LLaMA 3's, with merges as elsewhere.
    Dbrx,
}

/// How the ids of a model relate to the pieces of its SentencePiece file, and what happens to the text before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Layout {
    T5,
    XlmRoberta,
    Camembert,
    Albert,
    DebertaV2,
    Llama,
    Gemma,
}

use Role::{Bos, Cls, Eos, Mask, Pad, Sep, Unk};
use Vocabulary::{ByteBpe, SentencePiece, WordPiece};

type Roles = &'static [(Role, &'static str)];

const BERT_ROLES: Roles = &[(Unk, "[UNK]"), (Sep, "[SEP]"), (Pad, "[PAD]"), (Cls, "[CLS]"), (Mask, "[MASK]")];
const ROBERTA_ROLES: Roles =
    &[(Bos, "<s>"), (Eos, "</s>"), (Unk, "<unk>"), (Sep, "</s>"), (Pad, "<pad>"), (Cls, "<s>"), (Mask, "<mask>")];
const MPNET_ROLES: Roles =
    &[(Bos, "<s>"), (Eos, "</s>"), (Unk, "[UNK]"), (Sep, "</s>"), (Pad, "<pad>"), (Cls, "<s>"), (Mask, "<mask>")];
const DEBERTA_ROLES: Roles =
    &[(Bos, "[CLS]"), (Eos, "[SEP]"), (Unk, "[UNK]"), (Sep, "[SEP]"), (Pad, "[PAD]"), (Cls, "[CLS]"), (Mask, "[MASK]")];
const ALBERT_ROLES: Roles =
    &[(Bos, "[CLS]"), (Eos, "[SEP]"), (Unk, "<unk>"), (Sep, "[SEP]"), (Pad, "<pad>"), (Cls, "[CLS]"), (Mask, "[MASK]")];
const LLAMA_ROLES: Roles = &[(Bos, "<s>"), (Eos, "</s>"), (Unk, "<unk>")];
const GEMMA_ROLES: Roles = &[(Bos, "<bos>"), (Eos, "<eos>"), (Unk, "<unk>"), (Pad, "<pad>"), (Mask, "<mask>")];
const GPT2_ROLES: Roles = &[(Bos, "<|endoftext|>"), (Eos, "<|endoftext|>"), (Unk, "<|endoftext|>")];
const QWEN2_ROLES: Roles = &[(Eos, "<|endoftext|>"), (Unk, "<|endoftext|>"), (Pad, "<|endoftext|>")];
const T5_ROLES: Roles = &[(Eos, "</s>"), (Unk, "<unk>"), (Pad, "<pad>")];

/// BERT WordPiece: also what a vocab.txt is when nothing names its family.
static BERT: Family = Family {
    classes: &["Bert", "DistilBert", "Electra", "MobileBert", "ConvBert", "SqueezeBert"],
    model_types: &["bert", "distilbert", "electra", "mobilebert", "convbert", "squeezebert"],
    ..family(WordPiece, template::BERT, BERT_ROLES)
};

/// Byte-level BPE of models whose configuration is of the LLaMA kind: found by its files.
static LLAMA3: Family = family(ByteBpe(Split::Llama3), template::AFTER_BOS, &[]);

static OTHERS: [Family; 12] = [
    Family {
        classes: &["MPNet"],
        model_types: &["mpnet"],
        mask_strips_left: true,
        ..family(WordPiece, template::ROBERTA, MPNET_ROLES)
    },
    Family {
        classes: &["Roberta", "Bart", "Longformer", "LED"],
        model_types: &["roberta", "roberta-prelayernorm", "bart", "longformer", "led", "data2vec-text"],
        ..family(ByteBpe(Split::Gpt2), template::ROBERTA, ROBERTA_ROLES)
    },
    Family {
        classes: &["Deberta"],
        model_types: &["deberta"],
        ..family(ByteBpe(Split::Gpt2), template::BERT, DEBERTA_ROLES)
    },
    Family {
        classes: &["GPT2", "CodeGen"],
        model_types: &["gpt2", "gpt_neo", "gptj", "codegen", "opt", "gpt_bigcode", "starcoder2", "phi"],
        ..family(ByteBpe(Split::Gpt2), template::PLAIN, GPT2_ROLES)
    },
    Family {
        classes: &["Qwen2"],
        model_types: &["qwen2", "qwen2_moe", "qwen3", "qwen3_moe"],
        ..family(ByteBpe(Split::Qwen2), template::PLAIN, QWEN2_ROLES)
    },
    Family {
        classes: &["T5", "MT5"],
        model_types: &["t5", "mt5", "switch_transformers"],
        ..family(SentencePiece(Layout::T5), template::T5, T5_ROLES)
    },
    Family {
        classes: &["XLMRoberta"],
        model_types: &["xlm-roberta", "xlm-roberta-xl"],
        ..family(SentencePiece(Layout::XlmRoberta), template::FAIRSEQ, ROBERTA_ROLES)
    },
    Family {
        classes: &["Camembert"],
        model_types: &["camembert"],
        mask_strips_left: true,
        ..family(SentencePiece(Layout::Camembert), template::FAIRSEQ, ROBERTA_ROLES)
    },
    Family {
        classes: &["Albert"],
        model_types: &["albert"],
        ..family(SentencePiece(Layout::Albert), template::BERT, ALBERT_ROLES)
    },
    Family {
        classes: &["DebertaV2"],
        model_types: &["deberta-v2"],
        ..family(SentencePiece(Layout::DebertaV2), template::BERT, DEBERTA_ROLES)
    },
    Family {
        classes: &["Llama"],
        model_types: &["llama", "mistral", "mixtral"],
        ..family(SentencePiece(Layout::Llama), template::AFTER_BOS, LLAMA_ROLES)
    },
    Family {
        classes: &["Gemma"],
        model_types: &["gemma", "gemma2", "gemma3", "gemma3_text"],
        ..family(SentencePiece(Layout::Gemma), template::AFTER_BOS, GEMMA_ROLES)
    },
];

const fn family(vocabulary: Vocabulary, template: Template, roles: Roles) -> Family {
    Family { classes: &[], model_types: &[], vocabulary, template, roles, mask_strips_left: false }
}

/// Classes that say only which program reads the folder.
const GENERAL_CLASSES: [&str; 3] = ["PreTrainedTokenizer", "PreTrainedTokenizerFast", "TokenizersBackend"];

/// The family of a folder: by `tokenizer_class` of tokenizer_config.json, else of config.json, else by `model_type`;
/// BERT where they say nothing. An unknown class is an error.
pub(super) fn of_folder(folder: &Path, config: &JsonFile) -> Result<&'static Family> {
    let model = JsonFile::optional(folder.join("config.json"))?;
    for file in [config, &model] {
        let class = file.text("tokenizer_class")?.filter(|class| !GENERAL_CLASSES.contains(class));
        if let Some(class) = class {
            let known = of_class(class);
            let detail = || format!("`tokenizer_class` is `{class}`, which is not supported without tokenizer.json");
            return known.ok_or_else(|| failure(&file.file, detail()));
        }
    }
    let model_type = model.get("model_type").and_then(Value::as_str).unwrap_or_default();
    let found = families().find(|family| family.model_types.contains(&model_type)).unwrap_or(&BERT);
    let bytes = folder.join("vocab.json").is_file() && folder.join("merges.txt").is_file();
    Ok(if found.vocabulary == SentencePiece(Layout::Llama) && bytes { &LLAMA3 } else { found })
}

/// Byte-level BPE of models whose configuration is of the LLaMA kind.
pub(super) fn llama3() -> &'static Family {
    &LLAMA3
}

/// The family of a tokenizer class.
pub(super) fn of_class(class: &str) -> Option<&'static Family> {
    let name = class.trim_end_matches("Fast").strip_suffix("Tokenizer")?;
    families().find(|family| family.classes.contains(&name))
}

/// Whether a class is one of BERT's, whose normaliser its configuration settles; `None` when the file names no class.
pub(super) fn is_bert(config: &JsonFile) -> Result<Option<bool>> {
    let class = config.text("tokenizer_class")?;
    Ok(class.map(|class| of_class(class).is_some_and(|family| std::ptr::eq(family, &BERT))))
}

fn families() -> impl Iterator<Item = &'static Family> {
    std::iter::once(&BERT).chain(&OTHERS)
}
