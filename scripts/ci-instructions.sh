#!/usr/bin/env bash
# Counts the instructions that a text takes, and fails where they are many more than they were: a guard against slower
# code that no clock disturbs. Wants a release build, scripts/fetch-models.sh and valgrind, which runs the AVX2 kernels.
#
# Counts are of all-MiniLM-L6-v2, in thousands of instructions a text, and the difference of two runs, so that loading is
# no part of them. Another compiler may need a tenth more or less. State new ones here when they are meant.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

declare -A expected=([f32]=115204 [int8]=101984 [q8_0]=106038)
allowed=115 # percent

if ! command -v valgrind >/dev/null; then
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends valgrind >/dev/null
fi

kin_infer=target/release/kin-infer
model=models/all-MiniLM-L6-v2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$kin_infer" quantize --model "$model" --type q8_0 --output "$work/q8_0" --quiet

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
    count "$1" 5 "${@:2}"
}

jobs=()
both f32 --model "$model" & jobs+=($!)
both int8 --model "$model" --precision int8 & jobs+=($!)
both q8_0 --model "$work/q8_0" & jobs+=($!)
for job in "${jobs[@]}"; do wait "$job"; done

failed=0
for name in f32 int8 q8_0; do
    one=$(<"$work/$name-1.count") five=$(<"$work/$name-5.count")
    a_text=$(((five - one) / 4000))
    echo "$name: $a_text thousand instructions a text, expected ${expected[$name]}"
    if ((a_text > expected[$name] * allowed / 100)); then failed=1; fi
done
exit "$failed"
