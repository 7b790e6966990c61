"""Files: Hugging Face checkpoints in and out, training checkpoints, manifests and logs."""
