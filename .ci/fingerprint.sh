#!/usr/bin/env bash
# One model, one hash: with every instruction set this CPU has and any number of threads, `kin-infer fingerprint`
# must print the hash that README.md states. Wants a release build and scripts/fetch-models.sh.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

model=models/all-MiniLM-L6-v2
kin_infer=target/release/kin-infer

expected=$(grep -i fingerprint README.md | grep -oE '\b[0-9a-f]{64}\b' | sort -u || true)
if [[ ! $expected =~ ^[0-9a-f]{64}$ ]]; then
    echo "README.md must state one hash in a line 'fingerprint: <64 hex digits>'; found: ${expected:-none}" >&2
    exit 1
fi

has_flags() {
    local flag
    for flag in "$@"; do
        grep -qwm1 "$flag" /proc/cpuinfo || return 1
    done
}

isas=("" scalar) # the empty name leaves the choice to kin-infer
if has_flags avx2 fma; then isas+=(avx2); fi
if has_flags avx512f avx512bw avx512dq avx512vl; then isas+=(avx512); fi
if has_flags asimd; then isas+=(neon); fi

failed=0
for isa in "${isas[@]}"; do
    for threads in 1 2; do
        settings=(-u KIN_INFER_CPU_ISA)
        if [ -n "$isa" ]; then settings=("KIN_INFER_CPU_ISA=$isa"); fi
        # Word splitting is the format: the hash is the first field of the line.
        read -r hash _ < <(env "${settings[@]}" "$kin_infer" fingerprint --model "$model" --threads "$threads") ||
            hash="no output"
        echo "$hash  ISA ${isa:-as found}, threads $threads"
        if [ "$hash" != "$expected" ]; then failed=1; fi
    done
done

if [ "$failed" = 1 ]; then
    echo "README.md states fingerprint $expected" >&2
    exit 1
fi
