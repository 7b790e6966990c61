"""The tiny world: generated clips of coloured shapes whose every fact is known."""
