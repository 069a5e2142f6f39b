#!/usr/bin/env python3
"""Writes the tiny random checkpoints and float64 reference outputs under tests/fixtures.

    python tools/make_fixtures.py                        every fixture but minilm
    python tools/make_fixtures.py --only bert-base       one fixture (may be repeated)
    python tools/make_fixtures.py --minilm FOLDER        all-MiniLM-L6-v2, a sentence-transformers folder

A BERT fixture is a folder with config.json, model.safetensors (or shards) and expected.safetensors:

    input.<i>.ids, input.<i>.types        I64 [len]     one sequence, run alone
    seq.<i>.hidden                        F64 [len, H]  last hidden state
    seq.<i>.labels                        F64 [labels]  raw logits, no sigmoid or softmax (classifiers only)
    seq.<i>.embeddings                    F64 [len, H]  after the embedding LayerNorm
    seq.<i>.layer.<l>.attn_context        F64 [len, H]  attention, before its output projection
    seq.<i>.layer.<l>.attn_norm           F64 [len, H]  after the attention residual and LayerNorm
    seq.<i>.layer.<l>.ffn_act             F64 [len, I]  after the activation
    seq.<i>.layer.<l>.out                 F64 [len, H]  layer output
    padded.ids, padded.mask               I64 [B, T]    one batch with padding left, right and in the middle
    padded.hidden                         F64 [B, T, H] token types 0, positions 0..T; zeros where mask is 0

To keep files small the intermediates are written for sequences of at most 33 tokens, and not at all for bert-long.
The reference is transformers (eager attention) on the stored weights widened to float64, on one CPU thread. A seed is
the CRC-32 of the fixture's name. st-tiny and minilm hold text.<i>, query.<i> (vectors) and text.<i>.ids, query.<i>.ids.
"""

import argparse
import json
import math
import os
import string
import zlib
from importlib.metadata import version
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"  # before the imports that read it

import mpmath
import numpy as np
import safetensors.torch
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Pooling
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from torch import nn
from transformers import BertConfig, BertForPreTraining, BertForSequenceClassification, BertModel
from transformers.utils import logging

FIXTURES = Path(__file__).resolve().parent.parent / "tests" / "fixtures"

# hidden, heads, intermediate, and what differs from a plain bare BertModel.
VARIANTS = {
    "bert-base": dict(dims=(32, 4, 96), position_ids=True),
    "bert-prefixed": dict(dims=(32, 4, 100), model=BertForPreTraining, gamma_beta=True),
    "bert-gelu-new": dict(dims=(36, 3, 77), config=dict(hidden_act="gelu_new", type_vocab_size=1)),
    "bert-relu": dict(dims=(48, 2, 61), config=dict(hidden_act="relu", layer_norm_eps=1e-3)),
    "bert-alibi": dict(dims=(32, 4, 64), alibi=True),
    "bert-alibi-heads6": dict(dims=(36, 6, 72), alibi=True),
    "bert-f16": dict(dims=(32, 2, 128), dtype=torch.float16),
    "bert-bf16": dict(dims=(40, 5, 80), dtype=torch.bfloat16),
    "bert-sharded": dict(dims=(32, 4, 96), sharded=True),
    "bert-classifier-1": dict(dims=(32, 4, 64), model=BertForSequenceClassification, labels=("LABEL_0",)),
    "bert-classifier-3": dict(dims=(36, 3, 72), model=BertForSequenceClassification,
                              labels=("contradiction", "entailment", "neutral")),
    "bert-long": dict(dims=(16, 2, 1100), lengths=(3, 512, 530, 600), intermediates=False,
                      config=dict(num_hidden_layers=1, max_position_embeddings=600)),
}


def seed_of(name):
    return zlib.crc32(name.encode())


