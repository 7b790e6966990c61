"""One leaf of our parameter tree beside the Hugging Face tensors that fill it."""

import dataclasses
from typing import Literal

import numpy as np
from jaxtyping import Shaped

Layout = Literal["same", "transpose", "conv"]
"""How a tensor lies in our leaf; `conv` [out, *patch] becomes a matrix [patch, out]."""


@dataclasses.dataclass(frozen=True)
class Entry:
    """One leaf of our tree and the tensor, or one tensor per layer, that fills it."""

    path: tuple[str, ...]
    name: str
    """Hugging Face name; `{i}` stands for the layer."""
    shape: tuple[int, ...]
    """Of one Hugging Face tensor."""
    layers: int = 0
    """Tensors stacked on axis 0 of the leaf; 0: the leaf is one tensor, not stacked."""
    layout: Layout = "same"

    @property
    def names(self) -> tuple[str, ...]:
        """Hugging Face names in the order of axis 0."""
        return tuple(self.name.format(i=i) for i in range(self.layers)) if self.layers else (self.name,)

    @property
    def leaf_shape(self) -> tuple[int, ...]:
        """Shape of our leaf."""
        one = self.shape if self.layout == "same" else (int(np.prod(self.shape[1:])), self.shape[0])
        return (self.layers, *one) if self.layers else one


def to_ours(entry: Entry, tensor: Shaped[np.ndarray, "..."]) -> Shaped[np.ndarray, "..."]:
    """One Hugging Face tensor in our layout: kernels are [in, out]; a view where possible."""
    return tensor if entry.layout == "same" else tensor.reshape(tensor.shape[0], -1).T


def to_hf(entry: Entry, leaf: Shaped[np.ndarray, "..."]) -> Shaped[np.ndarray, "..."]:
    """One layer of our leaf as the Hugging Face tensor: the inverse of `to_ours`."""
    return leaf if entry.layout == "same" else leaf.T.reshape(entry.shape)
