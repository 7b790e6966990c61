"""Bad input of every kind meets the whole run: one clear error, or a counted failure and the run goes on."""

import json
import pathlib
import shutil

import av
import numpy as np
import pyarrow.parquet
import pytest
import safetensors.numpy
import tiny_run

from vlrl import evaluate, export
from vlrl.io import checkpoint, metric_log

ONE_STEP = ("--config.steps=1", "--config.eval.sampled=false", "--config.log.tensorboard=false")


@pytest.fixture(autouse=True)
def claims_in_completions():
    with tiny_run.claiming():
        yield


@pytest.fixture
def world(tiny, tmp_path):
    """A copy of the data that a test may spoil: world(train rows, eval rows) gives the overrides of a run on it."""
    for split in ("train", "eval"):
        shutil.copytree(tiny.root / "data" / split, tmp_path / "data" / split)

    def make(train=None, held_out=None):
        for split, rows in (("train", train), ("eval", held_out)):
            lines = [json.dumps(row) for row in (rows or tiny.rows(split))]
            (tmp_path / "data" / f"{split}.jsonl").write_text("\n".join(lines) + "\n")
        return [f"--config.data.{split}={tmp_path / 'data' / split}.jsonl" for split in ("train", "eval")]

    make.path = tmp_path / "data"
    return make


def cut(path):
    """The first half of the file, as a broken download leaves it."""
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])


def one_frame(path):
    with av.open(str(path), "w") as output:
        stream = output.add_stream("libx264", rate=5)
        stream.height, stream.width, stream.pix_fmt = 112, 112, "yuv420p"
        output.mux(stream.encode(av.VideoFrame.from_ndarray(np.full((112, 112, 3), 90, np.uint8), format="rgb24")))
        output.mux(stream.encode())


def no_frame(path):
    """A container whose video stream is empty."""
    with av.open(str(path), "w") as output:
        stream = output.add_stream("libx264", rate=5)
        stream.height, stream.width, stream.pix_fmt = 112, 112, "yuv420p"
        output.start_encoding()


def rollouts(workdir, step=0):
    return pyarrow.parquet.read_table(workdir / "rollouts" / f"step_{step:06d}.parquet").to_pylist()


def refused(tiny, workdir, *overrides):
    with pytest.raises(ValueError, match=r".") as error:
        tiny.run(workdir, *overrides)
    return str(error.value)


def test_one_corrupt_video_among_four_drops_its_group_and_the_run_goes_on(tiny, world, tmp_path):
    rows = tiny.rows("train")[:4]
    overrides = world(rows)
    cut(world.path / rows[2]["video"])
    tiny.run(tmp_path / "run", *ONE_STEP, *overrides)
    (line,) = metric_log.read(tmp_path / "run")
    assert line["invalid/unreadable"] == line["invalid/total"] == 1
    assert np.isfinite(line["reward"])
    assert np.isfinite(line["loss"])
    assert line["referee/claims"] == 6  # three prompts, two completions each, a claim in every one
    for row in rollouts(tmp_path / "run"):
        bad = row["example_id"] == rows[2]["example_id"]
        assert row["valid"] is not bad
        assert row["reason"] == ("unreadable" if bad else "")
        if bad:
            assert (row["advantage"], row["reward"]) == (0.0, 0.0)
    assert any(row["advantage"] != 0 for row in rollouts(tmp_path / "run"))


def test_missing_foreign_and_very_short_videos_are_told_apart(tiny, world, tmp_path):
    rows = tiny.rows("train")[:4]
    overrides = world(rows)
    (world.path / rows[0]["video"]).unlink()
    (world.path / rows[1]["video"]).write_text("this is no video " * 100)
    one_frame(world.path / rows[2]["video"])
    no_frame(world.path / rows[3]["video"])
    tiny.run(tmp_path / "run", *ONE_STEP, "--config.data.max_bad_fraction=1.0", *overrides)
    reasons = {row["example_id"]: row["reason"] for row in rollouts(tmp_path / "run")}
    one, two, three, four = (reasons[row["example_id"]] for row in rows)
    assert (one, two) == ("missing", "container")
    assert three == ""  # a still: its frame is shown twice
    assert four in ("short", "unreadable")
    (line,) = metric_log.read(tmp_path / "run")
    assert line["invalid/missing"] == line["invalid/container"] == 1
    assert line["invalid/total"] == 3


