"""vlrl: reinforcement learning of video-language models on rewards that read the evidence."""
