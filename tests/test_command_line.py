"""Overrides are read as the type of the field, and a typo is answered with what is near."""

import pathlib

import pytest

from vlrl import command_line

CONFIG = str(pathlib.Path(__file__).parents[1] / "configs" / "tiny_ser.py")


def parsed(*arguments):
    return command_line.parse(["main", "--config", CONFIG, *arguments], "text", {"workdir": "", "resume": False})


def override(argument):
    return parsed(f"--config.{argument}").config


def refused(*arguments):
    with pytest.raises(ValueError, match=r"^--") as error:
        parsed(*arguments)
    return str(error.value)


def test_flags_have_their_defaults_and_the_config_is_frozen():
    found = parsed()
    assert (found.workdir, found.resume) == ("", False)
    assert found.config.steps == 150
    with pytest.raises(AttributeError):
        found.config.steps = 3


def test_flags_are_taken_wherever_they_stand():
    found = parsed("--config.seed=1", "--resume", "--workdir", "somewhere", "--config.steps=7")
    assert (found.workdir, found.resume, found.config.seed, found.config.steps) == ("somewhere", True, 1, 7)


@pytest.mark.parametrize("text", ["3e-6", "0.000003", " 3e-6"])
def test_float_override(text):
    assert override(f"opt.lr={text}").opt.lr == 3e-6


def test_whole_number_for_a_float():
    cfg = override("opt.max_grad_norm=2")
    assert (cfg.opt.max_grad_norm, type(cfg.opt.max_grad_norm)) == (2.0, float)


def test_value_may_follow_as_an_argument_of_its_own_even_a_negative_one():
    assert parsed("--config.seed", "-3", "--config.data.backend", "pyav").config.seed == -3


@pytest.mark.parametrize("text", ["true", "True", "1"])
def test_bool_override_to_true(text):
    assert override(f"policy.remat={text}").policy.remat is True


@pytest.mark.parametrize("text", ["false", "False", "0"])
def test_bool_override_to_false(text):
    assert override(f"policy.unroll_layers={text}").policy.unroll_layers is False


@pytest.mark.parametrize("text", ["256,512", "(256, 512)", "[256,512]", "256,512,"])
def test_tuple_override(text):
    assert override(f"data.prompt_buckets={text}").data.prompt_buckets == (256, 512)


def test_tuple_of_one_number_needs_no_comma():
    assert override("data.prompt_buckets=256").data.prompt_buckets == (256,)


def test_tuple_of_names_override():
    assert override("lora.targets=q_proj,v_proj").lora.targets == ("q_proj", "v_proj")


def test_text_override_may_hold_an_equals_sign_or_nothing():
    assert override("prompt.system=a=b").prompt.system == "a=b"
    assert override("prompt.system=").prompt.system == ""


def test_last_of_two_overrides_counts():
    assert parsed("--config.seed=1", "--config.seed=2").config.seed == 2


@pytest.mark.parametrize(
    ("argument", "near"),
    [
        ("--config.opt.lrr=1", "--config.opt.lrr: no field 'lrr'; did you mean lr?"),
        ("--config.stepz=1", "did you mean steps"),
        ("--config.optt.lr=1", "no field 'optt'; did you mean opt"),
        ("--config.rollout.groupsize=1", "did you mean group_size"),
        ("--config.opt.zzzz=1", "did you mean b1, b2, eps, lr, max_grad_norm"),
    ],
)
def test_typo_in_a_field_is_answered_with_the_nearest_names(argument, near):
    assert near in refused(argument)


@pytest.mark.parametrize(
    ("argument", "near"),
    [
        ("--wrkdir=x", "--wrkdir=x: no such argument; did you mean --workdir"),
        ("--resum", None),
        ("--confg.opt.lr=1", "did you mean --config"),
    ],
)
def test_typo_in_a_flag_is_answered_with_the_nearest_names(argument, near):
    if near is None:
        assert parsed(argument).resume  # a beginning that fits one flag only is that flag
    else:
        assert near in refused(argument)


@pytest.mark.parametrize(
    ("argument", "expected"),
    [
        ("--config.steps=many", "--config.steps=many: expected int like 150"),
        ("--config.steps=1.5", "expected int like 150"),
        ("--config.opt.lr=fast", "expected float like 0.0005"),
        ("--config.opt.lr", "expected float like 0.0005"),
        ("--config.policy.remat=yes", "expected bool like False"),
        ("--config.data.prompt_buckets=a,b", "expected tuple like (128,)"),
        ("--config.prompt.hints=a", "set this field in the config file"),
        ("--config.opt=3", "a group of fields; set one of b1"),
        ("--config.seed.x=3", "seed is a value, not a group of fields"),
    ],
)
def test_value_of_another_type_is_named_with_the_expected_one(argument, expected):
    assert expected in refused(argument)


def test_missing_config_file_is_named():
    with pytest.raises(ValueError, match=r"--config nowhere.py: no such Python file"):
        command_line.parse(["main", "--config=nowhere.py"], "text", {})


def test_config_file_with_an_unknown_field_is_refused(tmp_path):
    file = tmp_path / "c.py"
    lines = ["from vlrl import config", "def get_config():", " c = config.defaults()", " c.opt.lrr = 1.0", " return c"]
    file.write_text("\n".join(lines))
    with pytest.raises((ValueError, AttributeError), match="lrr"):
        command_line.parse(["main", f"--config={file}"], "text", {})


def test_command_without_config_where_none_is_needed():
    found = command_line.parse(["export", "--workdir=w"], "text", {"workdir": None}, config_required=False)
    assert (found.workdir, found.config) == ("w", "")


def test_bad_input_ends_with_status_2_and_one_line(capsys):
    def main(argv):
        raise ValueError(f"{argv[1]}: wrong; write another")

    with pytest.raises(SystemExit) as end:
        command_line.run(main, ["main", "x"])
    assert end.value.code == 2
    assert capsys.readouterr().err == "error: x: wrong; write another\n"


def test_faults_of_the_program_keep_their_traceback():
    def main(argv):
        raise RuntimeError("fault")

    with pytest.raises(RuntimeError):
        command_line.run(main, ["main"])
