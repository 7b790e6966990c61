#!/usr/bin/env bash
# Sets vlrl up and trains on the tiny world. Arguments go to vlrl.main: bash launch/quickstart.sh --config.steps=20
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source launch/environment.sh
ensure_environment .venv-run ""
if [ ! -e data/tiny_world/eval.jsonl ]; then  # written last
  .venv-run/bin/python -m vlrl.world.generate --out data/tiny_world
fi
exec .venv-run/bin/python -m vlrl.main --config configs/tiny_ser.py --workdir runs/quickstart "$@"
