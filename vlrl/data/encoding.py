"""Prompts to arrays: token ids, rotary positions, the place of every vision token, padded to the buckets of a batch.

A vision span is never cut: what does not fit raises.
"""

import dataclasses
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Int

from vlrl import types
from vlrl.data.prompt import Media, Segment, Special, Text
from vlrl.data.vision import SlicePatches
from vlrl.models.config import MARKS, VisionConfig, VlmConfig


class Span(NamedTuple):
    """Grid of one medium in merged units, as rotary positions see it."""

    slices: int
    rows: int
    columns: int
    second_per_grid: float


@dataclasses.dataclass(frozen=True)
class Row:
    """One encoded prompt, not padded."""

    name: str
    """Says in errors whose prompt it is."""
    tokens: Int[np.ndarray, " S"]
    slice_index: Int[np.ndarray, " S"]
    """Vision slice of the prompt that the token stands for; -1 for text."""
    unit_index: Int[np.ndarray, " S"]
    """Merged unit within that slice; -1 for text."""
    positions: Int[np.ndarray, "3 S"]
    next_position: int
    media: tuple[SlicePatches, ...]


@dataclasses.dataclass(frozen=True)
class Buckets:
    """Sizes an array may take (each compiles once): tokens of a prompt, slices of a prompt, patches of a slice."""

    prompt: tuple[int, ...]
    slices: tuple[int, ...]
    patches: tuple[int, ...]


def tokenize_text(tokenizer: Any, text: str, trusted: bool) -> list[int]:
    """Token ids of a Hugging Face fast tokenizer, nothing added.

    Special tokens in trusted text are cut out here, so the tokenizer always runs with them off: its switch is shared
    state, and another thread may be encoding untrusted text at the same moment.
    """
    special = {token.content: i for i, token in tokenizer.added_tokens_decoder.items() if token.special}
    if not trusted or not special:
        return list(tokenizer(text, add_special_tokens=False, split_special_tokens=True)["input_ids"])
    names = "|".join(re.escape(name) for name in sorted(special, key=len, reverse=True))
    ids: list[int] = []
    for part in re.split(f"({names})", text):
        ids += [special[part]] if part in special else tokenize_text(tokenizer, part, False)
    return ids


def encode(tokenizer: Any, segments: Sequence[Segment], cfg: VlmConfig, name: str) -> Row:
    """Segments to ids, rotary positions and, for every vision token, its slice and merged unit.

    Neighbouring texts of equal trust are encoded as one, so that segment borders move no token border between them.
    """
    ids: list[int] = []
    where: list[np.ndarray] = []
    pieces: list[int | Span] = []
    media: list[SlicePatches] = []
    first_slice = 0
    for segment in _joined(segments):
        if not isinstance(segment, Media):
            if isinstance(segment, Special):
                new = [_special_id(tokenizer, segment.name)]
            else:
                new = tokenize_text(tokenizer, segment.text, segment.trusted)
            ids += new
            pieces.append(len(new))
            where.append(np.full((len(new), 2), -1))
            continue
        count, units = segment.slices.grid[0], segment.slices.units
        marks = MARKS[cfg.family]
        start, pad, end = (_special_id(tokenizer, n) for n in (marks.start, getattr(marks, segment.kind), marks.end))
        ids += [start, *[pad] * (count * units), end]
        pieces += [1, _span(segment) if cfg.mrope_section else count * units, 1]
        span = np.stack(np.meshgrid(first_slice + np.arange(count), np.arange(units), indexing="ij"), -1).reshape(-1, 2)
        where += [np.full((1, 2), -1), span, np.full((1, 2), -1)]
        media.append(segment.slices)
        first_slice += count
    positions, next_position = rope_positions(pieces, getattr(cfg.vision, "tokens_per_second", 0.0))
    index = np.concatenate(where).astype(np.int32)
    return Row(name, np.array(ids, np.int32), index[:, 0], index[:, 1], positions, next_position, tuple(media))


