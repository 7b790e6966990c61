"""The nouns of vlrl and the axis alphabet of every array signature.

Axes: P prompts, G branches of a prompt (rollouts, questions), B = P*G, S prefix tokens, C branch (completion) tokens,
T tokens, I vision slices of a prompt (one image, or two frames of a video), N patches of a slice, M merged vision
tokens of a prompt, E width of vision features (D, more with the U maps of DeepStack), F frames, V vocabulary, D width,
H query heads, J key/value heads, K head size, L layers.

Boxes are (x1, y1, x2, y2) in [0, 1] of the shown frame, times are seconds: conversions happen at the border.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal

import flax.struct
import jax
import numpy as np
from jaxtyping import Bool, Float, Int

Array = jax.Array | np.ndarray
Box = tuple[float, float, float, float]
Variables = Mapping[str, Any]
"""Flax variables: {"params": base} is the reference, {"params": base, "lora": adapter} the policy."""

Task = Literal["mcq", "when", "where", "both", "item"]
Outcome = Literal["pass", "fail"]
Finding = Literal["pass", "fail", "unable"]
"""What a judge concludes: an outcome, or that the description does not let it apply the criterion."""


@dataclasses.dataclass(frozen=True)
class TimedBox:
    """A box at a moment of the video."""

    time_s: float
    box: Box


@dataclasses.dataclass(frozen=True)
class Item:
    """A behaviour that a clinician passes or fails."""

    code: str
    age_months: float
    """The age the item is for."""
    domain: str
    text: str
    guidance: str
    """How to film it."""
    criterion: str
    """What a pass asks for."""
    under_reversal: Literal["", "flips", "keeps"] = ""
    """The outcome of a video played backwards; empty: not known."""
    under_shuffle: Literal["", "fails", "keeps"] = ""
    """That of a video with its frames in another order."""
    min_duration_s: float | None = None
    """How long the behaviour must last."""

    @property
    def is_temporal(self) -> bool:
        """Whether direction, order or duration decides."""
        return self.under_reversal == "flips" or self.under_shuffle == "fails" or self.min_duration_s is not None


@dataclasses.dataclass(frozen=True)
class Example:
    """One annotated question about one video; `tracks` and `subjects` are for evaluation, never for a reward."""

    example_id: str
    video_path: str
    task: Task
    question: str
    reference: str
    """The reference answer as text: what the referee is told."""
    options: tuple[str, ...] = ()
    answer_option: str | None = None
    answer_span_s: tuple[float, float] | None = None
    answer_boxes: tuple[TimedBox, ...] = ()
    subjects: tuple[str, ...] = ()
    """Phrases of the objects that the question is about."""
    tracks: Mapping[str, tuple[TimedBox, ...]] = dataclasses.field(default_factory=dict)
    """True boxes over time of every object, by phrase."""
    item: Item | None = None
    """Task `item`: a description is asked for, which a judge holds against the outcome."""
    outcome: Outcome | None = None
    """Of the clinician; None for a mismatched pair. No prompt and no judge ever sees it."""
    child_id: str = ""
    sex: str = ""
    site: str = ""
    age_months: float | None = None
    """Of the child in the video."""
    held_s: float | None = None
    """How long the behaviour lasts in the video, where that was recorded."""
    mismatched: bool = False
    """The item is one that the video has nothing to do with."""
    edit: str = ""
    """What is done to the decoded video (`vlrl.data.temporal`)."""


@dataclasses.dataclass(frozen=True)
class Failure:
    """Why a video, claim or verdict is not there; counted as `invalid/<reason>`, never turned into a 0."""

    reason: str
    detail: str


@dataclasses.dataclass(frozen=True)
class Video:
    """Sampled frames with the time of each."""

    frames: np.ndarray
    """uint8 [F, height, width, 3], rotation applied."""
    times_s: np.ndarray
    """float64 [F], presentation times from the start of the video."""
    duration_s: float
    fps: float


@flax.struct.dataclass
class VisionInput:
    """Patches in merge order (each 2x2 block adjacent) and who attends to whom; made by the loader, read by the tower.

    A slice attends to itself only: a temporal patch never sees another (Qwen2.5-VL)."""

    patches: Float[Array, "P I N W"]
    """Normalised pixels, one row a patch (W = channels * 2 * patch * patch)."""
    rope: Int[Array, "P I N 2"]
    """Row and column of the patch in its frame."""
    window: Int[Array, "P I N"]
    """Window of the patch within its slice; -1 marks padding."""


@flax.struct.dataclass
class PrefixInput:
    """Right-padded prompts: the one prefix that G branches share."""

    tokens: Int[Array, "P S"]
    length: Int[Array, " P"]
    positions: Int[Array, "P 3 S"]
    """Multimodal rotary positions (time, row, column)."""
    next_position: Int[Array, " P"]
    """Rotary position of the first branch token."""
    vision_index: Int[Array, "P S"]
    """Row of the prompt's merged vision features that replaces the token; -1 for text."""
    vision: VisionInput

    def without_patches(self) -> "PrefixInput":
        """The same prompts once their features are made: patches are most of their bytes and need not travel again."""
        nothing = jax.tree.map(lambda x: np.zeros((x.shape[0], 0, *x.shape[2:]), x.dtype), self.vision)
        return dataclasses.replace(self, vision=nothing)