def write_json(path, value):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def write_tensors(path, tensors, **metadata):
    """At most one metadata entry, so that the file's bytes do not depend on a hash map's order."""
    path.parent.mkdir(parents=True, exist_ok=True)
    tensors = {name: t.clone().contiguous() for name, t in tensors.items()}
    safetensors.torch.save_file(tensors, path, metadata=metadata)
    print(f"{path.relative_to(FIXTURES)}: {path.stat().st_size} bytes, {len(tensors)} tensors")
    assert path.stat().st_size < 300_000, "too large"


def write_expected(folder, tensors, description):
    for name, t in tensors.items():
        assert t.dtype in (torch.int64, torch.float64) and t.isfinite().all(), name
    packages = ("torch", "transformers", "sentence-transformers")
    provenance = {"seed": seed_of(folder.name), "reference": description} | {p: version(p) for p in packages}
    write_tensors(folder / "expected.safetensors", tensors, provenance=json.dumps(provenance, sort_keys=True))


def random_weights(model, rng):
    """Every parameter random; the spread of a matrix follows its row length so that no output is degenerate."""
    weights = {}
    for name, tensor in model.state_dict().items():
        noise = rng.standard_normal(tuple(tensor.shape))
        if name.endswith(("LayerNorm.weight", "norm.weight")):
            value = 1 + 0.2 * noise
        elif name.endswith("bias"):
            value = 0.2 * noise
        elif "embeddings" in name:
            value = 0.25 * noise
        else:
            value = noise * min(0.3, max(0.1, 1.2 / math.sqrt(tensor.shape[-1])))
        weights[name] = torch.from_numpy(value).float()
    return weights


def alibi_mask(heads, mask):
    """[B, heads, T, T] float mask: -slope * |i - j|, and the lowest float64 where the key is padding."""
    below = 2 ** int(math.log2(heads))  # not a power of two: then every other slope of the power above
    first, second = ([2.0 ** (-8 * (h + 1) / n) for h in range(n)] for n in (below, 2 * below))
    slopes = torch.tensor(first + second[0::2][: heads - below], dtype=torch.float64)
    position = torch.arange(mask.shape[-1], dtype=torch.float64)
    bias = -slopes[:, None, None] * (position[:, None] - position[None, :]).abs()
    return bias[None].masked_fill(mask[:, None, None, :] == 0, torch.finfo(torch.float64).min)


def bert_config(variant):
    hidden, heads, intermediate = variant["dims"]
    labels, model = variant.get("labels"), variant.get("model", BertModel)
    config = {
        "architectures": [model.__name__], "model_type": "bert", "vocab_size": 101, "type_vocab_size": 2,
        "hidden_size": hidden, "num_hidden_layers": 2, "num_attention_heads": heads, "intermediate_size": intermediate,
        "hidden_act": "gelu", "layer_norm_eps": 1e-12, "max_position_embeddings": 40, "pad_token_id": 0,
        "position_embedding_type": "alibi" if variant.get("alibi") else "absolute", "hidden_dropout_prob": 0.1,
        "torch_dtype": str(variant.get("dtype", torch.float32)).removeprefix("torch."),
    }
    if labels:
        config |= {"id2label": dict(enumerate(labels)), "label2id": {label: i for i, label in enumerate(labels)}}
    return model, config | variant.get("config", {})


def write_checkpoint(folder, variant, model_class, config, rng):
    weights = random_weights(model_class(BertConfig(**config)), rng)
    if variant.get("alibi"):
        weights = {n: w for n, w in weights.items() if "position_embeddings" not in n and "pooler" not in n}
    if model_class is BertForPreTraining:
        weights["cls.predictions.decoder.weight"] = weights["bert.embeddings.word_embeddings.weight"].clone()
        weights["cls.predictions.decoder.bias"] = weights["cls.predictions.bias"].clone()
    if variant.get("gamma_beta"):
        old = {n: n.replace("Norm.weight", "Norm.gamma").replace("Norm.bias", "Norm.beta") for n in weights}
        weights = {old[name]: w for name, w in weights.items()}
    weights = {name: w.to(variant.get("dtype", torch.float32)) for name, w in weights.items()}
    if variant.get("position_ids"):  # an integer buffer that old checkpoints carry and nothing reads
        weights["embeddings.position_ids"] = torch.arange(config["max_position_embeddings"])[None]
    write_json(folder / "config.json", config)
    files = {"model.safetensors": weights}
    if variant.get("sharded"):  # interleaved: every layer has tensors in both files
        shards = sorted(weights)[0::2], sorted(weights)[1::2]
        files = {f"model-{i:05}-of-00002.safetensors": {n: weights[n] for n in s} for i, s in enumerate(shards, 1)}
        weight_map = {name: file for file, shard in files.items() for name in shard}
        total = sum(w.nbytes for w in weights.values())
        write_json(folder / "model.safetensors.index.json",
                   {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))})
    for file, shard in files.items():
        write_tensors(folder / file, shard, format="pt")