def _span(medium: Media) -> Span:
    (count, rows, columns), merge = medium.slices.grid, medium.slices.merge_size
    seconds = medium.second_per_grid if medium.kind == "video" else 0.0
    return Span(count, rows // merge, columns // merge, seconds)


def rope_positions(
    pieces: Sequence[int | Span], tokens_per_second: float, spatial_advance: bool = False
) -> tuple[Int[np.ndarray, "3 S"], int]:
    """Multimodal rotary positions of runs of text (a number of tokens) and vision spans, and the one that follows.

    Text counts alike in the three rows. In a span: time floor(k * second_per_grid * tokens_per_second), row, column,
    each from the span's start. What follows a span starts at its maximum + 1, as in Qwen's own training code
    (QwenLM/Qwen2.5-VL qwen-vl-finetune rope2d.py) and transformers 4; transformers 5 steps on by the longer side alone,
    whatever the time, which spatial_advance repeats (for comparisons).
    """
    parts = []
    start = 0
    for piece in pieces:
        if isinstance(piece, int):
            parts.append(np.broadcast_to(start + np.arange(piece), (3, piece)))
            start += piece
            continue
        # float32, one product after the other, floor last: rounds where transformers rounds
        interval = np.float32(tokens_per_second) * np.float32(piece.second_per_grid)
        time = (np.arange(piece.slices, dtype=np.float32) * interval).astype(np.int64)
        grid = np.meshgrid(time, np.arange(piece.rows), np.arange(piece.columns), indexing="ij")
        parts.append(start + np.stack(grid).reshape(3, -1))
        start += max(piece.rows, piece.columns) if spatial_advance else int(parts[-1].max()) + 1 - start
    positions = np.concatenate([np.zeros((3, 0)), *parts], axis=1).astype(np.int32)
    # Generation goes on after the largest position used, in every version of transformers.
    return positions, int(positions.max(initial=-1)) + 1


def collate(rows: Sequence[Row], buckets: Buckets, cfg: VisionConfig) -> types.PrefixInput:
    """Rows padded on the right to the smallest buckets that hold them all: tokens, slices, patches of a slice.

    Raises ValueError naming the row that fits no bucket.
    """
    slices = [sum(m.grid[0] for m in row.media) for row in rows]
    patches = [max((m.patches.shape[1] for m in row.media), default=0) for row in rows]
    names = [row.name for row in rows]
    length = np.array([len(row.tokens) for row in rows], np.int32)
    s = _bucket(names, length.tolist(), buckets.prompt, "tokens", "prompt_buckets")
    i = _bucket(names, slices, buckets.slices, "vision slices", "slice_buckets")
    n = _bucket(names, patches, buckets.patches, "patches in a slice", "patch_buckets")
    units = n // cfg.merge_units
    vision_index = [np.where(r.slice_index < 0, -1, r.slice_index * units + r.unit_index) for r in rows]
    return types.PrefixInput(
        tokens=_stack([row.tokens for row in rows], s, 0),
        length=length,
        positions=np.stack([np.pad(row.positions, ((0, 0), (0, s - row.positions.shape[1]))) for row in rows]),
        next_position=np.array([row.next_position for row in rows], np.int32),
        vision_index=_stack(vision_index, s, -1),
        vision=_pad_vision(rows, i, n, cfg),
    )


def _pad_vision(rows: Sequence[Row], i: int, n: int, cfg: VisionConfig) -> types.VisionInput:
    patches = np.zeros((len(rows), i, n, cfg.patch_width), np.float32)
    rope = np.zeros((len(rows), i, n, 2), np.int32)
    window = np.full((len(rows), i, n), -1, np.int32)
    for p, row in enumerate(rows):
        first = 0
        for medium in row.media:
            at = (p, slice(first, first + medium.grid[0]), slice(0, medium.patches.shape[1]))
            patches[at], rope[at], window[at] = medium.patches, medium.rope, medium.window
            first += medium.grid[0]
    return types.VisionInput(patches=patches, rope=rope, window=window)


def _bucket(names: Sequence[str], sizes: Sequence[int], buckets: Sequence[int], what: str, field: str) -> int:
    fitting = [bucket for bucket in buckets if bucket >= max(sizes)]
    if not fitting:
        largest = int(np.argmax(sizes))
        raise ValueError(
            f"{names[largest]}: {sizes[largest]} {what}, the largest bucket holds {max(buckets)}; "
            f"raise {field}, or lower num_frames, max_pixels or max_tiles"
        )
    return min(fitting)


def _stack(arrays: Sequence[Int[np.ndarray, " _"]], size: int, fill: int) -> Int[np.ndarray, "P S"]:
    return np.stack([np.pad(a, (0, size - len(a)), constant_values=fill) for a in arrays]).astype(np.int32)


def _joined(segments: Sequence[Segment]) -> list[Segment]:
    joined: list[Segment] = []
    for segment in segments:
        last = joined[-1] if joined else None
        if isinstance(segment, Text) and isinstance(last, Text) and segment.trusted == last.trusted:
            joined[-1] = Text(last.text + segment.text, segment.trusted)
        else:
            joined.append(segment)
    return joined


def _special_id(tokenizer: Any, name: str) -> int:
    token = tokenizer.convert_tokens_to_ids(name)
    if token is None or token == tokenizer.unk_token_id:
        raise ValueError(f"{name}: not in the tokenizer's vocabulary; use the tokenizer that came with the checkpoint")
    return token
