#!/usr/bin/env bash
# Makes tiny exports of every model family and loads them with both lines of transformers and peft: the installed one, and
# the last of 4.x in a virtual environment of its own. Prints a table for each; fails where a key, a weight or a logit does not fit.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source launch/environment.sh
ensure_environment .venv-test "[test,parity]"
ensure_packages .venv-transformers4 "transformers==4.57.1" "peft==0.17.1" "torch>=2.9,<2.14"
export JAX_PLATFORMS=cpu HF_HUB_DISABLE_PROGRESS_BARS=1
exports=$(mktemp -d)
trap 'rm -rf "$exports"' EXIT
.venv-test/bin/python tests/parity/check_exports.py make "$exports"
for environment in .venv-test .venv-transformers4; do
  "$environment/bin/python" tests/parity/check_exports.py check "$exports"
done