def load_reference(folder, model_class, alibi):
    """The stored weights through the library's own loader, widened to float64."""
    options = dict(dtype=torch.float32, attn_implementation="eager", output_loading_info=True)
    model, info = model_class.from_pretrained(folder, **options)
    absent = {"embeddings.position_embeddings.weight", "pooler.dense.weight", "pooler.dense.bias"} if alibi else set()
    assert set(info["missing_keys"]) == absent and set(info["unexpected_keys"]) <= {"embeddings.position_ids"}, info
    if alibi:
        model.embeddings.position_embeddings.weight.data.zero_()
    return model.double().eval()


def watch(bert):
    """Forward hooks that keep the intermediates of the first row; returns the dictionary they fill."""
    seen = {}

    def keep(name, module):
        def hook(_module, _args, output):
            seen[name] = (output[0] if isinstance(output, tuple) else output)[0]
        module.register_forward_hook(hook)

    keep("embeddings", bert.embeddings)
    for i, layer in enumerate(bert.encoder.layer):
        keep(f"layer.{i}.attn_context", layer.attention.self)
        keep(f"layer.{i}.attn_norm", layer.attention.output)
        keep(f"layer.{i}.ffn_act", layer.intermediate)
        keep(f"layer.{i}.out", layer)
    return seen


def padded_batch(rng, vocab):
    """Row 0 full, then padding on the right, on the left, in the middle; padding ids are random in the last row."""
    mask = np.ones((4, 20), dtype=np.int64)
    mask[1, 13:] = mask[2, :11] = mask[3, 3:6] = mask[3, 11] = 0
    ids = rng.integers(1, vocab, size=mask.shape)
    ids[1:3] *= mask[1:3]
    return torch.from_numpy(ids), torch.from_numpy(mask)


