"""Text models, which judge descriptions: Qwen2 (and 2.5) and Qwen3."""

import pair
import transformers
from tiny_vlm import text

PROMPTS = {
    "text": lambda _: [text(*range(2, 40))],
    "text of one token": lambda _: [text(17)],
    "text of 80 tokens": lambda _: [text(*(7 * k % 149 for k in range(80)))],
}
QWEN2 = pair.Family(
    model=transformers.Qwen2ForCausalLM,
    kinds={
        tie: transformers.Qwen2Config(**pair.TEXT_SIZES, tie_word_embeddings=tie == "tied")
        for tie in ("untied", "tied")
    },
    prompts=PROMPTS,
    gradients_of=("text",),
)
QWEN3 = pair.Family(
    model=transformers.Qwen3ForCausalLM,
    kinds={
        tie: transformers.Qwen3Config(**pair.TEXT_SIZES, head_dim=32, tie_word_embeddings=tie == "tied")
        for tie in ("untied", "tied")
    },
    prompts=PROMPTS,
    gradients_of=("text",),
)
