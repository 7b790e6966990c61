"""Sampling of G completions from one prompt."""
