"""Judgements of a step's descriptions: which are asked about, of whom, and in which place the answers belong."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol, runtime_checkable

from vlrl.config import JudgeConfig
from vlrl.referees import gate
from vlrl.types import Batch, Finding, Item, Judgement, Rollouts


class Case(NamedTuple):
    """All that a judge is told. Outcome, video, person and whether the pair is a mismatched one are not in it."""

    item: Item
    description: str


@runtime_checkable
class Judge(Protocol):
    @property
    def cfg(self) -> JudgeConfig: ...

    def ask(self, cases: Sequence[Case]) -> list[Judgement]:
        """One judgement for each case, in order; what cannot be judged is a failure of its case alone."""
        ...


def finding(has_evidence: bool, is_passed: bool) -> Finding:
    """What the two turns come to: the second one counts only where there is evidence."""
    return ("pass" if is_passed else "fail") if has_evidence else "unable"


def grade(judge: Judge, batch: Batch, rollouts: Rollouts) -> tuple[tuple[tuple[Judgement, ...], ...], ...]:
    """[P][G] of one judgement each; none for a prompt without video. Equal descriptions of an item are judged once."""
    gated: list[list[Judgement | Case | None]] = []
    for p, example in enumerate(batch.examples):
        gated.append([])
        for text, finished in zip(rollouts.text[p], rollouts.finished[p], strict=True):
            reason = gate.reason(text, bool(finished), judge.cfg.max_repeats)
            if batch.failures[p] is not None or example.item is None:
                gated[-1].append(None)
            else:
                gated[-1].append(Judgement(gate=reason) if reason else Case(example.item, text))
    cases = list(dict.fromkeys(entry for group in gated for entry in group if isinstance(entry, Case)))
    answers = dict(zip(cases, judge.ask(cases), strict=True)) if cases else {}
    return tuple(
        tuple(() if entry is None else (answers[entry] if isinstance(entry, Case) else entry,) for entry in group)
        for group in gated
    )
