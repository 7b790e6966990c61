"""How far the tiny referee can be trusted: its grades on claims of new scenes, against the truth.

python -m vlrl.world.referee_report --referee vlrl/world/checkpoints/referee --claims 1200
"""

import argparse
import dataclasses
import json
import pathlib

import numpy as np

from vlrl import config
from vlrl.eval import statistics
from vlrl.io import hf_import
from vlrl.models import vlm
from vlrl.referees import grader
from vlrl.referees import prompt as referee_prompt
from vlrl.world import architecture, referee_lessons, tokenizer

HELD_OUT_SEED = 10**6
"""Scenes drawn from here are none of those that the referee was trained on."""


@dataclasses.dataclass(frozen=True)
class Graded:
    claim: referee_lessons.Claimed
    relevance: float
    localization: float
    hits: tuple[bool, bool]
    """Whether each letter is the right one."""


def grade(referee: pathlib.Path, cfg: config.Config, num_claims: int) -> list[Graded]:
    """The referee's grades of about `num_claims` new claims of every kind."""
    model_cfg, _ = hf_import.load_config(referee)
    model = vlm.Vlm(model_cfg, unroll=True)
    base = hf_import.place_params(referee, model_cfg, "float32")
    tiny, rng, size = tokenizer.build(), np.random.default_rng(HELD_OUT_SEED), cfg.referee.claims_per_call
    questions = grader.repeated(referee_prompt.question_tokens(tiny, architecture.CONFIG, cfg.referee), size)
    letters, grades = referee_prompt.letter_ids(tiny), np.array(referee_prompt.GRADES)
    graded: list[Graded] = []
    while len(graded) < num_claims:
        lesson = referee_lessons.make(rng, tiny, model_cfg, cfg.data.num_frames, cfg.referee, size)
        logits = np.asarray(grader.letter_logits(model, base, lesson.prefix, questions, letters))
        values, hits = grader.argmax(logits, grades), np.argmax(logits, axis=-1) == lesson.letters
        graded += [
            Graded(claim, float(v[0]), float(v[1]), (bool(h[0]), bool(h[1])))
            for claim, v, h in zip(lesson.claims, values, hits, strict=True)
        ]
    return graded


def summarize(graded: list[Graded]) -> dict:
    """Agreement over all claims and mean grades by kind of claim."""
    iou = np.array([g.claim.iou for g in graded])
    localization = np.array([g.localization for g in graded])
    kinds = {}
    for kind in referee_lessons.KINDS:
        rows = [g for g in graded if g.claim.kind == kind]
        kinds[kind] = {
            "claims": len(rows),
            "true_iou": float(np.mean([g.claim.iou for g in rows])),
            "relevance": float(np.mean([g.relevance for g in rows])),
            "localization": float(np.mean([g.localization for g in rows])),
            "pay": float(np.mean([g.relevance * g.localization for g in rows])),
        }
    return {
        "claims": len(graded),
        "spearman_localization_iou": statistics.spearman(localization, iou),
        "relevance_letter_right": float(np.mean([g.hits[0] for g in graded])),
        "localization_letter_right": float(np.mean([g.hits[1] for g in graded])),
        "kinds": kinds,
    }


def main() -> None:
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("--config", default="configs/tiny_ser.py")
    flags.add_argument("--referee", default="vlrl/world/checkpoints/referee")
    flags.add_argument("--claims", type=int, default=1200)
    flags.add_argument("--json", default="")
    args = flags.parse_args()
    result = summarize(grade(pathlib.Path(args.referee), config.load(args.config), args.claims))
    print(f"{result['claims']} claims of new scenes")
    for name in ("spearman_localization_iou", "relevance_letter_right", "localization_letter_right"):
        print(f"{name:<28}{result[name]:.3f}")
    print(f"{'kind':<14}{'claims':>8}{'true IoU':>10}{'relevance':>11}{'localization':>14}{'pay':>8}")
    for kind, row in result["kinds"].items():
        print(
            f"{kind:<14}{row['claims']:>8}{row['true_iou']:>10.3f}{row['relevance']:>11.3f}"
            f"{row['localization']:>14.3f}{row['pay']:>8.3f}"
        )
    if args.json:
        pathlib.Path(args.json).write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
