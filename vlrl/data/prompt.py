"""What a prompt says, as segments: text, special tokens, media. Policy and referee build from the same."""

import dataclasses
import string
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

from vlrl import types
from vlrl.config import PromptConfig
from vlrl.data import boxes
from vlrl.data.vision import SlicePatches
from vlrl.models.config import MARKS, Family

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
    """One image, or one video of several slices, between the marks of the family."""

    kind: str
    """image | video."""
    slices: SlicePatches
    second_per_grid: float = 0.0
    """Seconds between two slices; unused for images."""


Segment = Text | Special | Media


def open_chat(system: str, user: Sequence[Segment]) -> tuple[Segment, ...]:
    """ChatML, the frame of all families, up to an unfinished turn of the user; without a system turn if it is empty."""
    first = (Special(TURN_START), Text("system\n", True), Text(system, True), Special(TURN_END), Text("\n", True))
    return (*(first if system else ()), Special(TURN_START), Text("user\n", True), *user)


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


def item_text(template: str, item: types.Item) -> list[Segment]:
    """The template, which is ours, with the item's own words, which are not, in the place of {text} and the others.

    Raises ValueError naming a field that items have not.
    """
    values = {"age": f"{item.age_months:g}", "text": item.text, "criterion": item.criterion}
    values |= {"guidance": item.guidance, "domain": item.domain}
    segments: list[Segment] = []
    for text, field, _, _ in string.Formatter().parse(template):
        if field is not None and field not in values:
            raise ValueError(f"{template!r}: items have no {{{field}}}; use {', '.join(f'{{{n}}}' for n in values)}")
        segments += [Text(text, True)] * bool(text)
        segments += [Text(values[field], False)] if field is not None else []
    return segments


def policy_prompt(
    example: types.Example,
    slices: SlicePatches,
    times_s: Float[np.ndarray, " F"],
    duration_s: float,
    family: Family,
    cfg: PromptConfig,
) -> tuple[Segment, ...]:
    """The policy's question about one video; options become lettered lines. Question and options are untrusted.

    times_s are those of the sampled frames, of which slice k holds numbers 2k and 2k+1 (InternVL: number k).
    """
    media = video_segments(slices, times_s, duration_s, family, cfg.frame_times)
    hints = dict(cfg.hints)
    if example.task not in hints:
        raise ValueError(f"{example.example_id}: task {example.task!r} has no hint; add it to prompt.hints")
    space = boxes.describe(boxes.of_family(cfg.box_space, family), slices.size_px)
    instruction = cfg.instruction.replace("{box_space}", space)
    user = [*media, Text(instruction, True), Text(asked(example) + "\n", False), Text(hints[example.task], True)]
    return chat(cfg.system, user)


def image_segments(slices: SlicePatches, family: Family) -> list[Segment]:
    """An image as the chat template of the family has it."""
    after = MARKS[family].after_image
    return [Media("image", slices), *([Text(after, True)] if after else [])]


def video_segments(
    slices: SlicePatches, times_s: Float[np.ndarray, " F"], duration_s: float, family: Family, frame_times: bool
) -> list[Segment]:
    """A video as the family was trained to read it; `frame_times` writes times also where the family has none."""
    count = slices.grid[0]
    per_slice = -(-len(times_s) // count)
    grouped = [times_s[k * per_slice : (k + 1) * per_slice] for k in range(count)]
    parts = [slices.part(k, k + 1) for k in range(count)]
    if family == "qwen3_vl":  # transformers processing_qwen3_vl.py: the mean time of a slice, always
        said = [f"<{np.mean(times):.1f} seconds>" for times in grouped]
        return [s for text, part in zip(said, parts, strict=True) for s in (Text(text, True), Media("video", part))]
    if family == "internvl":  # transformers processing_internvl.py: numbered frames, one tile each
        said = [f"Frame{k + 1}" + (f" at {times[0]:.1f}s" if frame_times else "") for k, times in enumerate(grouped)]
        framed = zip(said, parts, strict=True)
        return [s for t, part in framed for s in (Text(f"{t}: ", True), *image_segments(part, family))]
    if frame_times:
        said = [f"{times[0]:.1f}s" for times in grouped]
        return [s for text, part in zip(said, parts, strict=True) for s in (Text(text, True), Media("video", part))]
    # Qwen's convention, sampled fps = n/N * fps, in seconds: what the weights were trained with.
    return [Media("video", slices, per_slice * duration_s / len(times_s))]


def printable(segments: Sequence[Segment], family: Family) -> str:
    """The prompt as people read it; each medium shows as a single placeholder."""
    parts = []
    for segment in segments:
        if isinstance(segment, Text):
            parts.append(segment.text)
        elif isinstance(segment, Special):
            parts.append(segment.name)
        else:
            marks = MARKS[family]
            parts.append(f"{marks.start}{getattr(marks, segment.kind)}{marks.end}")
    return "".join(parts)
