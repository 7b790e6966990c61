"""Frozen models that grade what the policy wrote: they look, they are read as logits, they never generate."""
