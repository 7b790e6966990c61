"""The whole model against transformers: one random checkpoint, imported by us, every kind of prompt.

All prompts go through ours in one right-padded batch (so padding, ragged grids and mixed media are part of every
comparison) and through transformers one by one. transformers 5 steps on by the longer side after a video, 4 and Qwen's
training code by the maximum + 1; where the two differ, it is given our positions.
"""

import jax.numpy as jnp
import numpy as np
import pytest
import tiny_vlm
import torch
import transformers
from tiny_vlm import text

from vlrl.io import hf_import
from vlrl.models import vlm

NEW_TOKENS = 32
ATOL = 2e-4


def config(tied):
    rope = {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [2, 3, 3]}
    return transformers.Qwen2_5_VLConfig(
        text_config={
            "vocab_size": 160,
            "hidden_size": 64,
            "num_hidden_layers": 3,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "intermediate_size": 96,
            "rope_parameters": rope,
            "tie_word_embeddings": tied,
            "bos_token_id": 158,
            "eos_token_id": 159,
        },
        vision_config={
            "depth": 3,
            "hidden_size": 32,
            "num_heads": 2,
            "intermediate_size": 48,
            "out_hidden_size": 64,
            "fullatt_block_indexes": [1],
            "tokens_per_second": 2,
        },
        tie_word_embeddings=tied,
        image_token_id=150,
        video_token_id=151,
        vision_start_token_id=152,
        vision_end_token_id=153,
    )


def image(cfg, size_px, seed):
    return tiny_vlm.media(cfg, "image", size_px, seed=seed)


def video(cfg, size_px, frames, second_per_grid, seed):
    return tiny_vlm.media(cfg, "video", size_px, frames, second_per_grid, seed)


def timed_blocks(cfg):
    """A video as the policy's prompt has it: one block a slice, each after its time."""
    whole = video(cfg, (84, 112), 6, 0.0, seed=9)
    for k in range(3):
        yield text(20 + k, 30)
        yield tiny_vlm.prompt.Media("video", whole.slices.part(k, k + 1))


QUESTION = text(60, 61, 62, 63)
SQUARE, ODD, LARGE, WIDE = (112, 112), (84, 140), (336, 336), (168, 280)
PROMPTS = {
    "text": lambda _: [text(*range(2, 40))],
    "image 112x112": lambda cfg: [text(1, 2), image(cfg, SQUARE, 1), QUESTION],
    "image 84x140": lambda cfg: [text(1, 2), image(cfg, ODD, 2), QUESTION],
    "image 336x336": lambda cfg: [text(1, 2), image(cfg, LARGE, 3), QUESTION],
    "image 168x280": lambda cfg: [text(1, 2), image(cfg, WIDE, 4), QUESTION],
    "image 308x252": lambda cfg: [text(1, 2), image(cfg, (308, 252), 5), QUESTION],
    "images": lambda cfg: [image(cfg, ODD, 6), text(5), image(cfg, WIDE, 7), image(cfg, SQUARE, 8), QUESTION],
    "video": lambda cfg: [text(1), video(cfg, ODD, 6, 0.75, 10), QUESTION],
    "video longer than wide": lambda cfg: [text(1), video(cfg, (56, 84), 8, 12.5, 11), QUESTION],
    "video in blocks with times": lambda cfg: [*timed_blocks(cfg), QUESTION],
    "two videos": lambda cfg: [video(cfg, SQUARE, 2, 1.0, 12), text(7), video(cfg, (56, 140), 6, 1.0, 13), QUESTION],
    "image and video": lambda cfg: [text(1), image(cfg, ODD, 14), video(cfg, ODD, 4, 0.5, 15), QUESTION],
}
NAMES = tuple(PROMPTS)
STEP_DIFFERS = ("video longer than wide",)


