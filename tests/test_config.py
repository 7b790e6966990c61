import dataclasses
import pathlib

import ml_collections
import pytest

from vlrl import command_line, config

ROOT = pathlib.Path(__file__).parents[1]


def test_defaults_freeze_to_the_default_config() -> None:
    assert config.freeze(config.defaults()) == config.Config()


def test_frozen_config_cannot_be_changed() -> None:
    frozen = config.freeze(config.defaults())
    with pytest.raises(dataclasses.FrozenInstanceError):
        frozen.opt.lr = 1.0  # type: ignore[misc]


def test_frozen_config_is_hashable_so_that_it_can_be_a_static_argument_of_jit() -> None:
    stages = [getattr(config.Config(), field.name) for field in dataclasses.fields(config.Config)]
    assert all(isinstance(hash(stage), int) for stage in stages)


def test_unknown_field_set_in_a_config_file_names_the_nearest() -> None:
    fields = config.defaults()
    fields.rollout.group_sise = 8
    with pytest.raises(ValueError, match=r"config\.rollout\.group_sise: no such field; did you mean group_size"):
        config.freeze(fields)


def test_unknown_field_of_plain_values_names_place_and_nearest() -> None:
    with pytest.raises(ValueError, match=r"config\.rollout\.group_sise: no such field; did you mean group_size"):
        config.from_dict({"rollout": {"group_sise": 8}})


def test_missing_fields_take_their_defaults() -> None:
    assert config.from_dict({"rollout": {"group_size": 8}}).rollout == config.RolloutConfig(group_size=8)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"steps": "ten"}, r"config\.steps: expected int, got 'ten' \(str\)"),
        ({"steps": 1.0}, r"config\.steps: expected int, got 1\.0 \(float\)"),
        ({"steps": True}, r"config\.steps: expected int, got True \(bool\)"),
        ({"opt": {"lr": True}}, r"config\.opt\.lr: expected float, got True \(bool\)"),
        ({"policy": {"remat": 1}}, r"config\.policy\.remat: expected bool, got 1 \(int\)"),
        ({"policy": {"path": None}}, r"config\.policy\.path: expected str, got None"),
        ({"data": {"prompt_buckets": 128}}, r"config\.data\.prompt_buckets: expected several values, got 128"),
        ({"data": {"prompt_buckets": (128, "256")}}, r"config\.data\.prompt_buckets\[1\]: expected int, got '256'"),
        ({"prompt": {"hints": (("mcq",),)}}, r"config\.prompt\.hints\[0\]: expected 2 values, got \('mcq',\)"),
        ({"prompt": {"hints": (("mcq", 3),)}}, r"config\.prompt\.hints\[0\]\[1\]: expected str, got 3"),
        ({"lora": 16}, r"config\.lora: expected fields, got 16"),
    ],
)
def test_wrong_type_is_named_with_its_place(values: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        config.from_dict(values)


def test_int_widens_to_float() -> None:
    frozen = config.from_dict({"opt": {"max_grad_norm": 5}})
    assert type(frozen.opt.max_grad_norm) is float
    assert frozen.opt.max_grad_norm == 5.0


def test_lists_become_tuples_at_every_depth() -> None:
    frozen = config.from_dict({"data": {"prompt_buckets": [128]}, "prompt": {"hints": [["mcq", ""]]}})
    assert frozen.data.prompt_buckets == (128,)
    assert frozen.prompt.hints == (("mcq", ""),)


@pytest.mark.parametrize("path", sorted((ROOT / "configs").glob("*.py")), ids=lambda path: path.stem)
def test_shipped_config_loads_and_survives_json(path: pathlib.Path) -> None:
    loaded = config.load(str(path))
    assert config.from_dict(dataclasses.asdict(loaded)) == loaded


def test_absent_config_file_is_named() -> None:
    with pytest.raises(ValueError, match=r"--config no/such\.py: no such Python file; name one of configs/\*\.py"):
        config.load("no/such.py")


def test_file_without_get_config_is_named(tmp_path: pathlib.Path) -> None:
    file = tmp_path / "empty.py"
    file.write_text("")
    with pytest.raises(ValueError, match=r"empty\.py: has no get_config\(\); return an edited config\.defaults\(\)"):
        config.load(str(file))


def parsed(*overrides: str) -> config.Config:
    return command_line.parse(["prog", "--config", str(ROOT / "configs" / "tiny_ser.py"), *overrides], "", {}).config


def test_overrides_reach_fields_of_every_type() -> None:
    frozen = parsed(
        "--config.seed=1",
        "--config.opt.lr=3e-6",
        "--config.policy.remat=true",
        "--config.referee.gamma",
        "expected",
        "--config.data.prompt_buckets=128,256",
        "--config.lora.targets=q_proj",
    )
    assert frozen.seed == 1
    assert frozen.opt.lr == 3e-6
    assert frozen.policy.remat is True
    assert frozen.referee.gamma == "expected"
    assert frozen.data.prompt_buckets == (128, 256)
    assert frozen.lora.targets == ("q_proj",)


def test_override_leaves_nested_tuples_of_the_file_alone() -> None:
    assert parsed("--config.seed=1").prompt.hints == (("mcq", ""), ("when", ""), ("where", ""), ("both", ""))


def test_misspelt_override_is_answered_with_the_nearest_field() -> None:
    with pytest.raises(ValueError, match=r"--config\.opt\.lrr: no field 'lrr'; did you mean lr"):
        parsed("--config.opt.lrr=1")


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("--config.steps=many", r"--config\.steps=many: expected int"),
        ("--config.steps=1.5", r"--config\.steps=1\.5: expected int"),
        ("--config.policy.remat=perhaps", r"--config\.policy\.remat=perhaps: expected bool"),
        ("--config.opt=1", r"--config\.opt: a group of fields"),
        ("--config.seed.x=1", r"--config\.seed\.x: seed is a value"),
        ("--config.prompt.hints=x", r"set this field in the config file"),
    ],
)
def test_override_of_the_wrong_kind_names_field_and_value(override: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parsed(override)


def test_defaults_can_be_edited_like_a_config_file_does() -> None:
    fields = config.defaults()
    fields.data.prompt_buckets = (128,)
    fields.prompt.hints = (("mcq", "x"),)
    assert isinstance(fields, ml_collections.ConfigDict)
    frozen = config.freeze(fields)
    assert frozen.data.prompt_buckets == (128,)
    assert frozen.prompt.hints == (("mcq", "x"),)
