"""Parameters go from the files straight to where they are computed with."""

import os
import subprocess
import sys

import jax
import numpy as np
import pytest
from tiny_base import tensors_of, write_base

from vlrl.io import hf_export, hf_import, hf_keys, leaves
from vlrl.world import random_checkpoint


@pytest.fixture(scope="module", params=random_checkpoint.HF_CONFIGS)
def checkpoint(request, tmp_path_factory):
    directory = tmp_path_factory.mktemp("checkpoint") / "base"
    raw = random_checkpoint.hf_config(request.param)
    params = random_checkpoint.params(raw, 0)
    hf_export.export_full(raw, params, "float32", directory, max_shard_bytes=200_000)
    return directory


def placed(directory, dtype="bfloat16", shardings=None):
    return hf_import.place_params(directory, hf_import.load_config(directory)[0], dtype, shardings)


def assert_equal_trees(one, other):
    one, other = hf_keys.flatten(one), hf_keys.flatten(other)
    assert one.keys() == other.keys()
    for path, leaf in one.items():
        assert leaf.dtype == other[path].dtype
        np.testing.assert_array_equal(np.asarray(leaf), np.asarray(other[path]), err_msg=str(path))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_placed_parameters_are_those_in_host_memory(checkpoint, dtype):
    tree = placed(checkpoint, dtype)
    assert all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(tree))
    assert_equal_trees(tree, hf_import.load_params(checkpoint, hf_import.load_config(checkpoint)[0], dtype))


def test_shapes_are_those_of_the_parameters(checkpoint):
    cfg, _ = hf_import.load_config(checkpoint)
    shapes = jax.tree.map(lambda leaf: (leaf.shape, str(leaf.dtype)), hf_import.shapes(cfg, "bfloat16"))
    assert jax.tree.map(lambda leaf: (leaf.shape, str(leaf.dtype)), placed(checkpoint)) == shapes


def test_leaf_that_is_filled_on_its_device_is_the_same(checkpoint, monkeypatch):
    """What accelerators do, done by the CPU."""
    expected = placed(checkpoint)
    monkeypatch.setattr(leaves, "_in_host_memory", lambda device: False)
    assert_equal_trees(placed(checkpoint), expected)


def test_array_of_the_cpu_is_the_buffer_that_was_read(base, monkeypatch):
    buffers = []
    plain = leaves.host
    monkeypatch.setattr(leaves, "host", lambda *args: buffers.append(plain(*args)) or buffers[-1])
    arrays = {leaf.unsafe_buffer_pointer() for leaf in jax.tree.leaves(placed(base))}
    assert arrays == {buffer.ctypes.data for buffer in buffers}


def test_kernel_of_many_rows_is_transposed_whole(tmp_path, raw):
    raw["intermediate_size"] = 3 * leaves.BLOCK_ROWS + 5
    tensors = tensors_of(raw, "float32")
    tree = placed(write_base(tmp_path / "base", raw, tensors), "float32")
    kernel = tree["decoder"]["layers"]["up_proj"]["kernel"]
    assert np.array_equal(kernel[1], tensors["model.layers.1.mlp.up_proj.weight"].T)


def test_one_sharding_serves_all_leaves_and_a_tree_each_its_own(base):
    device = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    cfg, _ = hf_import.load_config(base)
    tree = jax.tree.map(lambda _: device, hf_import.shapes(cfg, "bfloat16"))
    assert {leaf.sharding for leaf in jax.tree.leaves(placed(base, shardings=device))} == {device}
    assert_equal_trees(placed(base, shardings=tree), placed(base))


def test_tree_of_shardings_that_is_another_models_is_refused_with_every_leaf(base):
    device = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    cfg, _ = hf_import.load_config(base)
    tree = jax.tree.map(lambda _: device, hf_import.shapes(cfg, "bfloat16"))
    tree["head"] = tree.pop("lm_head")
    with pytest.raises(ValueError, match=r"shardings: not those of this model[\s\S]*missing lm_head/kernel") as error:
        placed(base, shardings=tree)
    assert "unexpected head/kernel" in str(error.value)


SHARDED = """
import sys
import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
from vlrl.io import hf_import, hf_keys, leaves, tensor_files

directory = sys.argv[1]
cfg, _ = hf_import.load_config(directory)
mesh = Mesh(np.array(jax.devices()).reshape(2, 2), ("fsdp", "tensor"))
shapes = hf_keys.flatten(hf_import.shapes(cfg, "float32"))
specs = {path: P(None, "fsdp", "tensor") for path in shapes if path[1] == "layers" and path[-1] == "kernel"}
specs |= {("embed", "embedding"): P("tensor", "fsdp"), ("visual", "patch_embed", "kernel"): P(None, "tensor")}
shardings = {path: NamedSharding(mesh, specs.get(path, P())) for path in shapes}
expected = hf_keys.flatten(hf_import.load_params(directory, cfg, "float32"))
read, plain = [], tensor_files.Stored.read
tensor_files.Stored.read = lambda self, part=(): read.append(plain(self, part)) or read[-1]
for filled_on_device in (False, True):
    if filled_on_device:
        leaves._in_host_memory = lambda device: False
    placed = hf_keys.flatten(hf_import.place_params(directory, cfg, "float32", hf_keys.unflatten(shardings)))
    for path, leaf in placed.items():
        assert leaf.sharding == shardings[path], path
        assert np.array_equal(np.asarray(leaf), expected[path]), path
kernel = placed["decoder", "layers", "down_proj", "kernel"]
assert {shard.data.shape for shard in kernel.addressable_shards} == {(2, 6, 4)}
assert (4, 6) in {tensor.shape for tensor in read}
assert (8, 12) not in {tensor.shape for tensor in read}  # no process reads what is not its own
"""


def test_each_device_gets_its_part_and_no_more_is_read(base):
    environment = os.environ | {"XLA_FLAGS": "--xla_force_host_platform_device_count=4", "JAX_PLATFORMS": "cpu"}
    done = subprocess.run([sys.executable, "-c", SHARDED, str(base)], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