@torch.no_grad()
def make_bert(name):
    variant, folder, rng = VARIANTS[name], FIXTURES / name, np.random.default_rng(seed_of(name))
    model_class, config = bert_config(variant)
    alibi, labels, heads = variant.get("alibi", False), variant.get("labels"), config["num_attention_heads"]
    write_checkpoint(folder, variant, model_class, config, rng)
    model = load_reference(folder, model_class, alibi)
    bert = getattr(model, "bert", model)
    seen, tensors = watch(bert), {}

    def run(ids, types, mask):
        hidden = plain = bert(input_ids=ids, token_type_ids=types, attention_mask=mask).last_hidden_state
        if alibi:
            hidden = bert(input_ids=ids, token_type_ids=types, attention_mask=alibi_mask(heads, mask)).last_hidden_state
            assert ids.shape[1] <= 2 or (hidden - plain).abs().max() > 1e-2, "the float mask was not added"
        return hidden

    for i, length in enumerate(variant.get("lengths", (1, 2, 7, 17, 33, 40))):
        ids = torch.from_numpy(rng.integers(0, config["vocab_size"], size=length))
        second = (labels or i % 2 == 1) and config["type_vocab_size"] > 1
        types = (torch.arange(length) >= (length + 1) // 2).long() if second else torch.zeros_like(ids)
        hidden = run(ids[None], types[None], torch.ones_like(ids)[None])[0]
        tensors |= {f"input.{i}.ids": ids, f"input.{i}.types": types, f"seq.{i}.hidden": hidden}
        if variant.get("intermediates", True) and length <= 33:
            tensors |= {f"seq.{i}.{key}": value for key, value in seen.items()}
        if labels:
            tensors[f"seq.{i}.labels"] = model(input_ids=ids[None], token_type_ids=types[None]).logits[0]
    ids, mask = padded_batch(rng, config["vocab_size"])
    hidden = run(ids, torch.zeros_like(ids), mask) * mask[..., None]
    tensors |= {"padded.ids": ids, "padded.mask": mask, "padded.hidden": hidden}
    description = f"transformers {model_class.__name__}, stored weights widened to float64, eager attention, CPU"
    description += "; no position embeddings, -slope[head] * |i - j| added to the scaled scores" if alibi else ""
    write_expected(folder, tensors, description)


def wordpiece_tokenizer():
    """A small WordPiece tokenizer, with a truncation and a padding that an engine has to ignore."""
    characters = string.ascii_lowercase + string.digits
    words = """query the of and is in to fn let mut pub struct impl return def self import class for while if else match
        hello world code search parser error vector token model number text line type un re pre cafe main value key name
        ##ing ##ed ##er ##s ##tion ##al ##ment ##able""".split()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    pieces = [*special, *characters, *string.punctuation, *(f"##{c}" for c in characters), *words]
    vocab = {piece: i for i, piece in enumerate(dict.fromkeys(pieces))}
    tokenizer = Tokenizer(models.WordPiece(vocab, unk_token="[UNK]", max_input_chars_per_word=20))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[(token, vocab[token]) for token in ("[CLS]", "[SEP]")])
    tokenizer.add_special_tokens(special)
    tokenizer.enable_truncation(max_length=8)
    tokenizer.enable_padding(length=16, pad_id=0, pad_token="[PAD]")
    return tokenizer


def write_st_expected(folder, model_folder, prefixes):
    """Encodes texts.json, hand-written data beside the fixture; `prefixes` maps a tensor prefix to a prompt's name."""
    model = SentenceTransformer(str(model_folder), device="cpu", local_files_only=True,
                                model_kwargs={"attn_implementation": "eager", "dtype": torch.float32}).double()
    texts, tensors = json.loads((folder / "texts.json").read_text(encoding="utf-8")), {}
    for prefix, prompt_name in prefixes.items():
        prompt = model.prompts[prompt_name] if prompt_name else None
        for i, text in enumerate(texts):
            tensors[f"{prefix}.{i}"] = model.encode(text, prompt=prompt, convert_to_tensor=True)
            tensors[f"{prefix}.{i}.ids"] = model.preprocess([text], prompt=prompt)["input_ids"][0]
    write_expected(folder, tensors, "sentence-transformers encode, float64, each text alone; query.<i> with a prompt")


def make_st_tiny(name="st-tiny"):
    folder, rng = FIXTURES / name, np.random.default_rng(seed_of(name))
    tokenizer = wordpiece_tokenizer()
    _, config = bert_config(dict(dims=(32, 4, 80), config=dict(vocab_size=tokenizer.get_vocab_size())))
    write_checkpoint(folder, {}, BertModel, config, rng)
    tokenizer.save(str(folder / "tokenizer.json"))
    write_json(folder / "tokenizer_config.json", {
        "tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 40, "pad_token": "[PAD]",
        "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]", "mask_token": "[MASK]"})
    write_json(folder / "sentence_bert_config.json", {"max_seq_length": 24, "do_lower_case": False})
    write_json(folder / "config_sentence_transformers.json", {
        "prompts": {"query": "query: ", "document": ""}, "default_prompt_name": None, "similarity_fn_name": "cosine"})
    modules = {"": "models.Transformer", "pool_here": "models.Pooling", "2_Dense": "models.Dense",
               "norm.3": "models.LayerNorm", "4_Normalize": "base.modules.normalize.Normalize"}
    modules = [{"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.{kind}"}
               for i, (path, kind) in enumerate(modules.items())]
    write_json(folder / "modules.json", modules)
    pooling = dict(cls_token=True, mean_tokens=True, max_tokens=True, mean_sqrt_len_tokens=False, lasttoken=False)
    write_json(folder / "pool_here" / "config.json",
               {"word_embedding_dimension": 32} | {f"pooling_mode_{mode}": active for mode, active in pooling.items()})
    write_json(folder / "2_Dense" / "config.json", {"in_features": 96, "out_features": 24, "bias": True,
                                                    "activation_function": "torch.nn.modules.activation.Tanh"})
    for path, name, module in (("2_Dense", "linear", nn.Linear(96, 24)), ("norm.3", "norm", nn.LayerNorm(24))):
        weights = random_weights(nn.ModuleDict({name: module}), rng)
        write_tensors(folder / path / "model.safetensors", weights, format="pt")
    write_json(folder / "norm.3" / "config.json", {"dimension": 24})
    write_st_expected(folder, folder, {"text": None, "query": "query"})


