"""From annotation files to batches: examples, decoding, preprocessing, prompts, loader."""
