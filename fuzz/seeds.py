#!/usr/bin/env python3
"""Writes the seeds of the fuzz targets: small files of every kind, with packages of tools/requirements-fixtures.txt."""

import json
import shutil
from pathlib import Path

import gguf
import numpy as np
import safetensors.numpy
from gguf import GGMLQuantizationType as Type

HERE = Path(__file__).resolve().parent
FIXTURES = HERE.parent / "tests" / "fixtures"


def tiny_llama(path, kind):
    """One layer of 32 features, its matrices in blocks."""
    rng = np.random.default_rng(1)
    w = gguf.GGUFWriter(path, "llama")
    w.add_context_length(16)
    w.add_embedding_length(32)
    w.add_block_count(1)
    w.add_feed_forward_length(32)
    w.add_head_count(2)
    w.add_head_count_kv(1)
    w.add_layer_norm_rms_eps(1e-5)
    w.add_rope_dimension_count(16)
    w.add_tokenizer_model("llama")
    w.add_token_list(["<unk>", "<s>", "</s>", "\u2581a", "b"])
    w.add_token_scores([0.0, 0.0, 0.0, -1.0, -2.0])
    w.add_token_types([2, 3, 3, 1, 1])
    shapes = {"attn_q": 32, "attn_k": 16, "attn_v": 16, "attn_output": 32, "ffn_gate": 32, "ffn_up": 32, "ffn_down": 32}
    for name, rows in {"token_embd": 5, **{f"blk.0.{part}": rows for part, rows in shapes.items()}}.items():
        values = (rng.standard_normal((rows, 32)) * 0.2).astype(np.float32)
        w.add_tensor(f"{name}.weight", gguf.quants.quantize(values, kind), raw_dtype=kind)
    for name in ("blk.0.attn_norm", "blk.0.ffn_norm", "output_norm"):
        w.add_tensor(f"{name}.weight", np.ones(32, np.float32))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def main():
    seeds = {name: HERE / "seeds" / name for name in ("gguf", "safetensors")}
    for folder in seeds.values():
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
    for kind in (Type.Q8_0, Type.Q4_0, Type.Q4_1):
        tiny_llama(seeds["gguf"] / f"llama-{kind.name.lower()}.gguf", kind)
    for name in ("gpt2", "llama", "bert", "xlm-roberta"):
        shutil.copy(FIXTURES / f"gguf-tokenizer-{name}.gguf", seeds["gguf"] / f"tokenizer-{name}.gguf")
    plain = {"a": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.ones(4, np.float16), "c": np.zeros((0, 3), np.int64)}
    safetensors.numpy.save_file(plain, seeds["safetensors"] / "plain.safetensors", metadata={"format": "pt"})
    blocks = {"w": gguf.quants.quantize(np.ones((2, 32), np.float32), Type.Q8_0), "n": np.ones(2, np.float32)}
    about = {"w": {"dtype": "Q8_0", "shape": [2, 32], "transposed": True}}
    safetensors.numpy.save_file(blocks, seeds["safetensors"] / "blocks.safetensors",
                                metadata={"kin_infer.blocks": json.dumps(about)})


if __name__ == "__main__":
    main()
