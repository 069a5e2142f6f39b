#!/usr/bin/env python3
"""Times kin-infer beside other engines on the same texts, or the same prompt, in interleaved rounds.

    tools/compare_peers.py --model models/all-MiniLM-L6-v2 --input texts.jsonl --onnx model.onnx --threads 1,2
    tools/compare_peers.py --decoder model.gguf --threads 1,2

Every engine is a process that waits, stopped, while another is measured; each round runs all of them once, in an order
that changes, so that what disturbs the machine disturbs all. An engine's speed is the median of its rounds, its ratio the
median of the ratios within a round. Vectors are compared with those of kin-infer.

Nothing is installed: an engine whose package or converted model is absent is named at the end, with what it needs.
Others than kin-infer get texts sorted by length, in batches of the size that was fastest for them in a first pass.
"""

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from array import array
from pathlib import Path

HERE = Path(__file__).resolve().parent
# The package of an engine, and the option that names its converted model.
PACKAGES = {
    "onnxruntime": ("onnxruntime", "onnx"),
    "openvino": ("openvino", "openvino"),
    "ctranslate2": ("ctranslate2", "ctranslate2"),
    "torch": ("sentence_transformers", None),
    "llama.cpp": ("llama_cpp", "gguf"),
}


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kin", default=str(HERE.parent / "target/release/kin-infer"), help="kin-infer's command")
    parser.add_argument("--model", help="model folder of kin-infer, of the tokenizer, and of torch")
    parser.add_argument("--input", help="texts to embed, JSON lines with a field text")
    parser.add_argument("--decoder", help="GGUF file to generate with, in place of --model")
    parser.add_argument("--precision", default="exact", help="kin-infer's: one or more of exact,int8")
    parser.add_argument("--kin-model", action="append", default=[], metavar="NAME=FOLDER",
                        help="a further model of kin-infer, such as a quantised folder")
    parser.add_argument("--onnx", help="the model for ONNX Runtime")
    parser.add_argument("--openvino", help="the model for OpenVINO, .xml or .onnx")
    parser.add_argument("--openvino-precision", default="f32")
    parser.add_argument("--ctranslate2", help="the folder for CTranslate2")
    parser.add_argument("--ctranslate2-type", default="float32")
    parser.add_argument("--gguf", help="the model for llama.cpp")
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batches", default="8,32,64", help="sizes of which each engine's fastest is taken")
    parser.add_argument("--one-at-a-time", action="store_true", help="one text a call: latency")
    parser.add_argument("--max-tokens", type=int, default=512)
    parser.add_argument("--prompt-tokens", type=int, default=512)
    parser.add_argument("--new-tokens", type=int, default=32)
    parser.add_argument("--json", action="store_true")
    found = parser.parse_args()
    if bool(found.decoder) == bool(found.model and found.input):
        parser.error("give --model and --input, or --decoder")
    return found


class Engine:
    """A process that answers requests, one JSON object a line, and is stopped in between."""

    def __init__(self, name, command, threads):
        environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "HF_HUB_OFFLINE": "1"}
        start = time.perf_counter()
        self.name, self.batch, self.seconds = name, None, []
        self.told = tempfile.TemporaryFile()
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.told, env=environment
        )
        self.answer()
        self.start = time.perf_counter() - start
        self.sleep()

    def answer(self):
        line = self.process.stdout.readline()
        if not line:
            status = self.process.wait()
            self.told.seek(0)
            told = self.told.read().decode(errors="replace").strip().splitlines()
            raise RuntimeError(told[-1] if told else f"it ended with {status}")
        return json.loads(line)

    def ask(self, **request):
        self.process.send_signal(signal.SIGCONT)
        self.process.stdin.write(json.dumps(request).encode() + b"\n")
        self.process.stdin.flush()
        answer = self.answer()
        self.sleep()
        return answer

    def sleep(self):
        self.process.send_signal(signal.SIGSTOP)

    def peak_megabytes(self):
        try:
            status = Path(f"/proc/{self.process.pid}/status").read_text()
        except OSError:
            return None
        return int(status.split("VmHWM:")[1].split()[0]) / 1000

    def end(self):
        self.process.kill()
        self.process.wait()


def commands(options, threads):
    """Each engine's command, and what is missing of the others."""
    found, missing = {}, {}
    worker = [sys.executable, str(HERE / "peer_engines.py"), "--threads", str(threads)]
    shape = ["--prompt-tokens", str(options.prompt_tokens), "--new-tokens", str(options.new_tokens)]
    if options.decoder:
        found["kin-infer"] = [*worker, "kin-decoder", "--command", options.kin, "--model", options.decoder, *shape]
    else:
        models = {"kin-infer": options.model} | dict(pair.split("=", 1) for pair in options.kin_model)
        for precision in options.precision.split(","):
            for name, model in models.items():
                name = name if precision == "exact" else f"{name} {precision}"
                serve = ["bench", "--serve", "--threads", str(threads), "--precision", precision]
                found[name] = [options.kin, *serve, "--model", model]
    for name, (package, option) in PACKAGES.items():
        model = getattr(options, option) if option else options.model
        if options.decoder:
            if name != "llama.cpp":
                continue
            model = options.decoder
        if subprocess.run([sys.executable, "-c", f"import {package}"], capture_output=True).returncode:
            missing[name] = f"the package {package.replace('_', '-')}"
        elif model is None:
            missing[name] = f"a converted model: --{option}"
        elif options.decoder:
            found[name] = [*worker, "llama-decoder", "--model", model, *shape]
        else:
            more = ["--max-tokens", str(options.max_tokens), "--tokenizer", options.model]
            more += ["--type", {"openvino": options.openvino_precision, "ctranslate2": options.ctranslate2_type}.get(name, "")]
            found[name] = [*worker, name, "--model", model, *more]
    return found, missing


