#!/usr/bin/env bash
# Runs the library's tests for aarch64 on emulated CPUs, on Debian 12 amd64, as root.
# Installs what is absent: qemu, a cross linker, Debian's Rust and its aarch64 standard library (1.2 GB).
#
# usage: scripts/ci-aarch64.sh [further arguments for the test binaries]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

export PATH="/usr/bin:$PATH" # Debian's cargo and rustc, not rustup's
target=aarch64-unknown-linux-gnu

# True when rustc has a standard library of its own version for the target. The output goes to a scratch folder:
# rustc renames its result into place, and as root would replace even /dev/null.
has_target() {
    [ -x /usr/bin/rustc ] || return 1
    local scratch status=0
    scratch=$(mktemp -d)
    /usr/bin/rustc --target "$target" --crate-type lib --emit metadata --out-dir "$scratch" - \
        <<<'pub fn probe() -> Vec<u8> { Vec::new() }' 2>/dev/null || status=1
    rm -rf "$scratch"
    return "$status"
}

install_toolchain() {
    export DEBIAN_FRONTEND=noninteractive
    dpkg --add-architecture arm64
    apt-get update -qq
    apt-get install -y -qq --no-install-recommends \
        qemu-user-static gcc-aarch64-linux-gnu libc6-dev-arm64-cross rustc-web cargo-web

    # The arm64 standard library comes straight out of its package: installing it would pull in arm64's libc.
    local work
    work=$(mktemp -d)
    (
        cd "$work"
        apt-get download -qq -o APT::Sandbox::User=root \
            "libstd-rust-web-dev:arm64=$(dpkg-query -W -f '${Version}' rustc-web)"
        dpkg -x libstd-rust-web-dev_*_arm64.deb unpacked
    )
    rm -rf "/usr/lib/rustlib/$target"
    cp -a "$work/unpacked/usr/lib/rustlib/$target" /usr/lib/rustlib/
    rm -rf "$work"
}

if ! { command -v qemu-aarch64-static && command -v aarch64-linux-gnu-gcc && [ -x /usr/bin/cargo ]; } >/dev/null ||
    ! has_target; then
    install_toolchain
    has_target || { echo "ci-aarch64: rustc still has no standard library for $target" >&2; exit 1; }
fi

export CARGO_BUILD_TARGET=$target
export CARGO_TARGET_DIR=target/aarch64
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER="qemu-aarch64-static -L /usr/aarch64-linux-gnu"
unset KIN_INFER_REQUIRE_MODEL

# Left to native CPUs: the tests of MiniLM, a whole model, and the longest sequences, which the emulator takes many
# minutes for (the fixtures with long sequences are run here too, against their fingerprints); tests that start
# themselves as other processes, and those of a process's memory, which is the emulator's here.
native=(processes:: planned_peak minilm borders_of_512_keys long_gapped_sequences long_sequences)
run_tests() {
    local cpu=$1
    shift
    echo "--- emulated CPU: $cpu"
    QEMU_CPU=$cpu /usr/bin/cargo test -p kin-infer --locked "$@" -- "${native[@]/#/--skip=}" "${arguments[@]}"
}

# What an instruction set can change: kernels, operations, and whole models against their references and fingerprints.
# Files, tokenizers and texts are the same code everywhere. cortex-a72 is plain NEON; max adds dotprod, fp16, i8mm and
# bf16, which only the kernels and the fingerprints have to show again, and not that batches and padding do not show.
arguments=("$@")
run_tests cortex-a72 --lib --test kernels --test backend_ops --test parity --test decoders --test invariance --test blocks
native+=(batch_mates padding_does_not_show)
run_tests max,sve=off --lib --test kernels --test invariance
