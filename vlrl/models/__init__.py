"""Flax linen modules of the model families and the shared-prefix functions over them."""
