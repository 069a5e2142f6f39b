#!/usr/bin/env python3
"""Writes the tiny random checkpoints and float64 reference outputs under tests/fixtures.

    python tools/make_fixtures.py                        every fixture but minilm and smollm2
    python tools/make_fixtures.py --only bert-base       one fixture (may be repeated)
    python tools/make_fixtures.py --family bert          all fixtures of a module of tools/fixtures (may be repeated)
    python tools/make_fixtures.py --minilm FOLDER        all-MiniLM-L6-v2, a sentence-transformers folder
    python tools/make_fixtures.py --smollm2 FILE         SmolLM2-135M-Instruct.Q4_1.gguf
    python tools/make_fixtures.py --check                into a temporary folder, and compares with the committed bytes

--check goes with each of the others. What the files hold is said at the head of each module of tools/fixtures.
"""

import argparse
import importlib
import pkgutil
import sys
import tempfile
from pathlib import Path

import fixtures
from fixtures import common

import torch
from transformers.utils import logging


def find_families():
    """Module name -> module, for every module that has VARIANTS."""
    names = [module.name for module in pkgutil.iter_modules(fixtures.__path__)]
    modules = {name: importlib.import_module(f"fixtures.{name}") for name in names}
    return {name: module for name, module in modules.items() if hasattr(module, "VARIANTS")}


def differences(written):
    """Files below `written` that differ from the committed ones, and committed ones that were not written again."""
    handmade = {"texts.json"}
    for path in sorted(p for p in written.rglob("*") if p.is_file()):
        committed = common.COMMITTED / path.relative_to(written)
        if not committed.exists():
            yield f"{path.relative_to(written)}: not committed"
        elif committed.read_bytes() != path.read_bytes():
            yield f"{path.relative_to(written)}: differs"
    for folder in sorted(p for p in written.iterdir() if p.is_dir()):
        committed = common.COMMITTED / folder.name
        for path in sorted(p for p in committed.rglob("*") if p.is_file() and p.name not in handmade):
            if not (folder / path.relative_to(committed)).exists():
                yield f"{path.relative_to(common.COMMITTED)}: committed, but not written"


def main():
    families = find_families()
    makers = {name: module for module in families.values() for name in module.VARIANTS}
    parser = argparse.ArgumentParser(description="Writes tests/fixtures; see the head of this file.")
    parser.add_argument("--only", action="append", choices=makers, metavar="NAME", default=[], help=", ".join(makers))
    parser.add_argument("--family", action="append", choices=families, metavar="NAME", default=[],
                        help=", ".join(families))
    parser.add_argument("--minilm", type=Path, metavar="FOLDER", help="writes the minilm references")
    parser.add_argument("--smollm2", type=Path, metavar="FILE", help="writes the smollm2 references")
    parser.add_argument("--check", action="store_true", help="compares with the committed files, writes none of them")
    args = parser.parse_args()
    torch.set_num_threads(1)
    logging.set_verbosity_error()
    logging.disable_progress_bar()

    names = args.only + [name for family in args.family for name in families[family].VARIANTS]
    if not names and not args.minilm and not args.smollm2:
        names = list(makers)

    def write():
        if args.minilm:
            families["sentence"].make_minilm(args.minilm)
        if args.smollm2:
            importlib.import_module("fixtures.smollm2").make_smollm2(args.smollm2)
        for name in names:
            makers[name].make(name)

    if not args.check:
        return write()
    with tempfile.TemporaryDirectory() as scratch:
        common.Output.root = Path(scratch)
        write()
        different = list(differences(common.Output.root))
    print("\n".join(different) or "every file has the committed bytes")
    sys.exit(bool(different))


if __name__ == "__main__":
    main()
