"""Makes the shipped checkpoints of the tiny world: the policy's cold start and the referee.

    python -m vlrl.world.pretrain --out vlrl/world/checkpoints

The vision tower learns to see with a dense head that is thrown away; from it the policy learns to answer with claims,
the last steps from a teacher who mostly draws boxes far too large (the systematic error left for
reinforcement learning); from it, too, the referee learns to grade. States its own time.
"""

import argparse
import contextlib
import dataclasses
import functools
import multiprocessing
import os
import pathlib
import queue as queue_module
import time
from collections.abc import Iterator
from typing import Any

import flax
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Bool, Float, Int

from vlrl import config
from vlrl.io import hf_export
from vlrl.models import vlm
from vlrl.referees import grader
from vlrl.referees import prompt as referee_prompt
from vlrl.types import Array, Branches, PrefixInput, VisionInput
from vlrl.world import architecture, drills, lessons, referee_lessons, tokenizer


@dataclasses.dataclass(frozen=True)
class Stage:
    steps: int
    lr: float
    batch: int
    """Videos, or claims of the referee."""


STAGES = {
    "tower": Stage(steps=1600, lr=1.5e-3, batch=16),
    "drill": Stage(steps=2400, lr=2e-3, batch=4),
    "skill": Stage(steps=3000, lr=1.2e-3, batch=6),
    "policy": Stage(steps=150, lr=1e-3, batch=6),
    "referee": Stage(steps=2400, lr=1e-3, batch=16),
}
SHIPPED = ("policy", "referee")
QUESTIONS = 8
BRANCH_LENGTH = 72
DRILL_LENGTH = 48
VIDEO_PREFIX_LENGTH = 88
LOOSE_SHARE = 0.6
LETTER_STEPS, ONE_OBJECT_STEPS = 220, 100
DRILLS = {"pointing": 0.4, "naming": 0.45, "choosing": 0.15}
DEVICES = 2
"""Half a batch on each core: faster than both cores on each small product."""
FEATURE_RMS = 0.3


def main() -> None:
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("--config", default="configs/tiny_ser.py", help="whose preprocessing and prompts to teach")
    flags.add_argument("--out", default="vlrl/world/checkpoints", help="gets policy/ and referee/")
    flags.add_argument("--work", default="runs/pretrain", help="intermediate weights and log")
    flags.add_argument("--stages", default="tower,drill,skill,policy,referee", help="which to run, in this order")
    flags.add_argument("--seed", type=int, default=0)
    args = flags.parse_args()
    jax.config.update("jax_num_cpu_devices", DEVICES)
    cfg, work, out = config.load(args.config), pathlib.Path(args.work), pathlib.Path(args.out)
    work.mkdir(parents=True, exist_ok=True)
    for name in args.stages.split(","):
        start = time.monotonic()
        params = RUN[name](cfg, STAGES[name], args.seed, work)
        _save(work / f"{name}.npz", params)
        if name in SHIPPED:
            architecture.write_support_files(work / "carried", cfg)
            hf_export.export_full(
                architecture.hf_config(), params["model"], "bfloat16", out / name, work / "carried", overwrite=True
            )
        print(f"{name}: {(time.monotonic() - start) / 60:.1f} minutes", flush=True)


def train_tower(cfg: config.Config, stage: Stage, seed: int, work: pathlib.Path) -> Any:
    """The vision tower alone, on the dense truth of every merged unit."""
    model = architecture.model()
    syllabus = lessons.Syllabus(stage.batch, 1, BRANCH_LENGTH, None, 0.0)
    batches = _stream(functools.partial(_lesson, cfg, [(stage.steps + 1, syllabus)]), seed)
    params = _init(model, cfg, seed)

    def loss(params: Any, batch: tuple) -> tuple[Float[Array, ""], dict]:
        prefix, _, _, dense = batch
        value, accuracy = _dense_loss(model, params, prefix.vision, dense)
        return value, accuracy

    return _train("tower", params, loss, batches, stage, work)


def balanced(model: vlm.Vlm, params: Any, vision: VisionInput) -> Any:
    """The same tower with features of RMS FEATURE_RMS, and the dense head scaled to read them as before.

    Trained alone the tower's features grow to forty times the text embeddings: attention then adds next to nothing to
    them, and a vision token does not learn the time that is written before it.
    """
    features = vlm.encode_video(model, params["model"], vision)
    scale = FEATURE_RMS / jnp.sqrt(jnp.mean(jnp.square(features)))
    visual = params["model"]["visual"]
    merger = {**visual["merger"], "fc2": jax.tree.map(lambda x: x * scale, visual["merger"]["fc2"])}
    dense = {**params["dense"], "kernel": params["dense"]["kernel"] / scale}
    return {"model": {**params["model"], "visual": {**visual, "merger": merger}}, "dense": dense}


