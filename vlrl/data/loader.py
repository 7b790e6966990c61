"""Batches: Grain's order of examples, videos from the decode pool, prompts, padding; one step ahead of the training.

Training and evaluation make their batches by the same function, so that both see a clip alike.
"""

import collections
import concurrent.futures
import copy
import hashlib
import json
from collections.abc import Iterator, Sequence
from typing import Any

import grain

from vlrl import types
from vlrl.config import DataConfig, PromptConfig
from vlrl.data import encoding, video, vision
from vlrl.data import prompt as prompts
from vlrl.models.config import VlmConfig

HISTORY = 100
MIN_HISTORY = 20
"""Bad videos are judged by their share of the last HISTORY, and of not fewer than MIN_HISTORY: chance at the start."""


def make_batch(
    examples: Sequence[types.Example],
    videos: Sequence[types.Video | types.Failure],
    tokenizer: Any,
    vlm: VlmConfig,
    data: DataConfig,
    prompt: PromptConfig,
) -> types.Batch:
    """Row i holds example i with video i; a failed video leaves a short prompt without media, and failures[i] set.

    Raises ValueError naming the example whose prompt fits no bucket.
    """
    rows, texts, sizes = [], [], []
    for example, clip in zip(examples, videos, strict=True):
        if isinstance(clip, types.Failure):
            segments = prompts.chat(prompt.system, [prompts.Text("The video could not be read.", True)])
            sizes.append((1, 1))
        else:
            slices = vision.slices(clip.frames, vlm.vision, data.min_pixels, data.max_pixels)
            segments = prompts.policy_prompt(example, slices, clip.times_s, clip.duration_s, vlm.family, prompt)
            sizes.append(slices.size_px)
        rows.append(encoding.encode(tokenizer, segments, vlm, example.example_id))
        texts.append(prompts.printable(segments, vlm.family))
    buckets = encoding.Buckets(data.prompt_buckets, data.slice_buckets, data.patch_buckets)
    return types.Batch(
        examples=tuple(examples),
        videos=tuple(None if isinstance(clip, types.Failure) else clip for clip in videos),
        failures=tuple(clip if isinstance(clip, types.Failure) else None for clip in videos),
        prompts=tuple(texts),
        prefix=encoding.collate(rows, buckets, vlm.vision),
        sizes_px=tuple(sizes),
    )


def fingerprint(examples: Sequence[types.Example]) -> str:
    """sha256 over ids and video paths, in order: which data a saved state counts in."""
    identity = json.dumps([[e.example_id, e.video_path] for e in examples])
    return hashlib.sha256(identity.encode()).hexdigest()


class Loader:
    """Endless iterator of types.Batch over reshuffled epochs.

    The next batch is made in a thread while the current one trains; get_state() is the state after the batches handed
    out, so that a fresh Loader with set_state() hands out the very next one.
    """

    def __init__(
        self,
        examples: Sequence[types.Example],
        pool: video.DecodePool,
        tokenizer: Any,
        vlm: VlmConfig,
        data: DataConfig,
        prompt: PromptConfig,
        seed: int,
    ):
        self._examples = tuple(examples)
        self._pool = pool
        # A copy: encoding switches flags inside a tokenizer, and this one works in its own thread.
        self._make = (copy.deepcopy(tokenizer), vlm, data, prompt)
        self._data = data
        self._seed = seed
        self._fingerprint = fingerprint(examples)
        order = grain.MapDataset.range(len(examples)).shuffle(seed=seed).repeat().batch(data.prompts_per_step)
        self._order = iter(order.to_iter_dataset(grain.ReadOptions(num_threads=1, prefetch_buffer_size=1)))
        self._bad: collections.deque[bool] = collections.deque(maxlen=HISTORY)
        self._handed_out = self._order.get_state()
        self._thread = concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="loader")
        self._next: concurrent.futures.Future[tuple[types.Batch, Any]] | None = None

    def __iter__(self) -> Iterator[types.Batch]:
        return self

    def __next__(self) -> types.Batch:
        ready = self._next or self._thread.submit(self._produce)
        self._next = None
        batch, state = ready.result()
        self._watch(batch)
        self._handed_out = state
        self._next = self._thread.submit(self._produce)
        return batch

    def get_state(self) -> dict[str, Any]:
        """JSON-able: Grain's position, the data it counts in, recent failures."""
        return {
            "grain": self._handed_out,
            "fingerprint": self._fingerprint,
            "seed": self._seed,
            "prompts_per_step": self._data.prompts_per_step,
            "bad": [int(bad) for bad in self._bad],
        }

    def set_state(self, state: dict[str, Any]) -> None:
        """Goes on from a get_state(). Raises ValueError where data, seed or batch size are not those of the state."""
        for name, here in self.get_state().items():
            if name in ("fingerprint", "seed", "prompts_per_step") and state[name] != here:
                what = "dataset" if name == "fingerprint" else name
                raise ValueError(
                    f"the checkpoint's data order has {what} {state[name]}, this run has {here}; "
                    f"restore data.train and its settings, or start a new run"
                )
        if self._next is not None:
            concurrent.futures.wait([self._next])
            self._next = None
        self._order.set_state(state["grain"])
        self._handed_out = state["grain"]
        self._bad = collections.deque((bool(bad) for bad in state["bad"]), maxlen=HISTORY)

    def close(self) -> None:
        """Stops the thread; the pool is the caller's."""
        self._thread.shutdown(wait=True, cancel_futures=True)

    def _produce(self) -> tuple[types.Batch, Any]:
        chosen = [self._examples[i] for i in next(self._order)]
        state = self._order.get_state()
        videos = self._pool.map([example.video_path for example in chosen])
        return make_batch(chosen, videos, *self._make), state

    def _watch(self, batch: types.Batch) -> None:
        recent = collections.deque([*self._bad, *(f is not None for f in batch.failures)], maxlen=HISTORY)
        bad, seen = sum(recent), len(recent)
        if bad > self._data.max_bad_fraction * max(seen, MIN_HISTORY):
            last = [failure for failure in batch.failures if failure is not None][-1:]
            raise ValueError(
                f"{bad} of the last {seen} videos failed, data.max_bad_fraction is {self._data.max_bad_fraction}; "
                f"re-encode the file or remove its lines from {self._data.train or 'the run'}, the last failure: {last}"
            )
        self._bad = recent  # only now: a run saved at the error goes on once its videos are repaired


def eval_batches(
    examples: Sequence[types.Example],
    pool: video.DecodePool,
    tokenizer: Any,
    vlm: VlmConfig,
    data: DataConfig,
    prompt: PromptConfig,
    prompts_per_batch: int,
) -> Iterator[tuple[types.Batch, int]]:
    """Batches in order with their number of real rows; the last is filled by repeating its first row."""
    make = (copy.deepcopy(tokenizer), vlm, data, prompt)

    def produce(start: int) -> tuple[types.Batch, int]:
        chosen = list(examples[start : start + prompts_per_batch])
        videos = pool.map([example.video_path for example in chosen])
        fill = prompts_per_batch - len(chosen)
        return make_batch(chosen + chosen[:1] * fill, videos + videos[:1] * fill, *make), len(chosen)

    with concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="eval-loader") as thread:
        starts = range(0, len(examples), prompts_per_batch)
        following = thread.submit(produce, 0) if starts else None
        for start in starts:
            assert following is not None
            batch = following.result()
            if start + prompts_per_batch < len(examples):
                following = thread.submit(produce, start + prompts_per_batch)
            yield batch
