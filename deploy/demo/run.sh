#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Runs the demo with Debian's Python, after a look at what it needs. Called by `make demo`.
#
# Usage: deploy/demo/run.sh [--quick]    QUICK=1 in the environment is the same
# Reads BUILD, PYTHON and FASHION_MNIST (the folder of the data) from the environment.
set -eu
cd "$(dirname "$0")/../.."

BUILD=${BUILD:-build}
PYTHON=${PYTHON:-/usr/bin/python3}
DATA=${FASHION_MNIST:-/usr/share/datasets/fashion-mnist}
export BUILD

fail() { # WORD...
	echo "run.sh: $*" >&2
	exit 1
}

for file in phubd libphub.so.0; do
	[[ -e $BUILD/$file ]] || fail "$BUILD/$file is missing: run \`make\`"
done
command -v "$PYTHON" >/dev/null || fail "there is no $PYTHON: run \`deploy/deps.sh demo\`, or set PYTHON"
missing=$("$PYTHON" -c 'from importlib.util import find_spec
print(*[name for name in ("numpy", "torch", "matplotlib") if not find_spec(name)])')
[[ -z $missing ]] || fail "$PYTHON has no $missing: run \`deploy/deps.sh demo\`, or set PYTHON to one that has"
[[ -e $DATA/train-images-idx3-ubyte.gz ]] ||
	fail "$DATA has no images: run \`deploy/deps.sh demo\` (package dataset-fashion-mnist), or set FASHION_MNIST"

exec "$PYTHON" deploy/demo/demo.py ${QUICK:+--quick} "$@"