def train_drill(cfg: config.Config, stage: Stage, seed: int, work: pathlib.Path) -> Any:
    """A new decoder under the trained tower learns to look up: coordinates of a named object, the letter of an option.

    Both are a few attention steps that whole completions teach slowly: there one token in forty asks for them.
    """
    drill = functools.partial(lessons.Syllabus, stage.batch, 2 * QUESTIONS, DRILL_LENGTH)
    letters, easy, mixed = drill(1, 0.0, {"choosing": 1.0}), drill(1, 0.0, {"pointing": 1.0}), drill(None, 0.0, DRILLS)
    plan = [(LETTER_STEPS, letters), (ONE_OBJECT_STEPS, easy), (stage.steps, mixed)]
    batches = _stream(functools.partial(_lesson, cfg, plan), seed + 1)
    model, new = architecture.model(), _init(architecture.model(), cfg, seed)
    tower = _load(work / "tower.npz", new)
    seen = balanced(model, tower, next(batches)[0].vision)
    words = architecture.words_as_seen(new["model"], seen["dense"]["kernel"], tokenizer.build())
    start = {"model": {**words, "visual": seen["model"]["visual"]}, "dense": seen["dense"]}
    return _train_on_completions("drill", start, batches, stage, work)


def train_skill(cfg: config.Config, stage: Stage, seed: int, work: pathlib.Path) -> Any:
    """The policy on right completions, every question of a video on one prefix."""
    syllabus = lessons.Syllabus(stage.batch, QUESTIONS, BRANCH_LENGTH, None, 0.0)
    batches = _stream(functools.partial(_lesson, cfg, [(stage.steps, syllabus)]), seed + 5)
    start = _load(work / "drill.npz", _init(architecture.model(), cfg, seed))
    return _train_on_completions("skill", start, batches, stage, work)


def train_policy(cfg: config.Config, stage: Stage, seed: int, work: pathlib.Path) -> Any:
    """The cold start that is shipped: the skill, then a teacher who mostly draws boxes far too large."""
    syllabus = lessons.Syllabus(stage.batch, QUESTIONS, BRANCH_LENGTH, None, LOOSE_SHARE)
    batches = _stream(functools.partial(_lesson, cfg, [(stage.steps, syllabus)]), seed + 2)
    start = _load(work / "skill.npz", _init(architecture.model(), cfg, seed))
    return _train_on_completions("policy", start, batches, stage, work)


def _train_on_completions(name: str, start: Any, batches: Iterator, stage: Stage, work: pathlib.Path) -> Any:
    model = architecture.model()

    def loss(params: Any, batch: tuple) -> tuple[Float[Array, ""], dict]:
        prefix, branches, mask, _ = batch
        features = jax.lax.stop_gradient(vlm.encode_video(model, params["model"], prefix.vision))
        logits = _branch_logits(model, params["model"], prefix, features, branches)
        missed = optax.softmax_cross_entropy_with_integer_labels(logits, branches.tokens)
        answer = jnp.sum(missed * mask) / jnp.sum(mask)
        hit = jnp.argmax(logits, -1) == branches.tokens
        weights = {"letter": drills.LETTER_WEIGHT, "name": drills.NAME_WEIGHT}
        return answer, {name: _share(hit, mask == weight) for name, weight in weights.items()}

    # The tower has learnt what it can; a decoder that still guesses would only spoil it.
    return _train(name, start, loss, batches, stage, work, frozen=("visual", "dense"))


def train_referee(cfg: config.Config, stage: Stage, seed: int, work: pathlib.Path) -> Any:
    """Letters for claims, both questions on one prefix; only the letter is graded."""
    model = architecture.model()
    tiny = tokenizer.build()
    questions = grader.repeated(referee_prompt.question_tokens(tiny, architecture.CONFIG, cfg.referee), stage.batch)
    letters = jnp.asarray(referee_prompt.letter_ids(tiny))
    batches = _stream(functools.partial(_referee_lesson, cfg, stage.batch), seed + 3)

    def loss(params: Any, batch: tuple) -> tuple[Float[Array, ""], dict]:
        prefix, truth = batch
        scores = grader.letter_logits(model, params["model"], prefix, questions, letters)
        logp = jnp.take_along_axis(jax.nn.log_softmax(scores), truth[..., None], axis=-1)[..., 0]
        hit = jnp.mean(jnp.argmax(scores, -1) == truth, axis=0)
        return -jnp.mean(logp), {"relevance_hit": hit[0], "localization_hit": hit[1]}

    return _train("referee", _load(work / "tower.npz", _init(model, cfg, seed)), loss, batches, stage, work)


