import pathlib

import numpy as np
import pytest
from tiny_base import tensors_of, tiny_config, write_base

from vlrl.config import LoraConfig
from vlrl.io import hf_keys
from vlrl.models import config as model_config


@pytest.fixture
def raw() -> dict:
    return tiny_config()


@pytest.fixture
def tensors(raw: dict) -> dict[str, np.ndarray]:
    return tensors_of(raw, "bfloat16")


@pytest.fixture
def base(tmp_path: pathlib.Path, raw: dict, tensors: dict[str, np.ndarray]) -> pathlib.Path:
    return write_base(tmp_path / "base", raw, tensors)


@pytest.fixture
def lora_cfg() -> LoraConfig:
    return LoraConfig(rank=2, alpha=3.0, targets=("q_proj", "down_proj"))


@pytest.fixture
def adapter(raw: dict, lora_cfg: LoraConfig) -> dict:
    rng = np.random.default_rng(7)
    shapes = hf_keys.lora_shapes(model_config.from_hf(raw), lora_cfg.rank, lora_cfg.targets)
    return hf_keys.unflatten({path: rng.normal(size=shape).astype(np.float32) for path, shape in shapes.items()})
