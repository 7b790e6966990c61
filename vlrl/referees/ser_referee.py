"""The referee of SER: a frozen VLM looks at each claimed region and grades relevance and localization."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from vlrl.config import RefereeConfig
from vlrl.data import encoding, tiles
from vlrl.models import vlm
from vlrl.referees import alignment, grader
from vlrl.referees import prompt as referee_prompt
from vlrl.types import Array, Batch, Claim, Example, Failure, Parsed, Rollouts, Verdict, Video

IMAGES = 2
"""Of a claim: boxed frame and crop."""


@dataclasses.dataclass(frozen=True)
class Referee:
    model: vlm.Vlm
    base: Any
    tokenizer: Any
    cfg: RefereeConfig
    questions: tuple[list[int], list[int]]
    letters: Int[np.ndarray, " 5"]


@dataclasses.dataclass(frozen=True)
class Case:
    """One claim before the referee."""

    claim: Claim
    frame_index: int
    frame_time_s: float
    omega: float
    row: encoding.Row | None
    failure: Failure | None


def make(model: vlm.Vlm, base: Any, tokenizer: Any, cfg: RefereeConfig) -> Referee:
    """Raises ValueError for an unknown gamma or a tokenizer without single-token letters."""
    if cfg.gamma not in grader.GAMMA:
        raise ValueError(f"referee.gamma: no reading {cfg.gamma!r}; choose one of {', '.join(grader.GAMMA)}")
    questions = referee_prompt.question_tokens(tokenizer, model.cfg, cfg)
    return Referee(model, base, tokenizer, cfg, questions, referee_prompt.letter_ids(tokenizer))


def grade(
    referee: Referee, batch: Batch, rollouts: Rollouts, parsed: Sequence[Sequence[Parsed]]
) -> tuple[tuple[tuple[Verdict, ...], ...], ...]:
    """Verdicts [P][G] of the first `max_claims` claims of every completion. A prompt without video has none."""
    cases: dict[tuple, Case] = {}
    asked: list[list[list[tuple]]] = []
    for p, (example, video) in enumerate(zip(batch.examples, batch.videos, strict=True)):
        asked.append([])
        for text, completion in zip(rollouts.text[p], parsed[p], strict=True):
            claims = completion.claims[: referee.cfg.max_claims] if video is not None else ()
            keys = [(p, text, claim) for claim in claims]  # equal completions of a group are graded once
            for key in keys:
                if key not in cases and video is not None:
                    cases[key] = _case(referee, example, video, text, key[2])
            asked[-1].append(keys)
    verdicts = _verdicts(referee, cases)
    return tuple(tuple(tuple(verdicts[key] for key in keys) for keys in group) for group in asked)


def _case(referee: Referee, example: Example, video: Video, response: str, claim: Claim) -> Case:
    cfg = referee.cfg
    frame = alignment.nearest_frame(video.times_s, claim.time_s)
    time_s = float(video.times_s[frame])
    weight = alignment.omega(claim.time_s, time_s, cfg.sigma_s)
    segments = referee_prompt.prefix_segments(
        example,
        video.frames[frame],
        claim.box,
        claim.phrase,
        response,
        referee.model.cfg,
        cfg,
        referee.tokenizer,
    )
    row = encoding.encode(referee.tokenizer, segments, referee.model.cfg, example.example_id)
    if len(row.tokens) > max(cfg.prompt_buckets):
        detail = f"{len(row.tokens)} tokens, referee.prompt_buckets end at {max(cfg.prompt_buckets)}"
        return Case(claim, frame, time_s, weight, None, Failure("referee_prompt_too_long", detail))
    return Case(claim, frame, time_s, weight, row, None)


def _verdicts(referee: Referee, cases: dict[tuple, Case]) -> dict[tuple, Verdict]:
    """Grades all cases with a row, `claims_per_call` at a time; calls are queued before the first answer is read.

    Sorted by length, so that most calls fit a smaller bucket.
    """
    rows = {key: case.row for key, case in cases.items() if case.row is not None}
    keys, size = sorted(rows, key=lambda key: len(rows[key].tokens)), referee.cfg.claims_per_call
    calls = [_ask(referee, [rows[key] for key in keys[i : i + size]]) for i in range(0, len(keys), size)]
    # Padding rows stand behind the real ones of the last call only, so row i is key i.
    logits = np.concatenate([np.zeros((0, 2, 5), np.float32), *(np.asarray(call) for call in calls)])
    number = {key: i for i, key in enumerate(keys)}
    return {
        key: _verdict(case, logits[number[key]] if key in number else None, referee.cfg) for key, case in cases.items()
    }


def _ask(referee: Referee, rows: list[encoding.Row]) -> Float[Array, "P 2 5"]:
    size = referee.cfg.claims_per_call
    rows = rows + rows[:1] * (size - len(rows))
    slices = IMAGES * tiles.most(referee.cfg.max_tiles) if referee.model.cfg.family == "internvl" else IMAGES
    buckets = encoding.Buckets(referee.cfg.prompt_buckets, (slices,), referee.cfg.patch_buckets)
    prefix = encoding.collate(rows, buckets, referee.model.cfg.vision)
    questions = grader.repeated(referee.questions, size)
    return grader.letter_logits(referee.model, referee.base, prefix, questions, referee.letters)


def _verdict(case: Case, logits: Float[np.ndarray, "2 5"] | None, cfg: RefereeConfig) -> Verdict:
    failure = case.failure
    if logits is not None and not np.all(np.isfinite(logits)):
        failure = Failure("referee_not_finite", f"letter logits {logits.tolist()}")
    if failure is not None or logits is None:
        grades, letters = (0.0, 0.0), ("", "")
    else:
        graded = grader.GAMMA[cfg.gamma](logits, np.array(referee_prompt.GRADES))
        grades = (float(graded[0]), float(graded[1]))
        best = np.argmax(logits, axis=-1)
        letters = (referee_prompt.LETTERS[best[0]], referee_prompt.LETTERS[best[1]])
    return Verdict(case.claim, case.frame_index, case.frame_time_s, case.omega, *grades, letters, failure)
