"""One leaf of our tree from its Hugging Face tensors, one tensor at a time, in host memory or straight on devices."""

import functools
import math
from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Int, Shaped

from vlrl.io import hf_entry
from vlrl.io.hf_entry import Entry
from vlrl.io.tensor_files import Stored

Part = tuple[tuple[int, int], ...]
"""First and end of a block of a leaf along each of its axes."""

BLOCK_ROWS = 64
"""Of a transposed copy: on a layer of 11008 x 2048 eight times as fast as the order that NumPy takes by itself."""

ALIGNMENT_BYTES = 64
"""A NumPy buffer that begins at a multiple of this becomes an array of the CPU without a copy."""


def host(
    entry: Entry, stored: Mapping[str, Stored], dtype: np.dtype, part: Part | None = None
) -> Shaped[np.ndarray, "..."]:
    """A leaf, or a part of it, in host memory: the peak is the result and one tensor."""
    part = part or _whole(entry)
    result = _aligned(_shape(part), dtype)
    if not entry.layers:
        _fill(result, entry, stored[entry.name], part)
        return result
    for row, layer in zip(result, range(*part[0]), strict=True):
        _fill(row, entry, stored[entry.names[layer]], part[1:])
    return result


def placed(
    entry: Entry, stored: Mapping[str, Stored], dtype: np.dtype, sharding: jax.sharding.Sharding | None
) -> Shaped[jax.Array, "..."]:
    """A leaf in its sharding, None being the default device; this process reads only what its own devices hold.

    On the CPU the host array is the device's. Elsewhere the leaf is filled on the device layer by layer, so that
    neither memory ever holds it twice.
    """
    if sharding is None:
        return _copies(entry, stored, dtype, _whole(entry), [None])[0]
    devices: dict[Part, list[jax.Device | None]] = {}
    for device, index in sharding.addressable_devices_indices_map(entry.leaf_shape).items():
        assert index is not None  # only of devices that are not addressable
        spans = (span.indices(size)[:2] for span, size in zip(index, entry.leaf_shape, strict=True))
        devices.setdefault(tuple(spans), []).append(device)
    copies = [copy for part, alike in devices.items() for copy in _copies(entry, stored, dtype, part, alike)]
    return jax.make_array_from_single_device_arrays(entry.leaf_shape, sharding, copies)


def _copies(
    entry: Entry, stored: Mapping[str, Stored], dtype: np.dtype, part: Part, devices: list[jax.Device | None]
) -> list[jax.Array]:
    """One part of a leaf on each of the devices that hold it."""
    if _in_host_memory(devices[0]) or not entry.layers:
        result = host(entry, stored, dtype, part)
        return [jax.device_put(result, device) for device in devices]
    copies = [jnp.zeros(_shape(part), dtype, device=device) for device in devices]
    for row, layer in enumerate(range(*part[0])):
        tensor = host(entry, stored, dtype, ((layer, layer + 1), *part[1:]))
        copies = [_write(copy, jax.device_put(tensor, d), row) for copy, d in zip(copies, devices, strict=True)]
        jax.block_until_ready(copies)  # or tensors that wait for the device pile up in host memory
    return copies


def _in_host_memory(device: jax.Device | None) -> bool:
    return (device.platform if device else jax.default_backend()) == "cpu"


@functools.partial(jax.jit, donate_argnums=0)
def _write(
    leaf: Shaped[jax.Array, "L *rest"], tensor: Shaped[jax.Array, "1 *rest"], row: Int[jax.Array, ""] | int
) -> Shaped[jax.Array, "L *rest"]:
    return jax.lax.dynamic_update_slice_in_dim(leaf, tensor, row, axis=0)


def _fill(to: Shaped[np.ndarray, "..."], entry: Entry, tensor: Stored, part: Part) -> None:
    """Copies one part of a tensor in our layout, reading no more of the file than it needs."""
    spans = tuple(slice(*span) for span in part)
    if entry.layout == "same":
        to[...] = tensor.read(spans)
    elif entry.layout == "transpose":
        rows = tensor.read(spans[::-1])
        for first in range(0, len(rows), BLOCK_ROWS):
            to[:, first : first + BLOCK_ROWS] = rows[first : first + BLOCK_ROWS].T
    else:
        to[...] = hf_entry.to_ours(entry, tensor.read())[spans]


def _whole(entry: Entry) -> Part:
    return tuple((0, size) for size in entry.leaf_shape)


def _shape(part: Part) -> tuple[int, ...]:
    return tuple(end - first for first, end in part)


def _aligned(shape: tuple[int, ...], dtype: np.dtype) -> Shaped[np.ndarray, "..."]:
    size = math.prod(shape) * dtype.itemsize
    buffer = np.empty(size + ALIGNMENT_BYTES, np.uint8)
    first = -buffer.ctypes.data % ALIGNMENT_BYTES
    return buffer[first : first + size].view(dtype).reshape(shape)
