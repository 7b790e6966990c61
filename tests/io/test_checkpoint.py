import os
import pathlib
import random
import signal
import subprocess
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from orbax.checkpoint import v1 as ocp

from vlrl.io import checkpoint


def tree(seed: int = 0):
    """Adapter, optimizer state and key as a training step has them."""
    key = jax.random.key(seed)
    adapter = {"decoder": {"layers": {"q_proj": {"a": jax.random.normal(key, (2, 3, 4)), "b": jnp.zeros((2, 4, 5))}}}}
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-3)).init(adapter)
    return {
        "adapter": adapter,
        "half": jnp.arange(3, dtype=jnp.bfloat16),
        "key": jax.random.key_data(jax.random.fold_in(key, 1)),
        "optimizer": optimizer,
        "step": jnp.asarray(16_777_217, jnp.int32),
    }


def assert_bitwise_equal(one, other):
    assert jax.tree.structure(one) == jax.tree.structure(other)
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        assert a.dtype == b.dtype
        assert np.asarray(a).tobytes() == np.asarray(b).tobytes()


def data_files(folder: pathlib.Path) -> list[pathlib.Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file() and path.stat().st_size)


def test_restored_state_is_bitwise_the_saved_one(tmp_path):
    saved, state = tree(), {"loader": {"position": 2**70}, "note": "\x1b[31m é"}
    checkpoint.save(tmp_path, 7, saved, state)
    step, arrays, restored = checkpoint.restore_latest(tmp_path, jax.eval_shape(tree))
    assert (step, restored) == (7, state)
    assert_bitwise_equal(arrays, saved)


def test_live_state_serves_as_template_and_numpy_stays_numpy(tmp_path):
    saved = {"jax": jnp.ones(3), "numpy": np.arange(4, dtype=np.uint64) + 2**63}
    checkpoint.save(tmp_path, 0, saved, {})
    _, arrays, _ = checkpoint.restore_latest(tmp_path, saved)
    assert isinstance(arrays["jax"], jax.Array)
    assert isinstance(arrays["numpy"], np.ndarray)
    assert_bitwise_equal(arrays, saved)


def test_leaf_is_restored_into_the_sharding_of_the_template(tmp_path):
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]), ("data",))
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))
    checkpoint.save(tmp_path, 1, {"w": jnp.arange(4.0)}, {})
    template = {"w": jax.ShapeDtypeStruct((4,), jnp.float32, sharding=sharding)}
    arrays, _ = checkpoint.restore(tmp_path, 1, template)
    assert arrays["w"].sharding == sharding
    assert arrays["w"].tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("directory", ["", "absent"])
def test_nothing_saved_is_none(tmp_path, directory):
    assert checkpoint.restore_latest(tmp_path / directory, {}) is None


def test_second_resume_continues_from_the_second_save(tmp_path):
    for step in (2, 4, 6):
        found = checkpoint.restore_latest(tmp_path, {"x": jnp.zeros(())})
        assert found is None or (found[0], found[1]["x"].item()) == (step - 2, step - 2)
        checkpoint.save(tmp_path, step, {"x": jnp.asarray(float(step))}, {"step": step})
    assert checkpoint.restore_latest(tmp_path, {"x": jnp.zeros(())})[2] == {"step": 6}


def test_only_the_newest_are_kept(tmp_path):
    for step in range(5):
        checkpoint.save(tmp_path, step, {"x": jnp.ones(1)}, {}, keep=2)
    assert checkpoint.steps(tmp_path) == [3, 4]
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize("seed", range(12))
def test_flipped_bit_falls_back_to_the_step_before(tmp_path, seed):
    checkpoint.save(tmp_path, 1, tree(1), {"n": 1})
    newest = checkpoint.save(tmp_path, 2, tree(2), {"n": 2})
    rng = random.Random(seed)
    victim = rng.choice(data_files(newest))
    content = bytearray(victim.read_bytes())
    content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    victim.write_bytes(content)
    with pytest.warns(UserWarning, match=r"checkpoint step 2 is damaged: .*step_00000002.*trying the step before"):
        step, arrays, state = checkpoint.restore_latest(tmp_path, jax.eval_shape(tree))
    assert (step, state) == (1, {"n": 1})
    assert_bitwise_equal(arrays, tree(1))


