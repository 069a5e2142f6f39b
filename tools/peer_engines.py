#!/usr/bin/env python3
"""One engine beside kin-infer, as a process of tools/compare_peers.py: requests on stdin, answers on stdout.

    {"cmd": "corpus", "path": P}                            {"event": "corpus", "texts": N}
    {"cmd": "run", "batch": B, "sort": true, "out": P}      {"event": "done", "seconds": S, "texts": N, "tokens": T}
    {"cmd": "run"} of a decoder                             {"event": "done", "prompt_seconds": S, "new_seconds": S}
"""

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path


class Batches:
    """Texts to normalised mean vectors, for engines that take padded token ids."""

    def __init__(self, options):
        import numpy
        from tokenizers import Tokenizer

        self.numpy = numpy
        self.tokenizer = Tokenizer.from_file(str(Path(options.tokenizer) / "tokenizer.json"))
        self.tokenizer.no_padding()
        self.tokenizer.enable_truncation(options.max_tokens)
        self.load(options)

    def embed(self, texts, size, sort):
        rows = [e.ids for e in self.tokenizer.encode_batch(texts)]
        order = sorted(range(len(rows)), key=lambda i: -len(rows[i])) if sort else range(len(rows))
        vectors = [None] * len(rows)
        for at in range(0, len(rows), size):
            batch = order[at:at + size]
            for i, vector in zip(batch, self.vectors([rows[i] for i in batch])):
                vectors[i] = vector
        return self.numpy.stack(vectors), sum(map(len, rows))

    def vectors(self, rows):
        numpy = self.numpy
        ids = numpy.zeros((len(rows), max(map(len, rows))), numpy.int64)
        mask = numpy.zeros_like(ids)
        for i, row in enumerate(rows):
            ids[i, :len(row)], mask[i, :len(row)] = row, 1
        hidden = self.hidden({"input_ids": ids, "attention_mask": mask, "token_type_ids": numpy.zeros_like(ids)}, rows)
        means = numpy.stack([hidden[i, :len(row)].mean(axis=0, dtype=numpy.float32) for i, row in enumerate(rows)])
        return means / numpy.linalg.norm(means, axis=1, keepdims=True)


class OnnxRuntime(Batches):
    def load(self, options):
        import onnxruntime

        settings = onnxruntime.SessionOptions()
        settings.intra_op_num_threads, settings.inter_op_num_threads = options.threads, 1
        self.session = onnxruntime.InferenceSession(options.model, settings, providers=["CPUExecutionProvider"])
        self.inputs = {i.name for i in self.session.get_inputs()}

    def hidden(self, inputs, _rows):
        return self.session.run(None, {name: v for name, v in inputs.items() if name in self.inputs})[0]


class OpenVino(Batches):
    def load(self, options):
        import openvino

        settings = {"INFERENCE_NUM_THREADS": options.threads, "NUM_STREAMS": 1, "PERFORMANCE_HINT": "LATENCY"}
        settings["INFERENCE_PRECISION_HINT"] = options.type or "f32"
        self.request = openvino.Core().compile_model(options.model, "CPU", settings).create_infer_request()
        self.inputs = {name for i in self.request.model_inputs for name in i.names}

    def hidden(self, inputs, _rows):
        return self.request.infer({name: v for name, v in inputs.items() if name in self.inputs})[0]


class CTranslate2(Batches):
    def load(self, options):
        import ctranslate2

        kind = options.type or "float32"
        self.encoder = ctranslate2.Encoder(
            options.model, device="cpu", compute_type=kind, intra_threads=options.threads, inter_threads=1
        )

    def hidden(self, _inputs, rows):
        return self.numpy.array(self.encoder.forward_batch(rows).last_hidden_state)


class Torch:
    def __init__(self, options):
        import torch
        from sentence_transformers import SentenceTransformer

        torch.set_num_threads(options.threads)
        self.model = SentenceTransformer(options.model, device="cpu", local_files_only=True)
        self.model.max_seq_length = options.max_tokens

    def embed(self, texts, size, sort):
        parts = [texts] if sort else [texts[at:at + size] for at in range(0, len(texts), size)]
        import numpy

        vectors = [self.model.encode(p, batch_size=size, normalize_embeddings=True, show_progress_bar=False) for p in parts]
        limit = self.model.max_seq_length
        tokens = sum(min(len(ids), limit) for ids in self.model.tokenizer(texts)["input_ids"])
        return numpy.concatenate(vectors), tokens


