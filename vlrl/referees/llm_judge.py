"""The judge of SemReward: a frozen text model, read as logits over two words; nothing is generated."""

import dataclasses
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from vlrl.config import JudgeConfig
from vlrl.data import encoding
from vlrl.models import vlm
from vlrl.referees import grader, judge, judge_prompt
from vlrl.referees.judge import Case
from vlrl.types import Array, Branches, Failure, Item, Judgement


@dataclasses.dataclass(frozen=True)
class LlmJudge:
    model: vlm.Vlm
    base: Any
    tokenizer: Any
    cfg: JudgeConfig
    words: Int[np.ndarray, " 2"]

    def ask(self, cases: Sequence[Case]) -> list[Judgement]:
        """Judgements in the order of the cases; `rows_per_call` prefixes at a time, each with descriptions of its own.

        Calls are queued before the first answer is read.
        """
        branches = {case: judge_prompt.branches(self.tokenizer, case.description, *self._how) for case in cases}
        prefixes = {item: judge_prompt.prefix(self.tokenizer, item, *self._how) for item in {c.item for c in cases}}
        failures = {case: self._too_long(prefixes[case.item], branches[case]) for case in cases}
        rows = _rows([case for case in cases if failures[case] is None], branches, self.cfg.descriptions_per_row)
        size = self.cfg.rows_per_call
        calls = [(part, self._call(part, prefixes, branches)) for part in _parts(rows, size)]
        logits: dict[Case, Float[np.ndarray, "questions 2 2"]] = {}
        for part, answers in calls:
            for row, answered in zip(part, np.asarray(answers), strict=False):  # padding rows stand behind
                per_case = answered.reshape(-1, judge_prompt.QUESTIONS, 2, 2)
                logits |= dict(zip(row, per_case, strict=False))
        return [_judgement(logits.get(case), failures[case]) for case in cases]

    @property
    def _how(self) -> tuple[Any, JudgeConfig]:
        return self.model.cfg, self.cfg

    def _too_long(self, prefix: encoding.Row, branches: tuple[judge_prompt.Branch, ...]) -> Failure | None:
        longest = max(len(branch.tokens) for branch in branches)
        for name, length, buckets in (
            ("prompt", len(prefix.tokens), self.cfg.prompt_buckets),
            ("branch", longest, self.cfg.branch_buckets),
        ):
            if length > max(buckets):
                detail = f"{length} tokens, judge.{name}_buckets end at {max(buckets)}"
                return Failure(f"judge_{name}_too_long", detail)
        return None

    def _call(
        self,
        rows: list[list[Case]],
        prefixes: dict[Item, encoding.Row],
        branches: Mapping[Case, tuple[judge_prompt.Branch, ...]],
    ) -> Float[Array, "P G 2 2"]:
        rows = rows + rows[:1] * (self.cfg.rows_per_call - len(rows))
        buckets = encoding.Buckets(self.cfg.prompt_buckets, (0,), (0,))
        prefix = encoding.collate([prefixes[row[0].item] for row in rows], buckets, self.model.cfg.vision)
        # Few sizes, each compiled once: an item has as many descriptions as a step has, or a batch of the evaluation.
        width = min(_power_of_two(max(map(len, rows))), self.cfg.descriptions_per_row) * judge_prompt.QUESTIONS
        listed = [[branch for case in row for branch in branches[case]] for row in rows]
        longest = max(len(branch.tokens) for row in listed for branch in row)
        length = min(bucket for bucket in self.cfg.branch_buckets if bucket >= longest)
        tokens = np.zeros((len(rows), width, length), np.int32)
        lengths = np.ones((len(rows), width), np.int32)
        places = np.zeros((len(rows), width, 2), np.int32)
        for p, row in enumerate(listed):
            for g, branch in enumerate(row):
                tokens[p, g, : len(branch.tokens)], lengths[p, g] = branch.tokens, len(branch.tokens)
                places[p, g] = branch.places
        return grader.answer_logits(self.model, self.base, prefix, Branches(tokens, lengths), places, self.words)


def make(model: vlm.Vlm, base: Any, tokenizer: Any, cfg: JudgeConfig) -> LlmJudge:
    """Raises ValueError for prompts that cannot be filled in and answers that are not one token each."""
    judge_prompt.check(cfg)
    return LlmJudge(model, base, tokenizer, cfg, grader.word_ids(tokenizer, cfg.words, "judge"))


def _rows(
    cases: Sequence[Case], branches: Mapping[Case, tuple[judge_prompt.Branch, ...]], most: int
) -> list[list[Case]]:
    """Cases of one item each, at most `most` a row; alike in number and length next to each other."""
    by_item: dict[Item, list[Case]] = defaultdict(list)
    for case in cases:
        by_item[case.item].append(case)
    rows = [part for group in by_item.values() for part in _parts(group, most)]
    return sorted(rows, key=lambda row: (len(row), max(len(branch.tokens) for c in row for branch in branches[c])))


def _parts(rows: list[Any], size: int) -> list[list[Any]]:
    return [rows[i : i + size] for i in range(0, len(rows), size)]


def _power_of_two(count: int) -> int:
    return 1 << (count - 1).bit_length()


def _judgement(logits: Float[np.ndarray, "questions 2 2"] | None, failure: Failure | None) -> Judgement:
    if logits is None:
        return Judgement(failure=failure)
    if not np.all(np.isfinite(logits)):
        return Judgement(failure=Failure("judge_not_finite", f"answer logits {logits.tolist()}"))
    (evidence, outcome), (relevance, _), (quality, _) = np.argmax(logits, axis=-1).astype(bool).tolist()
    return Judgement(judge.finding(evidence, outcome), relevance, quality)
