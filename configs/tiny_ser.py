"""SER on the tiny world: the whole job on a laptop in minutes.

python -m vlrl.world.generate --out data/tiny_world
python -m vlrl.main --config configs/tiny_ser.py --workdir runs/tiny_ser
"""

import ml_collections

from vlrl import config


def get_config() -> ml_collections.ConfigDict:
    c = config.defaults()
    c.steps = 150
    c.data.train = "data/tiny_world/train.jsonl"
    c.data.eval = "data/tiny_world/eval.jsonl"
    c.data.num_frames = 8
    c.data.min_pixels = 4 * 28 * 28
    c.data.max_pixels = 16 * 28 * 28
    c.data.prompt_buckets = (128,)
    c.data.slice_buckets = (4,)
    c.data.patch_buckets = (64,)
    c.prompt.box_space = "norm1000"  # what the cold start writes, not the habit of its family
    c.prompt.instruction = ""  # the cold start knows the format; a real checkpoint is told
    c.prompt.hints = (("mcq", ""), ("when", ""), ("where", ""), ("both", ""))
    c.policy.path = "vlrl/world/checkpoints/policy"
    c.policy.dtype = "float32"
    c.policy.unroll_layers = True
    c.policy.remat = False
    c.rollout.group_size = 8
    c.rollout.max_new_tokens = 64
    c.referee.path = "vlrl/world/checkpoints/referee"
    c.referee.dtype = "float32"
    c.referee.unroll_layers = True
    c.referee.gamma = "expected"  # a small policy is rarely within a letter of the best box: argmax would be all E
    c.referee.instruction = ""
    c.referee.relevance_question = "Relevance"
    c.referee.localization_question = "Localization"
    c.referee.claims_per_call = 32
    c.referee.prompt_buckets = (112, 160)
    c.referee.patch_buckets = (64,)
    c.referee.min_pixels = 4 * 28 * 28
    c.referee.max_pixels = 16 * 28 * 28
    c.referee.crop_min_pixels = 8 * 28 * 28
    c.referee.max_response_tokens = 56
    c.eval.num_examples = 600
    c.eval.prompts_per_batch = 24
    c.opt.lr = 5e-4  # 0.1 M adapter parameters: hundreds of times the rate of a 7B model (measured, docs/tiny_world.md)
    c.opt.warmup_steps = 5
    c.checkpoint.every = 25
    return c
