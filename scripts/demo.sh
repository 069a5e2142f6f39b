#!/usr/bin/env bash
# Searches this repository's own source files by meaning: fetch a model, build, embed, search.
#
# usage: scripts/demo.sh [QUESTION...]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

question=${*:-where are the GEMM panels packed?}
model=models/all-MiniLM-L6-v2
corpus=target/demo/corpus.jsonl
vectors=target/demo/corpus.vectors.jsonl

# Prints a command as one could type it, then runs it.
run() {
    local word line='$'
    for word in "$@"; do
        if [[ $word =~ ^[A-Za-z0-9_./=:-]+$ ]]; then
            line+=" $word"
        else
            line+=" '${word//\'/\'\\\'\'}'"
        fi
    done
    echo "$line" >&2
    "$@"
}

# Writes one {"id": "path:first-last", "text": ...} line for every 40 lines of source.
write_corpus() {
    echo "$ cut this repository's source into pieces of 40 lines > $corpus" >&2
    mkdir -p "$(dirname "$corpus")"
    list_sources | python3 -c '
import json, sys

PIECE = 40
for path in sys.stdin.read().splitlines():
    try:
        with open(path, encoding="utf-8") as file:
            lines = file.read().splitlines()
    except (OSError, UnicodeDecodeError):
        continue
    for start in range(0, len(lines), PIECE):
        piece = lines[start : start + PIECE]
        text = "\n".join(piece).strip()
        if text:
            print(json.dumps({"id": f"{path}:{start + 1}-{start + len(piece)}", "text": text}))
' >"$corpus"
    echo "$(wc -l <"$corpus") pieces" >&2
}

list_sources() {
    if git rev-parse --is-inside-work-tree >/dev/null 2>&1 && [ -n "$(git ls-files '*.rs')" ]; then
        git -c core.quotePath=false ls-files '*.rs' '*.md' '*.py' '*.sh'
    else
        find . \( -name target -o -name models -o -name '.?*' \) -prune -o -type f \
            \( -name '*.rs' -o -name '*.md' -o -name '*.py' -o -name '*.sh' \) -print | sed 's|^\./||' | LC_ALL=C sort
    fi
}

run scripts/fetch-models.sh minilm
run cargo build --release
write_corpus
run target/release/kin-infer embed --model "$model" --input "$corpus" --output "$vectors"
run target/release/kin-infer search --embeddings "$vectors" --model "$model" "$question"