def make_pooling(name="pooling.json"):
    rng, cases = np.random.default_rng(seed_of(name)), []
    for length, prompt_length in ((1, 0), (3, 0), (9, 0), (9, 2)):
        tokens, include = torch.from_numpy(rng.standard_normal((1, length, 5))), prompt_length == 0
        case = {"include_prompt": include, "prompt_length": prompt_length, "tokens": tokens[0].tolist(), "outputs": {}}
        for mode in Pooling.POOLING_MODES:
            features = {"token_embeddings": tokens, "prompt_length": prompt_length}  # no mask: all tokens count
            pooled = Pooling(5, pooling_mode=mode, include_prompt=include)(features)["sentence_embedding"]
            case["outputs"][mode] = pooled[0].tolist()
        cases.append(case)
    write_json(FIXTURES / name, {"reference": "sentence-transformers Pooling, float64", "dim": 5, "cases": cases})


def make_activations(name="gelu.json"):
    """50-digit values rounded to float64; every x is exact in float32."""
    mpmath.mp.dps = 50
    positive = [float(np.float32(x)) for x in (0, 1e-30, 1e-3, 0.5, 1, 2, 3, 5, 8, 11, 13, 50)]
    slope, cubic = mpmath.sqrt(2 / mpmath.pi), mpmath.mpf("0.044715")
    functions = {
        "gelu_erf": lambda x: x * mpmath.erfc(-x / mpmath.sqrt(2)) / 2,
        "gelu_tanh": lambda x: x / (1 + mpmath.exp(-2 * slope * (x + cubic * x**3))),
        "silu": lambda x: x / (1 + mpmath.exp(-x)),
        "tanh": mpmath.tanh,
        "sigmoid": lambda x: 1 / (1 + mpmath.exp(-x)),
    }
    xs = [-x for x in reversed(positive)] + positive
    values = {"reference": "50-digit arithmetic rounded to float64; every x is a float32", "x": xs}
    for key, function in functions.items():
        values[key] = [float(function(mpmath.mpf(x))) for x in xs]
        if key != "sigmoid":  # a zero keeps the sign of x
            values[key] = [math.copysign(y, x) for x, y in zip(xs, values[key])]
    write_json(FIXTURES / name, values)


def main():
    makers = {name: make_bert for name in VARIANTS}
    makers |= {"st-tiny": make_st_tiny, "pooling.json": make_pooling, "gelu.json": make_activations}
    parser = argparse.ArgumentParser(description="Writes tests/fixtures; see the head of this file.")
    parser.add_argument("--only", action="append", choices=makers, metavar="NAME", help=", ".join(makers))
    parser.add_argument("--minilm", type=Path, metavar="FOLDER", help="writes the minilm references")
    args = parser.parse_args()
    torch.set_num_threads(1)
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    if args.minilm:
        write_st_expected(FIXTURES / "minilm", args.minilm, {"text": None})
    for name in args.only or ([] if args.minilm else makers):
        makers[name](name)


if __name__ == "__main__":
    main()
