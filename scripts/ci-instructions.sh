#!/usr/bin/env bash
# Counts the instructions that a text takes, and fails where they are many more than they were: a guard against slower
# code that no clock disturbs. Wants a release build, scripts/fetch-models.sh and valgrind, which runs the AVX2 kernels.
#
# Counts are of all-MiniLM-L6-v2's first layer, in thousands of instructions a text, and the difference of two runs, so
# that loading is no part of them. Another compiler may need a tenth more or less. State new ones here when they are meant.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

declare -A expected=([f32]=19420 [int8]=17427 [q8_0]=18369)
allowed=115 # percent

if ! command -v valgrind >/dev/null; then
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends valgrind >/dev/null
fi

kin_infer=target/release/kin-infer
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/f32"
cp models/all-MiniLM-L6-v2/*.json "$work/f32"
cp -r models/all-MiniLM-L6-v2/*_Pooling "$work/f32"
python3 - models/all-MiniLM-L6-v2 "$work/f32" <<'EOF'
import json, re, sys
from pathlib import Path

source, target = map(Path, sys.argv[1:])
data = (source / "model.safetensors").read_bytes()
start = 8 + int.from_bytes(data[:8], "little")
header, body = {}, b""
for name, entry in json.loads(data[8:start]).items():
    if name != "__metadata__" and not re.match(r"encoder\.layer\.[1-9]", name):
        first, end = entry["data_offsets"]
        header[name] = {**entry, "data_offsets": [len(body), len(body) + end - first]}
        body += data[start + first:start + end]
text = json.dumps(header).encode()
text += b" " * (-len(text) % 8)
(target / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + body)
config = json.loads((source / "config.json").read_text())
(target / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 1}))
EOF
"$kin_infer" quantize --model "$work/f32" --type q8_0 --output "$work/q8_0" --quiet

# Texts that differ, for an equal one is embedded once.
texts() {
    local i
    for i in $(seq 101 $((100 + $1))); do
        echo "fn part$i(input: &str) { let x = parse(input)?; println!(); } // read and print the parts"
    done
}

# count NAME TEXTS ARGUMENTS...: writes the instructions of a run.
count() {
    local name=$1 texts=$2
    shift 2
    texts "$texts" >"$work/$name-$texts.txt"
    KIN_INFER_CPU_ISA=avx2 valgrind --tool=callgrind --callgrind-out-file=/dev/null \
        "$kin_infer" embed --threads 1 --quiet --input "$work/$name-$texts.txt" "$@" 2>&1 >/dev/null |
        sed -n 's/.*Collected : \([0-9]*\)$/\1/p' >"$work/$name-$texts.count"
}

both() {
    count "$1" 1 "${@:2}"
    count "$1" 9 "${@:2}"
}

jobs=()
both f32 --model "$work/f32" & jobs+=($!)
both int8 --model "$work/f32" --precision int8 & jobs+=($!)
both q8_0 --model "$work/q8_0" & jobs+=($!)
for job in "${jobs[@]}"; do wait "$job"; done

failed=0
for name in f32 int8 q8_0; do
    one=$(<"$work/$name-1.count") nine=$(<"$work/$name-9.count")
    a_text=$(((nine - one) / 8000))
    echo "$name: $a_text thousand instructions a text, expected ${expected[$name]}"
    if ((a_text > expected[$name] * allowed / 100)); then failed=1; fi
done
exit "$failed"