def start(options, threads):
    found, missing = commands(options, threads)
    engines = []
    for name, command in found.items():
        try:
            engines.append(Engine(name, command, threads))
        except (RuntimeError, OSError) as error:
            missing[name] = f"to start: {error}"
    return engines, missing


def progress(text):
    if sys.stderr.isatty():
        print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)


def embed(options, engines):
    """Rounds over the texts; returns the vectors of each engine."""
    sizes = [1] if options.one_at_a_time else [int(size) for size in options.batches.split(",")]
    vectors = {}
    with tempfile.TemporaryDirectory() as folder:
        for engine in engines:
            progress(f"{engine.name}: first pass")
            engine.ask(cmd="corpus", path=str(Path(options.input).resolve()))
            out = str(Path(folder) / "vectors")
            passes = {b: engine.ask(cmd="run", batch=b, sort=not options.one_at_a_time, out=out) for b in sizes}
            engine.batch = min(sizes, key=lambda b: passes[b]["seconds"])
            engine.tokens = passes[engine.batch]["tokens"]
            vectors[engine.name] = array("f", Path(out).read_bytes())
    texts = passes[sizes[0]]["texts"]
    for r in range(options.rounds):
        for i in range(len(engines)):
            engine = engines[(i + r) % len(engines)]
            progress(f"round {r + 1} of {options.rounds}: {engine.name}")
            answer = engine.ask(cmd="run", batch=engine.batch, sort=not options.one_at_a_time)
            engine.seconds.append(answer["seconds"])
    progress("")
    return texts, vectors


def decode(options, engines):
    for engine in engines:
        engine.ask(cmd="run")
    for r in range(options.rounds):
        for i in range(len(engines)):
            engine = engines[(i + r) % len(engines)]
            progress(f"round {r + 1} of {options.rounds}: {engine.name}")
            answer = engine.ask(cmd="run")
            engine.seconds.append((answer["prompt_seconds"], answer["new_seconds"]))
    progress("")


def cosines(ours, theirs, texts):
    """Mean and least cosine of vectors that lie one after the other."""
    size = len(ours) // texts
    found = []
    for i in range(0, len(ours), size):
        a, b = ours[i:i + size], theirs[i:i + size]
        dot = sum(x * y for x, y in zip(a, b))
        found.append(dot / (sum(x * x for x in a) * sum(y * y for y in b)) ** 0.5)
    return statistics.fmean(found), min(found)


def ratio(engine, of, seconds=lambda s: s):
    """How often as fast as another: the median over rounds."""
    return statistics.median(seconds(b) / seconds(a) for a, b in zip(engine.seconds, of.seconds))


def embedding_rows(options, threads, engines):
    texts, vectors = embed(options, engines)
    for engine in engines:
        rates = sorted((texts if options.one_at_a_time else engine.tokens) / s for s in engine.seconds)
        mean, least = cosines(vectors[engines[0].name], vectors[engine.name], texts)
        yield {
            "engine": engine.name, "threads": threads, "batch": engine.batch,
            "unit": "texts/s" if options.one_at_a_time else "tokens/s",
            "median": statistics.median(rates), "lowest": rates[0], "highest": rates[-1],
            "ratio": ratio(engine, engines[0]), "start_seconds": engine.start, "peak_megabytes": engine.peak_megabytes(),
            "cosine_mean": mean, "cosine_least": least,
        }


def decoding_rows(options, threads, engines):
    decode(options, engines)
    for part, count, which in (("prompt", options.prompt_tokens, 0), ("new tokens", options.new_tokens, 1)):
        for engine in engines:
            rates = sorted(count / s[which] for s in engine.seconds)
            yield {
                "engine": engine.name, "threads": threads, "work": part, "unit": "tokens/s",
                "median": statistics.median(rates), "lowest": rates[0], "highest": rates[-1],
                "ratio": ratio(engine, engines[0], lambda s: s[which]),
            }


def table(rows):
    columns = list(rows[0])
    print("| " + " | ".join(columns) + " |\n|" + "-|" * len(columns))
    for row in rows:
        def show(key):
            value = row[key]
            if not isinstance(value, float):
                return "-" if value is None else str(value)
            return f"{value:.5f}" if key.startswith("cosine") else f"{value:.2f}" if value < 100 else f"{value:,.0f}"
        print("| " + " | ".join(map(show, columns)) + " |")


def main():
    options = arguments()
    rows, missing = [], {}
    for threads in map(int, options.threads.split(",")):
        engines, absent = start(options, threads)
        missing |= absent
        if not engines or not engines[0].name.startswith("kin-infer"):
            sys.exit(f"compare_peers: kin-infer does not start: {absent.get('kin-infer')}")
        try:
            measure = decoding_rows if options.decoder else embedding_rows
            rows += measure(options, threads, engines)
        finally:
            for engine in engines:
                engine.end()
    if options.json:
        print(json.dumps({"rows": rows, "missing": missing}, indent=1))
    else:
        table(rows)
    for name, what in missing.items():
        print(f"{name} was not measured; it needs {what}", file=sys.stderr)


if __name__ == "__main__":
    main()