@flax.struct.dataclass
class Branches:
    """Continuations of each prefix, right-padded."""

    tokens: Int[Array, "P G C"]
    length: Int[Array, "P G"]


@dataclasses.dataclass(frozen=True)
class Batch:
    """One step's prompts: host side facts beside the arrays. Row i of everything is prompt i; a failed video keeps its
    row (harmless placeholder arrays) with `failures[i]` set, so every device takes part in every step."""

    examples: tuple[Example, ...]
    videos: tuple[Video | None, ...]
    failures: tuple[Failure | None, ...]
    prompts: tuple[str, ...]
    prefix: PrefixInput
    sizes_px: tuple[tuple[int, int], ...] = ()
    """Height and width at which each prompt's frames are shown: what absolute box coordinates refer to."""

    @property
    def valid(self) -> np.ndarray:
        """bool [P]: which prompts have their video."""
        return np.array([failure is None for failure in self.failures])


@dataclasses.dataclass(frozen=True)
class Rollouts:
    """G sampled completions of each prompt."""

    branches: Branches
    logp: Float[Array, "P G C"]
    """Log-probability of each sampled token under the sampler (temperature applied, before top-p and top-k)."""
    finished: Bool[Array, "P G"]
    """Ended on an end-of-sequence token (False: cut by the length limit)."""
    text: tuple[tuple[str, ...], ...]
    """[P][G] decoded completions, without special end tokens."""


@dataclasses.dataclass(frozen=True)
class Claim:
    """The policy says: this object, in this box, at this time."""

    phrase: str
    box: Box
    time_s: float


@dataclasses.dataclass(frozen=True)
class Parsed:
    """What strings of a completion say; fields are None or empty where it does not say it."""

    rationale: str | None
    answer: str | None
    claims: tuple[Claim, ...]
    num_malformed_claims: int
    option: str | None
    span_s: tuple[float, float] | None
    boxes: tuple[TimedBox | Box, ...]
    """Boxes of the final answer; a bare Box where no time was given."""


@dataclasses.dataclass(frozen=True)
class Verdict:
    """The referee's grades of one claim, or why there are none."""

    claim: Claim
    frame_index: int
    frame_time_s: float
    omega: float
    """Temporal weight exp(-(tau - t_j)^2 / (2 sigma^2))."""
    relevance: float
    localization: float
    letters: tuple[str, str]
    failure: Failure | None = None


@dataclasses.dataclass(frozen=True)
class Judgement:
    """What the judge makes of one description, which with the item is all it reads; or why it says nothing."""

    finding: Finding | None = None
    """None where a gate or a failure kept the judge from saying."""
    is_relevant: bool = False
    is_clear: bool = False
    gate: str = ""
    """Why the description was not worth a question (empty, truncated, repetitive): worth nothing, and no failure."""
    failure: Failure | None = None


@dataclasses.dataclass(frozen=True)
class Score:
    """A reward value that may abstain."""

    value: float
    valid: bool = True
    reason: str = ""


@dataclasses.dataclass(frozen=True)
class Scores:
    """Weighted total and each component, [P, G]; invalid entries hold 0 and are masked by `valid`."""

    total: Float[np.ndarray, "P G"]
    valid: Bool[np.ndarray, "P G"]
    components: Mapping[str, Float[np.ndarray, "P G"]]
    reasons: tuple[tuple[str, ...], ...]