class Both:
    """One checkpoint in both implementations, and all prompts through ours."""

    def __init__(self, directory, tied):
        torch.manual_seed(0)
        theirs = transformers.Qwen2_5_VLForConditionalGeneration(config(tied))
        with torch.no_grad():
            for name, weight in theirs.named_parameters():
                noise = torch.randn(weight.shape)
                if name.endswith("bias"):
                    weight.copy_(0.2 * noise)
                elif weight.ndim == 1:
                    weight.copy_(1 + 0.2 * noise)
                else:  # larger than the default 0.02, so that every part shows in the logits
                    weight.copy_(noise / weight[0].numel() ** 0.5)
        theirs.save_pretrained(directory)
        self.theirs = transformers.Qwen2_5_VLForConditionalGeneration.from_pretrained(directory).eval()
        self.cfg, _ = hf_import.load_config(directory)
        assert self.cfg.tie_word_embeddings is tied
        self.model = vlm.Vlm(self.cfg)
        self.variables = {"params": hf_import.load_params(directory, self.cfg, "float32")}
        self.rows = [tiny_vlm.row(self.cfg, *parts(self.cfg), name=name) for name, parts in PROMPTS.items()]
        self.prefix = tiny_vlm.collate(self.cfg, self.rows, 160, slices=4, patches=576)
        self.features = tiny_vlm.encode(self.model, self.variables["params"], self.prefix.vision)
        self.logits = np.asarray(tiny_vlm.logits_of_prefix(self.model, self.variables, self.prefix, self.features))
        self.greedy = self._greedy()

    def _greedy(self):
        prefill = tiny_vlm.prefill(self.model, self.variables, self.prefix, self.features)
        tokens = [jnp.argmax(vlm.next_logits(self.model, self.variables, prefill.last_hidden), -1)[:, None]]
        cache = vlm.empty_cache(self.model, len(self.rows), 1, NEW_TOKENS)
        for step in range(NEW_TOKENS - 1):
            arrays = self.variables, prefill, cache, tokens[-1], jnp.int32(step)
            logits, cache = tiny_vlm.decode_step(self.model, *arrays)
            tokens.append(jnp.argmax(logits, -1))
        return np.concatenate(tokens, axis=1)

    def inputs(self, row):
        """What transformers takes for this prompt."""
        ids = torch.tensor(row.tokens[None].astype(np.int64))
        kinds = (ids == self.cfg.image_token_id).int() + 2 * (ids == self.cfg.video_token_id).int()
        arguments = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "mm_token_type_ids": kinds}
        segments = [part for part in PROMPTS[row.name](self.cfg) if isinstance(part, tiny_vlm.prompt.Media)]
        for kind, pixels, grids in (
            ("image", "pixel_values", "image_grid_thw"),
            ("video", "pixel_values_videos", "video_grid_thw"),
        ):
            found = [part for part in segments if part.kind == kind]
            if found:
                patches = [part.slices.patches.reshape(-1, self.cfg.vision.patch_width) for part in found]
                arguments[pixels] = torch.tensor(np.concatenate(patches))
                arguments[grids] = torch.tensor([part.slices.grid for part in found])
            if found and kind == "video":
                arguments["second_per_grid_ts"] = torch.tensor([part.second_per_grid for part in found])
        return arguments

    @torch.no_grad()
    def greedy_theirs(self, row):
        arguments = self.inputs(row)
        if row.name not in STEP_DIFFERS:
            settings = {"max_new_tokens": NEW_TOKENS, "do_sample": False, "eos_token_id": None}
            return self.theirs.generate(**arguments, **settings)[0, len(row.tokens) :].numpy()
        for step in range(NEW_TOKENS):  # without a cache: generate() would count positions by its own rule
            positions = np.concatenate([row.positions, row.next_position + np.tile(np.arange(step), (3, 1))], axis=1)
            logits = self.theirs(**arguments, position_ids=torch.tensor(positions[:, None])).logits
            arguments["input_ids"] = torch.cat([arguments["input_ids"], logits[:, -1:].argmax(-1)], dim=1)
            for name in ("attention_mask", "mm_token_type_ids"):
                fill = arguments["attention_mask"].new_full((1, 1), int(name == "attention_mask"))
                arguments[name] = torch.cat([arguments[name], fill.to(arguments[name].dtype)], dim=1)
        return arguments["input_ids"][0, len(row.tokens) :].numpy()


@pytest.fixture(scope="module", params=[False, True], ids=["untied", "tied"])
def both(request, tmp_path_factory):
    return Both(tmp_path_factory.mktemp("checkpoint"), request.param)


@pytest.fixture(scope="module")
def largest(both):
    """Largest differences seen, printed at the end (pytest -s)."""
    seen = {"vision": 0.0, "logits": 0.0}
    yield seen
    tied = both.cfg.tie_word_embeddings
    print(f"\n{tied=}: largest difference in vision features {seen['vision']:.1e}, in logits {seen['logits']:.1e}")


def number(name):
    return NAMES.index(name)


@pytest.mark.parametrize("name", [name for name in NAMES if name != "text"])
def test_vision_features_equal_transformers(both, largest, name):
    row = both.rows[number(name)]
    inputs = both.inputs(row)
    expected = {}
    with torch.no_grad():
        if "pixel_values" in inputs:
            out = both.theirs.model.visual(inputs["pixel_values"], grid_thw=inputs["image_grid_thw"])
            expected[both.cfg.image_token_id] = out.pooler_output.numpy()
        if "pixel_values_videos" in inputs:
            out = both.theirs.model.visual(inputs["pixel_values_videos"], grid_thw=inputs["video_grid_thw"])
            expected[both.cfg.video_token_id] = out.pooler_output.numpy()
    for token, features in expected.items():
        index = both.prefix.vision_index[number(name), : len(row.tokens)][row.tokens == token]
        error = np.abs(np.asarray(both.features)[number(name), index] - features).max()
        largest["vision"] = max(largest["vision"], error)
        assert np.abs(features).max() > 0.3
        assert error <= ATOL


@pytest.mark.parametrize("name", NAMES)
def test_logits_at_every_position_equal_transformers(both, largest, name):
    row = both.rows[number(name)]
    positions = {"position_ids": torch.tensor(row.positions[:, None])} if name in STEP_DIFFERS else {}
    with torch.no_grad():
        expected = both.theirs(**both.inputs(row), **positions).logits[0].numpy()
    error = np.abs(both.logits[number(name), : len(row.tokens)] - expected).max()
    largest["logits"] = max(largest["logits"], error)
    assert np.abs(expected).max() > 1
    assert error <= ATOL


def test_positions_differ_from_transformers_only_in_videos_longer_than_wide(both):
    for row in both.rows:
        inputs = both.inputs(row)
        if row.name == "text":
            continue
        wanted = ("input_ids", "mm_token_type_ids", "image_grid_thw", "video_grid_thw", "second_per_grid_ts")
        expected, _ = both.theirs.model.get_rope_index(**{k: v for k, v in inputs.items() if k in wanted})
        assert np.array_equal(row.positions, expected[:, 0].numpy()) == (row.name not in STEP_DIFFERS), row.name


@pytest.mark.parametrize("name", NAMES)
def test_greedy_tokens_equal_generate(both, name):
    expected = both.greedy_theirs(both.rows[number(name)])
    assert len(expected) == NEW_TOKENS
    np.testing.assert_array_equal(both.greedy[number(name)], expected)
