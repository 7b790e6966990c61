"""Rotary positions against transformers' Qwen2_5_VLModel.get_rope_index.

transformers 5.24 multiplies by tokens_per_second before it rounds down (its pull request 48669) and leaves images at
one moment (45325), as we do. After a video it steps on by the longer spatial side, also where the video's time goes
further; 4.x and Qwen's training code step on to the maximum + 1. We follow the latter, and equal the former through
`spatial_advance`.
"""

import types

import numpy as np
import pytest
import torch
from transformers.models.qwen2_5_vl import modeling_qwen2_5_vl

from vlrl.data import encoding
from vlrl.data.encoding import Span

TEXT, IMAGE, VIDEO = 0, 1, 2


def _reference(pieces, tokens_per_second):
    """get_rope_index without weights: (positions [3, S], next position)."""
    vision = types.SimpleNamespace(spatial_merge_size=2, tokens_per_second=tokens_per_second)
    model = types.SimpleNamespace(config=types.SimpleNamespace(vision_config=vision))
    cls = modeling_qwen2_5_vl.Qwen2_5_VLModel
    model.get_vision_position_ids = types.MethodType(cls.get_vision_position_ids, model)
    kinds, grids = [], {IMAGE: [], VIDEO: []}
    for kind, piece in pieces:
        kinds += [kind] * (piece if kind == TEXT else piece.slices * piece.rows * piece.columns)
        if kind != TEXT:
            grids[kind].append([piece.slices, 2 * piece.rows, 2 * piece.columns])
    positions, delta = cls.get_rope_index(
        model,
        input_ids=torch.zeros((1, len(kinds)), dtype=torch.long),
        mm_token_type_ids=torch.tensor([kinds]),
        image_grid_thw=torch.tensor(grids[IMAGE]) if grids[IMAGE] else None,
        video_grid_thw=torch.tensor(grids[VIDEO]) if grids[VIDEO] else None,
        second_per_grid_ts=torch.tensor([p.second_per_grid for k, p in pieces if k == VIDEO]),
        attention_mask=torch.ones((1, len(kinds)), dtype=torch.long),
    )
    return positions[:, 0].numpy(), len(kinds) + int(delta[0, 0])


CASES = {
    "text": [(TEXT, 7)],
    "image": [(TEXT, 3), (IMAGE, Span(1, 4, 6, 0.0)), (TEXT, 5)],
    "images": [(TEXT, 3), (IMAGE, Span(1, 4, 6, 0.0)), (TEXT, 2), (IMAGE, Span(1, 9, 2, 0.0)), (TEXT, 5)],
    "short video": [(TEXT, 3), (VIDEO, Span(4, 6, 5, 0.5)), (TEXT, 5)],
    "fractional rate": [(TEXT, 3), (VIDEO, Span(4, 9, 5, 0.75)), (TEXT, 5)],
    "pairs with times": [
        (TEXT, 6),
        *[part for _ in range(4) for part in ((VIDEO, Span(1, 4, 4, 0.0)), (TEXT, 5))],
    ],
    "image, video, image": [
        (TEXT, 1),
        (IMAGE, Span(1, 2, 2, 0.0)),
        (TEXT, 2),
        (VIDEO, Span(3, 8, 8, 1.0)),
        (TEXT, 2),
        (IMAGE, Span(1, 3, 5, 0.0)),
        (TEXT, 4),
    ],
}
LONG = [(TEXT, 3), (VIDEO, Span(8, 4, 6, 12.5)), (TEXT, 5), (VIDEO, Span(4, 2, 2, 1 / 3)), (TEXT, 200)]


@pytest.mark.parametrize("name", CASES)
def test_positions_equal_transformers_where_the_video_is_wider_than_long(name):
    ours, following = encoding.rope_positions([piece for _, piece in CASES[name]], 2.0)
    theirs, their_following = _reference(CASES[name], 2)
    np.testing.assert_array_equal(ours, theirs)
    assert following == their_following


@pytest.mark.parametrize("tokens_per_second", [2, 4, 25])
@pytest.mark.parametrize("pieces", [*CASES.values(), LONG])
def test_positions_of_any_video_equal_transformers_with_its_own_step(pieces, tokens_per_second):
    ours, following = encoding.rope_positions([piece for _, piece in pieces], float(tokens_per_second), True)
    theirs, their_following = _reference(pieces, tokens_per_second)
    np.testing.assert_array_equal(ours, theirs)
    assert following == their_following


def test_text_after_a_long_video_starts_past_its_last_moment():
    # 7 * 12.5 s * 2 steps a second, from position 3: transformers 5 would put the text at 3 + 6
    positions, _ = encoding.rope_positions([piece for _, piece in LONG[:3]], 2.0)
    assert positions[:, -5].tolist() == [3 + 175 + 1] * 3


@pytest.mark.parametrize("second_per_grid", [0.1, 2 / 30, 1 / 3, 0.7, 1.15, 2 / 29.97])
def test_rounding_is_that_of_transformers(second_per_grid):
    pieces = [(VIDEO, Span(100, 1, 1, second_per_grid))]
    ours, _ = encoding.rope_positions([pieces[0][1]], 2.0)
    np.testing.assert_array_equal(ours, _reference(pieces, 2)[0])
