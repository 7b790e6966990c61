#!/usr/bin/env bash
# Sets vlrl up for development and runs what CI runs: lint, format, types, tests. Arguments go to pytest.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source launch/environment.sh
ensure_environment .venv-test "[test,parity]"
export JAX_PLATFORMS=cpu
bin=$PWD/.venv-test/bin
"$bin/ruff" check .
"$bin/ruff" format --check .
"$bin/mypy"
exec "$bin/python" -m pytest "$@"