class LlamaCpp:
    def __init__(self, options):
        import llama_cpp

        self.limit = options.max_tokens
        self.model = llama_cpp.Llama(
            options.model, embedding=True, n_ctx=options.max_tokens * 8, n_batch=options.max_tokens * 8,
            n_ubatch=options.max_tokens * 8, n_threads=options.threads, n_threads_batch=options.threads, verbose=False,
        )

    def embed(self, texts, size, sort):
        import numpy

        lengths = [min(len(self.model.tokenize(t.encode())), self.limit) for t in texts]
        order = sorted(range(len(texts)), key=lambda i: -lengths[i]) if sort else range(len(texts))
        vectors = [None] * len(texts)
        for at in range(0, len(texts), size):
            batch = list(order[at:at + size])
            for i, vector in zip(batch, self.model.embed([texts[i] for i in batch], normalize=True, truncate=True)):
                vectors[i] = vector
        return numpy.array(vectors, numpy.float32), sum(lengths)


class LlamaDecoder:
    def __init__(self, options):
        import llama_cpp

        self.ids = [1 + i * 7919 % 30_000 for i in range(options.prompt_tokens)]
        self.new = options.new_tokens
        self.model = llama_cpp.Llama(
            options.model, n_ctx=options.prompt_tokens + options.new_tokens + 8, n_batch=options.prompt_tokens,
            n_ubatch=options.prompt_tokens, n_threads=options.threads, n_threads_batch=options.threads, verbose=False,
        )
        self.ids = [i % self.model.n_vocab() for i in self.ids]

    def run(self):
        self.model.reset()
        times = [time.perf_counter()]
        self.model.eval(self.ids)
        times.append(time.perf_counter())
        for i in range(self.new):
            self.model.eval([self.ids[i % len(self.ids)]])
        times.append(time.perf_counter())
        return times[1] - times[0], times[2] - times[1]


class KinDecoder:
    """kin-infer's own measurement, one round of it a request."""

    def __init__(self, options):
        shape = ["--prompt-tokens", options.prompt_tokens, "--new-tokens", options.new_tokens]
        fixed = ["bench", "--work", "generate", "--rounds", 1, "--format", "json", "--threads", options.threads]
        self.command = [options.command, *map(str, fixed + ["--model", options.model] + shape)]

    def run(self):
        ran = subprocess.run(self.command, capture_output=True, text=True)
        if ran.returncode:
            sys.exit(ran.stderr)
        return tuple(row["tokens"] / row["tokens_per_second"]["median"] for row in json.loads(ran.stdout)["rows"])


ENGINES = {
    "onnxruntime": OnnxRuntime, "openvino": OpenVino, "ctranslate2": CTranslate2, "torch": Torch, "llama.cpp": LlamaCpp,
    "llama-decoder": LlamaDecoder, "kin-decoder": KinDecoder,
}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("engine", choices=ENGINES)
    parser.add_argument("--model", required=True)
    parser.add_argument("--command")
    parser.add_argument("--tokenizer")
    parser.add_argument("--type", default="")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--max-tokens", type=int, default=512)
    parser.add_argument("--prompt-tokens", type=int, default=512)
    parser.add_argument("--new-tokens", type=int, default=32)
    options = parser.parse_args()
    # Libraries print on stdout; answers alone go there.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def say(**answer):
        print(json.dumps(answer), file=answers, flush=True)

    engine, texts = ENGINES[options.engine](options), []
    if hasattr(engine, "embed"):
        engine.embed(["fn main() {}"], 1, True)
    say(event="ready")
    for line in sys.stdin:
        request = json.loads(line)
        if request["cmd"] == "corpus":
            texts = [json.loads(line)["text"] for line in Path(request["path"]).read_text().splitlines() if line.strip()]
            say(event="corpus", texts=len(texts))
        elif request["cmd"] == "run" and hasattr(engine, "run"):
            prompt, new = engine.run()
            say(event="done", prompt_seconds=prompt, new_seconds=new)
        elif request["cmd"] == "run":
            start = time.perf_counter()
            vectors, tokens = engine.embed(texts, request["batch"], request.get("sort", True))
            seconds = time.perf_counter() - start
            if request.get("out"):
                Path(request["out"]).write_bytes(vectors.astype("<f4").tobytes())
            say(event="done", seconds=seconds, texts=len(texts), tokens=tokens)


if __name__ == "__main__":
    main()