RUN = {
    "tower": train_tower,
    "drill": train_drill,
    "skill": train_skill,
    "policy": train_policy,
    "referee": train_referee,
}


def _share(hit: Bool[Array, "P G C"], graded: Bool[Array, "P G C"]) -> Float[Array, ""]:
    return jnp.sum(hit & graded) / jnp.maximum(jnp.sum(graded), 1)


def _branch_logits(
    model: vlm.Vlm, base: Any, prefix: PrefixInput, features: Float[Array, "P M D"], branches: Branches
) -> Float[Array, "P G C V"]:
    """That predict every branch token; with a vocabulary of under a thousand all logits may exist at once."""
    last, hidden = vlm.joint_hidden(model, {"params": base}, prefix, features, branches)
    first = jnp.broadcast_to(last[:, None, None], (*hidden.shape[:2], 1, hidden.shape[-1]))
    return vlm.next_logits(model, {"params": base}, jnp.concatenate([first, hidden[:, :, :-1]], axis=2))


def _dense_loss(
    model: vlm.Vlm, params: Any, vision: VisionInput, dense: Int[Array, "P M 9"]
) -> tuple[Float[Array, ""], dict]:
    return _dense_loss_of(params, vlm.encode_video(model, params["model"], vision), vision, dense)


def _dense_loss_of(
    params: Any, features: Float[Array, "P M D"], vision: VisionInput, dense: Int[Array, "P M 9"]
) -> tuple[Float[Array, ""], dict]:
    """Mean cross entropy of the fields: the first on every unit, the others where there is an object."""
    logits = features @ params["dense"]["kernel"] + params["dense"]["bias"]
    per_unit = vision.window.shape[1] * vision.window.shape[2] // features.shape[1]
    real = (vision.window[..., ::per_unit] >= 0).reshape(features.shape[:2]).astype(jnp.float32)
    here = real * dense[..., 0]
    losses, hits = [], []
    for field, part in enumerate(jnp.split(logits, np.cumsum(lessons.DENSE_FIELDS)[:-1], axis=-1)):
        weight = real if field == 0 else here
        logp = jax.nn.log_softmax(part)
        target = jax.nn.one_hot(dense[..., field], part.shape[-1])
        if part.shape[-1] == 51:  # neighbours on the grid are nearly right
            distance = jnp.arange(51) - dense[..., field, None]
            target = jax.nn.softmax(-(distance**2) / (2 * 0.7**2), axis=-1)
        losses.append(-jnp.sum(jnp.sum(target * logp, -1) * weight) / jnp.sum(weight))
        close = jnp.abs(jnp.argmax(part, -1) - dense[..., field]) <= (part.shape[-1] == 51)
        hits.append(jnp.sum(close * weight) / jnp.sum(weight))
    names = ("object", "colour", "shape", "first", "second", "x1", "y1", "x2", "y2")
    return jnp.sum(jnp.stack(losses)) / 3.0, dict(zip(names, hits, strict=True))


