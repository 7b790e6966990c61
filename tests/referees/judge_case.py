"""Items, and steps of descriptions as the judges read them."""

import numpy as np
import tiny_vlm

from vlrl.types import Batch, Branches, Example, Item, Rollouts

WALKS = Item("18_4", 18.0, "gross motor", "Walks backward", "Film from the side.", "At least two steps backward.")
REFUSES = Item("10_5", 10.0, "social", "Expresses no", "Offer something.", "Turns away or shakes the head.")


def example(number, item=WALKS, **rest):
    fields = {"outcome": "pass", "child_id": f"child-{number}", "sex": "female"} | rest
    return Example(f"v{number}", f"/clips/{number}.mp4", "item", item.text, item.criterion, item=item, **fields)


def step(examples, texts, finished=None, failures=None):
    """Batch and rollouts of [P][G] descriptions."""
    shape = (len(texts), len(texts[0]))
    row = tiny_vlm.row(tiny_vlm.CFG, tiny_vlm.text(1))
    prefix = tiny_vlm.collate(tiny_vlm.CFG, [row] * len(texts), 2)
    failures = tuple(failures or [None] * len(texts))
    batch = Batch(tuple(examples), (None,) * len(texts), failures, ("",) * len(texts), prefix)
    branches = Branches(np.zeros((*shape, 1), np.int32), np.ones(shape, np.int32))
    finished = np.ones(shape, bool) if finished is None else np.array(finished)
    return batch, Rollouts(branches, np.zeros((*shape, 1), np.float32), finished, tuple(map(tuple, texts)))
