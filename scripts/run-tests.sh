#!/usr/bin/env bash
# Runs every test with what this machine has: on a Mac also on its GPU through Metal, and matrix products by Accelerate;
# elsewhere on the CPU alone (scripts/run-cuda-tests.sh adds an NVIDIA GPU).
#
# usage: scripts/run-tests.sh [further arguments for cargo test]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

scripts/fetch-models.sh || echo "run-tests: without the models; their tests are skipped, and say so" >&2

if [ "$(uname -s)" != Darwin ]; then
    exec cargo test --workspace "$@"
fi
echo "--- the deterministic kernels, and the GPU: the same bits"
KIN_INFER_CPU_BACKEND=pure-rust KIN_INFER_REQUIRE_DEVICE=metal \
    cargo test --workspace --features kin-infer/metal,kin-infer-cli/metal "$@"
echo "--- Accelerate: within the bounds of the references"
cargo test -p kin-infer --features accelerate --lib -- blas
cargo test -p kin-infer --features accelerate --test parity "$@"
echo "--- the GPU's speed"
cargo bench -p kin-infer --features metal --bench device