def test_corrupt_held_out_video_is_in_no_mean_and_counted(tiny, world, tmp_path):
    rows = tiny.rows("eval")
    overrides = world(None, rows)
    cut(world.path / rows[1]["video"])
    tiny.run(tmp_path / "run", *ONE_STEP, *overrides)
    results = json.loads((tmp_path / "run" / "results.json").read_text())
    assert (results["examples"], results["failed_videos"]) == (4, 1)
    table = json.loads((tmp_path / "run" / "after.json").read_text())["greedy"]
    assert [value is None for value in table["reward"]] == [False, True, False, False]
    real = [value for value in table["reward"] if value is not None]
    assert results["after"]["reward"]["mean"] == pytest.approx(np.mean(real))
    output = tmp_path / "figures.json"
    evaluate.main(["evaluate", f"--workdir={tmp_path / 'run'}", f"--json={output}"])
    assert json.loads(output.read_text())["failed_videos"] == 1


def test_run_stops_when_too_many_videos_fail_and_goes_on_once_they_are_repaired(tiny, world, tmp_path):
    rows = tiny.rows("train")[:4]
    overrides = world(rows)
    whole = {row["video"]: (world.path / row["video"]).read_bytes() for row in rows}
    for video in whole:
        cut(world.path / video)
    # Judged by no fewer than 20 videos: 8 of 20 pass, 12 of 20 do not.
    settings = [*ONE_STEP, "--config.steps=4", "--config.data.max_bad_fraction=0.5", *overrides]
    message = refused(tiny, tmp_path / "run", *settings)
    assert "12 of the last 12 videos failed, data.max_bad_fraction is 0.5" in message
    assert str(world.path / "train.jsonl") in message
    assert "re-encode the file or remove its lines" in message
    assert len(metric_log.read(tmp_path / "run")) == 2
    assert checkpoint.steps(tmp_path / "run" / "checkpoints") == [2]
    for video, data in whole.items():
        (world.path / video).write_bytes(data)
    tiny.run(tmp_path / "run", "--resume", *settings)
    lines = metric_log.read(tmp_path / "run")
    assert [line["invalid/total"] for line in lines] == [4, 4, 0, 0]
    assert lines[0]["reward"] is None  # nothing was measured, which is not 0


def test_steps_before_bad_data_are_saved(tiny, world, tmp_path):
    """A prompt that fits no bucket turns up in the second batch."""
    rows = tiny.rows("train")
    order = [row["example_id"] for row in rollouts(tiny.run(tmp_path / "first", *ONE_STEP, *world()))]
    late = next(row for row in rows if row["example_id"] not in order)
    late["question"] = "Why? " * 40
    overrides = world(rows)
    message = refused(tiny, tmp_path / "run", *ONE_STEP, "--config.steps=4", *overrides)
    assert message.startswith(late["example_id"])
    assert len(metric_log.read(tmp_path / "run")) == 1
    assert checkpoint.steps(tmp_path / "run" / "checkpoints") == [1]


def test_prompt_longer_than_the_largest_bucket_names_example_length_bucket_and_cure(tiny, tmp_path):
    message = refused(tiny, tmp_path / "run", *ONE_STEP, "--config.data.prompt_buckets=32,96")
    name, rest = message.split(": ", 1)
    assert name in {row["example_id"] for row in tiny.rows("eval")}
    tokens = int(rest.split()[0])
    assert 96 < tokens <= 128
    assert rest == (
        f"{tokens} tokens, the largest bucket holds 96; raise prompt_buckets, or lower num_frames, max_pixels or "
        "max_tiles"
    )