def test_warning_names_the_damaged_file(tmp_path):
    checkpoint.save(tmp_path, 1, tree(1), {})
    newest = checkpoint.save(tmp_path, 2, tree(2), {})
    (newest / "state.json").write_text("{} ")
    with pytest.warns(UserWarning, match=r"state\.json does not match its sha256"):
        checkpoint.restore_latest(tmp_path, jax.eval_shape(tree))


def test_every_missing_or_truncated_file_falls_back(tmp_path):
    checkpoint.save(tmp_path, 1, tree(1), {"n": 1})
    newest = checkpoint.save(tmp_path, 2, tree(2), {"n": 2})
    for victim in data_files(newest):
        content = victim.read_bytes()
        for damage in (victim.unlink, lambda victim=victim, content=content: victim.write_bytes(content[:-1])):
            damage()
            with pytest.warns(UserWarning, match="step 2 is damaged"):
                assert checkpoint.restore_latest(tmp_path, jax.eval_shape(tree))[0] == 1
            victim.write_bytes(content)
    assert checkpoint.restore_latest(tmp_path, jax.eval_shape(tree))[0] == 2


@pytest.mark.parametrize("content", ["", "[]", "{}", "null", '{"state.json": "0"}'])
def test_unusable_hash_list_is_damage(tmp_path, content):
    (checkpoint.save(tmp_path, 1, tree(), {}) / "sha256.json").write_text(content)
    assert "step_00000001" in checkpoint.damage(tmp_path, 1)


def test_all_steps_damaged_is_an_error_and_not_a_fresh_start(tmp_path):
    for step in (1, 2):
        (checkpoint.save(tmp_path, step, tree(), {}) / "tree.json").unlink()
    with (
        pytest.warns(UserWarning, match="damaged"),
        pytest.raises(ValueError, match="all 2 checkpoints are damaged") as caught,
    ):
        checkpoint.restore_latest(tmp_path, jax.eval_shape(tree))
    assert "step_00000001/tree.json is missing" in str(caught.value)
    assert "step_00000002/tree.json is missing" in str(caught.value)


def test_run_that_fell_back_replaces_the_damaged_step(tmp_path):
    checkpoint.save(tmp_path, 1, tree(1), {})
    (checkpoint.save(tmp_path, 2, tree(2), {}) / "state.json").write_text("[")
    checkpoint.save(tmp_path, 2, tree(3), {"again": True})
    step, arrays, state = checkpoint.restore_latest(tmp_path, jax.eval_shape(tree))
    assert (step, state) == (2, {"again": True})
    assert_bitwise_equal(arrays, tree(3))


@pytest.mark.parametrize("step", [1, 2])
def test_intact_same_or_later_step_is_never_replaced(tmp_path, step):
    checkpoint.save(tmp_path, 2, tree(2), {})
    with pytest.raises(ValueError, match=f"has an intact step 2, not older than {step}"):
        checkpoint.save(tmp_path, step, tree(3), {})
    assert_bitwise_equal(checkpoint.restore(tmp_path, 2, jax.eval_shape(tree))[0], tree(2))


def test_every_difference_from_the_template_is_listed(tmp_path):
    template = jax.eval_shape(tree)
    layers = template["adapter"]["decoder"]["layers"]
    layers["k_proj"] = layers.pop("q_proj")
    template["step"] = jax.ShapeDtypeStruct((), jnp.float32)
    template["half"] = jax.ShapeDtypeStruct((4,), jnp.bfloat16)
    checkpoint.save(tmp_path, 1, tree(), {})
    with pytest.raises(ValueError, match="holds other arrays than this run trains") as caught:
        checkpoint.restore_latest(tmp_path, template)
    message = str(caught.value)
    assert "missing adapter/decoder/layers/k_proj/a" in message
    assert "unexpected adapter/decoder/layers/q_proj/b" in message
    assert "different step: saved {'shape': [], 'dtype': 'int32'}, wanted {'shape': [], 'dtype': 'float32'}" in message
    assert "different half: saved {'shape': [3]" in message


