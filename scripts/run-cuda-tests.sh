#!/usr/bin/env bash
# Runs the tests on a machine with an NVIDIA GPU (compute capability 7.0 or newer, driver 460 or newer; no toolkit): the
# GPU gives the CPU's bits, operation by operation and for every fixture. Then measures how fast it is.
#
# usage: scripts/run-cuda-tests.sh [--all]     --all runs every test of the workspace, not only those of devices
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

export KIN_INFER_REQUIRE_DEVICE=cuda
scripts/fetch-models.sh || echo "run-cuda-tests: without the models; their tests are skipped, and say so" >&2

cargo run --release -p kin-infer-cli --features cuda -- devices
if [ "${1:-}" = --all ]; then
    cargo test --workspace --features kin-infer/cuda,kin-infer-cli/cuda
else
    cargo test -p kin-infer --features cuda --lib -- cuda_backend gpu::
    cargo test -p kin-infer --features cuda --test device --test backend_ops --test gpu --test kernels --test parity
fi
cargo bench -p kin-infer --features cuda --bench device
