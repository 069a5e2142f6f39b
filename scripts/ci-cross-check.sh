#!/usr/bin/env bash
# Type-checks the workspace for macOS and Windows, and runs clippy over it with their backends (macOS: metal and
# accelerate; Windows: cuda), on Debian 12 as root. Nothing is linked, so neither SDK is needed.
# The standard library is built from source, since Debian ships none for these targets.
#
# usage: scripts/ci-cross-check.sh [TARGET...]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

if [ $# -eq 0 ]; then
    set -- aarch64-apple-darwin x86_64-pc-windows-msvc
fi

packages=(rustc-web cargo-web rust-web-src rust-web-clippy)
if ! dpkg-query -W -f '${Status}\n' "${packages[@]}" 2>/dev/null | grep -c '^install ok installed' |
    grep -qx "${#packages[@]}"; then
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -qq
    apt-get install -y -qq --no-install-recommends "${packages[@]}"
fi

export PATH="/usr/bin:$PATH" # Debian's cargo and rustc, not rustup's
export RUSTC_BOOTSTRAP=1     # for -Zbuild-std
export CARGO_TARGET_DIR=target/cross
export CARGO_PROFILE_DEV_OPT_LEVEL=0 CARGO_PROFILE_DEV_DEBUG=false # std is compiled, and never runs
for target in "$@"; do
    workspace=(-Zbuild-std=std,panic_abort,test --target "$target" -p kin-infer -p kin-infer-cli --all-targets --locked)
    echo "--- target: $target"
    /usr/bin/cargo check "${workspace[@]}"
    features=kin-infer/cuda,kin-infer-cli/cuda
    [[ $target != *-apple-* ]] ||
        features=kin-infer/metal,kin-infer/accelerate,kin-infer-cli/metal,kin-infer-cli/accelerate
    echo "--- target: $target, $features"
    /usr/bin/cargo clippy "${workspace[@]}" --features "$features" -- -D warnings
done