def test_malformed_annotation_line_is_named_with_its_file(tiny, world, tmp_path):
    overrides = world()
    file = world.path / "train.jsonl"
    lines = file.read_text().splitlines()
    lines[1] = lines[1][:50]
    lines[3] = json.dumps({**json.loads(lines[3]), "task": "why"})
    file.write_text("\n".join(lines))
    message = refused(tiny, tmp_path / "run", *ONE_STEP, *overrides)
    assert f"{file}:2: line: no valid JSON" in message
    assert f"{file}:4: task: 'why' is no task; choose one of mcq" in message
    assert not (tmp_path / "run").exists()


def test_missing_annotation_file_is_named(tiny, tmp_path):
    message = refused(tiny, tmp_path / "run", "--config.data.train=nowhere.jsonl")
    assert message.startswith("data.train: 'nowhere.jsonl' is no file")


def test_unknown_config_field_is_answered_with_the_nearest(tiny, tmp_path):
    message = refused(tiny, tmp_path / "run", "--config.rollout.temprature=1.0")
    assert message == "--config.rollout.temprature: no field 'temprature'; did you mean temperature?"


@pytest.mark.parametrize("name", ["prompt", "referee"])
def test_unknown_convention_for_boxes_is_answered_with_the_known_ones(tiny, tmp_path, name):
    message = refused(tiny, tmp_path / "run", f"--config.{name}.box_space=pixels")
    assert message == f"{name}.box_space: 'pixels'; choose one of norm1, norm1000, abs_resized, family"


@pytest.mark.parametrize("name", ["policy", "referee"])
def test_model_path_that_holds_no_model_is_named(tiny, tmp_path, name):
    assert refused(tiny, tmp_path / "run", f"--config.{name}.path=").startswith(f"{name}.path: '' holds no config.json")
    message = refused(tiny, tmp_path / "run", f"--config.{name}.path={tmp_path}")
    assert f"'{tmp_path}' holds no config.json; give a Hugging Face checkpoint directory" in message
    assert not (tmp_path / "run").exists()


def test_base_with_a_missing_tensor_is_named_with_the_tensor(tiny, tmp_path):
    base = pathlib.Path(shutil.copytree(tiny.root / "policy", tmp_path / "base"))
    tensors = safetensors.numpy.load_file(base / "model.safetensors")
    del tensors["model.layers.1.mlp.up_proj.weight"]
    safetensors.numpy.save_file(tensors, base / "model.safetensors", metadata={"format": "pt"})
    message = refused(tiny, tmp_path / "run", f"--config.policy.path={base}")
    assert message.startswith(f"{base}: the weights do not fit config.json; download the directory again:")
    assert "missing model.layers.1.mlp.up_proj.weight [96, 64]" in message
    assert not (tmp_path / "run").exists()


def test_checkpoint_of_another_config_is_refused_with_its_arrays(finished, tmp_path):
    workdir = pathlib.Path(shutil.copytree(finished, tmp_path / "run"))
    settings = json.loads((workdir / "config.json").read_text())
    settings["lora"] |= {"rank": 2}
    (workdir / "config.json").write_text(json.dumps(settings))
    with pytest.raises(ValueError, match="holds other arrays than this run trains; use the config") as error:
        export.main(["export", f"--workdir={workdir}", f"--out={tmp_path / 'out'}"])
    assert "q_proj" in str(error.value)
    assert not (tmp_path / "out").exists()


def test_resume_with_another_adapter_is_refused_with_the_difference(tiny, finished):
    message = refused(tiny, finished, "--resume", "--config.lora.rank=2")
    assert "config.lora.rank: 4 -> 2" in message


@pytest.mark.parametrize("command", [evaluate.main, export.main], ids=["evaluate", "export"])
def test_directory_without_a_run_is_named(tmp_path, command):
    out = [f"--out={tmp_path / 'out'}"] if command is export.main else []
    with pytest.raises(ValueError, match=r"no run there \(config.json is missing\)"):
        command(["command", f"--workdir={tmp_path}", *out])


def test_unknown_export_format_is_answered_with_the_known_ones(finished, tmp_path):
    with pytest.raises(ValueError, match=r"--format gguf: choose hf \(merged weights\) or peft \(adapter\)"):
        export.main(["export", f"--workdir={finished}", "--format=gguf", f"--out={tmp_path / 'out'}"])
