"""Text models, which judge descriptions: Qwen2 (and 2.5) and Qwen3."""

import pair
import transformers
from tiny_vlm import text

SIZES = {
    "vocab_size": 160,
    "hidden_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 96,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
    "bos_token_id": 158,
    "eos_token_id": 159,
}
PROMPTS = {
    "text": lambda _: [text(*range(2, 40))],
    "text of one token": lambda _: [text(17)],
    "text of 80 tokens": lambda _: [text(*(7 * k % 149 for k in range(80)))],
}
QWEN2 = pair.Family(
    model=transformers.Qwen2ForCausalLM,
    kinds={tie: transformers.Qwen2Config(**SIZES, tie_word_embeddings=tie == "tied") for tie in ("untied", "tied")},
    prompts=PROMPTS,
    gradients_of=("text",),
)
QWEN3 = pair.Family(
    model=transformers.Qwen3ForCausalLM,
    kinds={
        tie: transformers.Qwen3Config(**SIZES, head_dim=32, tie_word_embeddings=tie == "tied")
        for tie in ("untied", "tied")
    },
    prompts=PROMPTS,
    gradients_of=("text",),
)
