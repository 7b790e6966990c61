"""Prompts as segments (text, special tokens, media), encoded to rows and padded to the buckets of a batch.

Policy and referee build from the same segments. A vision span is never cut: what does not fit raises.
"""

import dataclasses
import re
import string
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int

from vlrl import types
from vlrl.config import PromptConfig
from vlrl.data import boxes
from vlrl.data.vision import SlicePatches
from vlrl.models.config import VisionConfig

PADS = {"image": "<|image_pad|>", "video": "<|video_pad|>"}
VISION_START, VISION_END = "<|vision_start|>", "<|vision_end|>"
TURN_START, TURN_END = "<|im_start|>", "<|im_end|>"


@dataclasses.dataclass(frozen=True)
class Text:
    """Trusted text (ours, from the config) may name special tokens; in untrusted text they stay plain characters."""

    text: str
    trusted: bool


@dataclasses.dataclass(frozen=True)
class Special:
    """One special token by its name, such as <|im_end|>."""

    name: str


@dataclasses.dataclass(frozen=True)
class Media:
    """One image, or one video of several slices, between <|vision_start|> and <|vision_end|>."""

    kind: str
    """image | video."""
    slices: SlicePatches
    second_per_grid: float = 0.0
    """Seconds between two slices; unused for images."""


Segment = Text | Special | Media


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


def open_chat(system: str, user: Sequence[Segment]) -> tuple[Segment, ...]:
    """Qwen's chat frame up to an unfinished turn of the user."""
    return (
        *(Special(TURN_START), Text("system\n", True), Text(system, True), Special(TURN_END), Text("\n", True)),
        *(Special(TURN_START), Text("user\n", True), *user),
    )


def close_chat(last_words: str) -> tuple[Segment, ...]:
    """What follows open_chat: the user's last words, and the frame up to where the assistant begins."""
    return (
        *(Text(last_words, True), Special(TURN_END), Text("\n", True)),
        *(Special(TURN_START), Text("assistant\n", True)),
    )


def chat(system: str, user: Sequence[Segment]) -> tuple[Segment, ...]:
    """The whole chat frame around the user's segments."""
    return *open_chat(system, user), *close_chat("")


def asked(example: types.Example) -> str:
    """The question with its options as lettered lines."""
    lettered = zip(string.ascii_uppercase, example.options, strict=False)
    return "\n".join([example.question, *(f"{letter}. {option}" for letter, option in lettered)])


def policy_prompt(
    example: types.Example, slices: SlicePatches, times_s: Float[np.ndarray, " F"], duration_s: float, cfg: PromptConfig
) -> tuple[Segment, ...]:
    """The policy's question about one video; options become lettered lines. Question and options are untrusted.

    times_s are those of the sampled frames, of which slice k holds numbers 2k and 2k+1.
    """
    frames_per_slice = -(-len(times_s) // slices.grid[0])
    media: list[Segment] = []
    if cfg.frame_times:
        for k in range(slices.grid[0]):
            media += [Text(f"{times_s[k * frames_per_slice]:.1f}s", True), Media("video", slices.part(k, k + 1))]
    else:
        # Qwen's convention, sampled fps = n/N * fps, in seconds: what the weights were trained with.
        media = [Media("video", slices, frames_per_slice * duration_s / len(times_s))]
    hints = dict(cfg.hints)
    if example.task not in hints:
        raise ValueError(f"{example.example_id}: task {example.task!r} has no hint; add it to prompt.hints")
    instruction = cfg.instruction.replace("{box_space}", boxes.describe(cfg.box_space, slices.size_px))
    user = [*media, Text(instruction, True), Text(asked(example) + "\n", False), Text(hints[example.task], True)]
    return chat(cfg.system, user)


def printable(segments: Sequence[Segment]) -> str:
    """The prompt as people read it; each medium shows as a single placeholder."""
    parts = []
    for segment in segments:
        if isinstance(segment, Text):
            parts.append(segment.text)
        elif isinstance(segment, Special):
            parts.append(segment.name)
        else:
            parts.append(f"{VISION_START}{PADS[segment.kind]}{VISION_END}")
    return "".join(parts)


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


def encode(tokenizer: Any, segments: Sequence[Segment], tokens_per_second: float, name: str) -> Row:
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
        count, rows, columns = segment.slices.grid
        units, merge = segment.slices.units, segment.slices.merge_size
        start, pad, end = (_special_id(tokenizer, n) for n in (VISION_START, PADS[segment.kind], VISION_END))
        ids += [start, *[pad] * (count * units), end]
        second_per_grid = segment.second_per_grid if segment.kind == "video" else 0.0
        pieces += [1, Span(count, rows // merge, columns // merge, second_per_grid), 1]
        span = np.stack(np.meshgrid(first_slice + np.arange(count), np.arange(units), indexing="ij"), -1).reshape(-1, 2)
        where += [np.full((1, 2), -1), span, np.full((1, 2), -1)]
        media.append(segment.slices)
        first_slice += count
    positions, next_position = rope_positions(pieces, tokens_per_second)
    index = np.concatenate(where).astype(np.int32)
    return Row(name, np.array(ids, np.int32), index[:, 0], index[:, 1], positions, next_position, tuple(media))


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
            f"raise {field}, or lower num_frames or max_pixels"
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