def _train(
    name: str, params: Any, loss: Any, batches: Iterator, stage: Stage, work: pathlib.Path, frozen: tuple[str, ...] = ()
) -> Any:
    """Trains all but the subtrees with the `frozen` names."""
    schedule = optax.warmup_cosine_decay_schedule(
        0.0, stage.lr, min(200, stage.steps // 10), stage.steps, 0.03 * stage.lr
    )
    still = jax.tree_util.tree_map_with_path(lambda path, _: any(part.key in frozen for part in path), params)
    optimizer = optax.chain(
        optax.clip_by_global_norm(1.0),
        optax.adamw(schedule, b2=0.98, weight_decay=0.01),
        optax.masked(optax.set_to_zero(), still),  # weight decay too
    )

    @functools.partial(jax.jit, donate_argnums=(0, 1))
    def update(params: Any, state: Any, batch: Any) -> tuple[Any, Any, dict]:
        (value, metrics), gradient = jax.value_and_grad(loss, has_aux=True)(params, batch)
        change, state = optimizer.update(gradient, state, params)
        return optax.apply_updates(params, change), state, {"loss": value, **metrics}

    mesh = jax.sharding.Mesh(np.array(jax.devices()), ("data",))
    by_video = jax.NamedSharding(mesh, jax.P("data"))
    params = jax.device_put(params, jax.NamedSharding(mesh, jax.P()))
    state, start, window = optimizer.init(params), time.monotonic(), []
    for step in range(stage.steps):
        params, state, metrics = update(params, state, jax.device_put(next(batches), by_video))
        window.append(metrics)
        if (step + 1) % 25 == 0:
            means = {key: float(np.mean([m[key] for m in window])) for key in metrics}
            shown = " ".join(f"{key}={value:.3f}" for key, value in means.items())
            print(f"{name} {step + 1}/{stage.steps} {time.monotonic() - start:.0f}s {shown}", flush=True)
            window = []
        if (step + 1) % 200 == 0:
            _save(work / f"{name}.npz", params)
    return params


def _lesson(cfg: config.Config, plan: list, rng: np.random.Generator) -> Iterator[Any]:
    tiny = tokenizer.build()
    data = dataclasses.replace(cfg.data, prompt_buckets=(VIDEO_PREFIX_LENGTH,))
    for steps, syllabus in plan:
        for _ in range(steps):
            lesson = lessons.make(rng, tiny, architecture.CONFIG, data, cfg.prompt, syllabus)
            yield lesson.prefix, lesson.branches, lesson.loss_mask, lesson.dense


def _referee_lesson(cfg: config.Config, num_claims: int, rng: np.random.Generator) -> Iterator[Any]:
    tiny = tokenizer.build()
    while True:
        lesson = referee_lessons.make(rng, tiny, architecture.CONFIG, cfg.data.num_frames, cfg.referee, num_claims)
        yield lesson.prefix, lesson.letters


def _stream(make: Any, seed: int) -> Iterator[Any]:
    """Batches from a process of their own, a few ahead; its error is raised here."""
    context = multiprocessing.get_context("spawn")
    queue = context.Queue(maxsize=6)
    context.Process(target=_produce, args=(make, seed, queue), daemon=True).start()
    while True:
        batch = queue.get()
        if isinstance(batch, Exception):
            raise batch
        yield batch


def _produce(make: Any, seed: int, queue: Any) -> None:
    os.sched_setaffinity(0, range(os.cpu_count() or 1))  # the trainer may be pinned to one core
    try:
        for batch in make(np.random.default_rng(seed)):
            if not _put(queue, batch):
                return
    except Exception as error:  # whatever it is: the trainer would wait forever
        _put(queue, error)


def _put(queue: Any, item: Any) -> bool:
    """False where the trainer is gone: a killed one leaves no process behind."""
    parent = multiprocessing.parent_process()
    while parent is not None and parent.is_alive():
        with contextlib.suppress(queue_module.Full):
            queue.put(item, timeout=5)
            return True
    return False


def _init(model: vlm.Vlm, cfg: config.Config, seed: int) -> Any:
    syllabus = lessons.Syllabus(1, 1, BRANCH_LENGTH, None, 0.0)
    prefix, branches, _, _ = next(_lesson(cfg, [(1, syllabus)], np.random.default_rng(0)))
    params: Any = jax.jit(model.init)(jax.random.key(seed), prefix, branches)["params"]
    width = sum(lessons.DENSE_FIELDS)
    kernel = jax.random.normal(jax.random.key(seed + 1), (model.cfg.hidden_size, width)) * 0.05
    return {
        "model": architecture.shape_numbers(params, tokenizer.build()),
        "dense": {"kernel": kernel, "bias": jnp.zeros(width)},
    }


def _save(path: pathlib.Path, params: Any) -> None:
    flat = flax.traverse_util.flatten_dict(jax.device_get(params), sep="/")
    np.savez(path, **flat)


def _load(path: pathlib.Path, like: Any) -> Any:
    if not path.exists():
        raise ValueError(f"{path}: not found; run the stage `tower` first")
    with np.load(path) as stored:
        params = flax.traverse_util.unflatten_dict({key: jnp.asarray(stored[key]) for key in stored.files}, sep="/")
    if jax.tree.map(jnp.shape, params) != jax.tree.map(jnp.shape, like):
        raise ValueError(f"{path}: made for another architecture; run the stage `tower` again")
    return params


if __name__ == "__main__":
    main()