def test_restoring_a_named_step_that_is_absent_or_damaged_is_an_error(tmp_path):
    folder = checkpoint.save(tmp_path, 1, tree(), {})
    with pytest.raises(ValueError, match=r"checkpoint step 5: .*use one of \[1\]"):
        checkpoint.restore(tmp_path, 5, jax.eval_shape(tree))
    (folder / "state.json").write_text("{ }")
    with pytest.raises(ValueError, match=r"state\.json does not match"):
        checkpoint.restore(tmp_path, 1, jax.eval_shape(tree))


@pytest.mark.parametrize(
    ("leaf", "reason"),
    [
        (3, "int is no array"),
        (jax.random.key(0), "is a random key; save jax.random.key_data"),
        (np.zeros((0, 2)), "is empty"),
    ],
)
def test_leaf_that_cannot_come_back_is_refused(tmp_path, leaf, reason):
    with pytest.raises(ValueError, match=reason):
        checkpoint.save(tmp_path, 1, {"x": leaf}, {})


@pytest.mark.parametrize("state", [{"x": float("nan")}, {"x": object()}])
def test_failed_save_raises_and_leaves_nothing(tmp_path, state):
    checkpoint.save(tmp_path, 1, tree(1), {})
    with pytest.raises((ValueError, TypeError)):
        checkpoint.save(tmp_path, 2, tree(2), state)
    assert [path.name for path in tmp_path.iterdir()] == ["step_00000001"]


def test_full_disk_raises_and_leaves_the_step_before(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    checkpoint.save(tmp_path, 1, tree(1), {})
    monkeypatch.setattr(ocp, "save", full)
    with pytest.raises(OSError, match="No space left"):
        checkpoint.save(tmp_path, 2, tree(2), {})
    assert checkpoint.restore_latest(tmp_path, jax.eval_shape(tree))[0] == 1
    assert [path.name for path in tmp_path.iterdir()] == ["step_00000001"]


def test_keeping_none_is_refused(tmp_path):
    with pytest.raises(ValueError, match="keep at least 1"):
        checkpoint.save(tmp_path, 1, tree(), {}, keep=0)


def test_half_written_step_is_ignored_and_cleared_by_the_next_save(tmp_path):
    folder = checkpoint.save(tmp_path, 1, tree(1), {})
    half = tmp_path / ".tmp_step_00000002"
    (half / "arrays").mkdir(parents=True)
    (half / "tree.json").write_bytes((folder / "tree.json").read_bytes()[:10])
    assert checkpoint.restore_latest(tmp_path, jax.eval_shape(tree))[0] == 1
    assert half.exists()  # reading never changes the directory: another process may be saving
    checkpoint.save(tmp_path, 2, tree(2), {})
    assert not half.exists()
    assert checkpoint.steps(tmp_path) == [1, 2]


SAVER = """
import sys
import jax.numpy as jnp
from vlrl.io import checkpoint
found = checkpoint.restore_latest(sys.argv[1], {"x": jnp.zeros(50_000)})
first = 0 if found is None else found[0] + 1
for step in range(first, 10_000):
    checkpoint.save(sys.argv[1], step, {"x": jnp.full(50_000, float(step))}, {"step": step}, keep=2)
    print(step, flush=True)
"""


def test_killed_at_any_moment_the_last_finished_step_is_usable(tmp_path):
    rng, last = random.Random(0), -1
    for _ in range(3):
        process = subprocess.Popen(
            [sys.executable, "-c", SAVER, str(tmp_path)],
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"JAX_PLATFORMS": "cpu"},
        )
        for _ in range(2):  # it resumed and saves
            said = int(process.stdout.readline())
        time.sleep(rng.uniform(0, 0.2))
        process.send_signal(signal.SIGKILL)
        rest = process.stdout.read().split()
        process.wait()
        said = int(rest[-1]) if rest else said
        step, arrays, state = checkpoint.restore_latest(tmp_path, {"x": jnp.zeros(50_000)})
        assert step in (said, said + 1)  # killed between the rename and the print
        assert step > last
        assert state == {"step": step}
        assert np.array_equal(arrays["x"], np.full(50_000, float(step), np.float32))
        last = step
