"""What the judge is asked about one description of one item.

The item is a prefix that all its descriptions share. A description is continued in three ways: by the question whether
its evidence is enough and, in a second turn, whether the item is passed; by that for relevance; by that for quality.
Neither the video nor the outcome is among the arguments of anything here.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

from vlrl.config import JudgeConfig
from vlrl.data import encoding, prompt
from vlrl.models.config import VlmConfig
from vlrl.types import Item

QUESTIONS = 3
"""Branches of a description: evidence and outcome, relevance, quality."""


@dataclasses.dataclass(frozen=True)
class Branch:
    """Tokens, and the numbers of those after which the two answers of a branch are read (of one answer: twice)."""

    tokens: list[int]
    places: tuple[int, int]


def check(cfg: JudgeConfig) -> None:
    """Raises ValueError naming what no judge can be asked with."""
    prompt.item_text(cfg.item, Item("", 0.0, "", "", "", ""))
    if not cfg.fence.strip():
        raise ValueError('judge.fence: empty, a description could not be told from the question; set it to \'"""\'')
    if len(set(cfg.words)) != 2:
        raise ValueError(f"judge.words: {cfg.words} are not two answers; write ('no', 'yes')")


def prefix(tokenizer: Any, item: Item, model: VlmConfig, cfg: JudgeConfig) -> encoding.Row:
    """Everything before the description."""
    segments = prompt.open_chat(cfg.system, [prompt.Text(cfg.instruction, True), *prompt.item_text(cfg.item, item)])
    return encoding.encode(tokenizer, segments, model, f"item {item.code}")


def branches(tokenizer: Any, description: str, model: VlmConfig, cfg: JudgeConfig) -> tuple[Branch, Branch, Branch]:
    """The description with each of its questions. It is untrusted: no special tokens in it, and no fence."""
    quoted = prompt.Text(fenced(description, cfg), False)
    evidence, relevance, quality = (
        _encoded(tokenizer, [quoted, *_asked(question, cfg)], model)
        for question in (cfg.evidence_question, cfg.relevance_question, cfg.quality_question)
    )
    # The second turn is read only where the first answer was yes, so it may stand there before it is given.
    end = (prompt.Special(prompt.TURN_END), prompt.Text("\n", True))
    turn = (prompt.Text(cfg.words[1], True), *end, *prompt.open_chat("", []), *_asked(cfg.outcome_question, cfg))
    outcome = _encoded(tokenizer, turn, model)
    return (
        Branch(evidence + outcome, (len(evidence) - 1, len(evidence) + len(outcome) - 1)),
        Branch(relevance, (len(relevance) - 1,) * 2),
        Branch(quality, (len(quality) - 1,) * 2),
    )


def fenced(description: str, cfg: JudgeConfig) -> str:
    """The description as a quotation that it cannot end by itself."""
    return f"Description:\n{cfg.fence}\n{description.replace(cfg.fence, ' ')}\n{cfg.fence}\n"


def spoken(item: Item, description: str, cfg: JudgeConfig) -> str:
    """The same as prefix and description, as one text for an endpoint."""
    said = [segment.text for segment in prompt.item_text(cfg.item, item) if isinstance(segment, prompt.Text)]
    return f"{cfg.instruction}{''.join(said)}{fenced(description, cfg)}"


def _asked(question: str, cfg: JudgeConfig) -> tuple[prompt.Segment, ...]:
    start = [prompt.Text(cfg.answer_start, True)] if cfg.answer_start else []
    return (*prompt.close_chat(question), *start)


def _encoded(tokenizer: Any, segments: Sequence[prompt.Segment], model: VlmConfig) -> list[int]:
    return encoding.encode(tokenizer, segments, model, "judge").tokens.tolist()
