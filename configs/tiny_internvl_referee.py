"""As tiny_ser, graded by a model of another family: a tiny InternVL with random weights, which knows nothing.

python -m vlrl.world.generate --out data/tiny_world
python -m vlrl.world.random_checkpoint --family internvl --out data/tiny_internvl
python -m vlrl.main --config configs/tiny_internvl_referee.py --workdir runs/tiny_internvl_referee
"""

import pathlib

import ml_collections

from vlrl import config


def get_config() -> ml_collections.ConfigDict:
    c = config.load_fields(str(pathlib.Path(__file__).with_name("tiny_ser.py")))
    c.referee.path = "data/tiny_internvl"
    return c
