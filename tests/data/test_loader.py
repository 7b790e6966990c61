import dataclasses
import json
import pathlib

import numpy as np
import pytest

from vlrl import types
from vlrl.data import loader, video


@pytest.fixture
def clips(make_clip):
    """Seven examples; clip k is 56 + 28 * (k % 3) px high."""
    return [
        types.Example(
            example_id=f"e{k}",
            video_path=make_clip(f"{k}.mp4", [n / 8 for n in range(8)], (56 + 28 * (k % 3), 84)),
            task="when",
            question="When is the red circle visible?",
            reference="From 1 to 2",
        )
        for k in range(7)
    ]


@pytest.fixture
def open_loader(clips, tokenizer, vlm_cfg, data_cfg, prompt_cfg):
    """open_loader(examples=..., cfg=..., seed=...): Loaders that are closed after the test."""
    with video.DecodePool(data_cfg) as pool:
        opened = []

        def make(examples=clips, cfg=data_cfg, seed=0):
            opened.append(loader.Loader(examples, pool, tokenizer, vlm_cfg, cfg, prompt_cfg, seed))
            return opened[-1]

        yield make
        for each in opened:
            each.close()


def _ids(batch):
    return [example.example_id for example in batch.examples]


def test_every_epoch_holds_each_example_once_in_a_new_order(open_loader):
    batches = open_loader()
    order = [i for _ in range(7) for i in _ids(next(batches))]
    epochs = [order[k : k + 7] for k in range(0, 28, 7)]
    assert all(sorted(epoch) == [f"e{k}" for k in range(7)] for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 4


def test_order_depends_on_the_seed_alone(open_loader):
    first, again, other = (
        [i for _ in range(4) for i in _ids(next(batches))]
        for batches in (open_loader(), open_loader(), open_loader(seed=1))
    )
    assert first == again
    assert first != other


def test_state_goes_on_after_the_batches_handed_out_on_a_fresh_object(open_loader):
    whole = open_loader()
    expected = [next(whole) for _ in range(6)]
    first = open_loader()
    for _ in range(2):
        next(first)
    state = json.loads(json.dumps(first.get_state()))
    second = open_loader()
    next(second)  # a loader that already prefetches forgets it
    second.set_state(state)
    assert second.get_state() == state
    got = [next(second), next(second)]
    third = open_loader()
    third.set_state(json.loads(json.dumps(second.get_state())))
    got += [next(third), next(third)]
    for batch, other in zip(got, expected[2:], strict=True):
        assert _ids(batch) == _ids(other)
        _assert_equal(batch, other)


def test_state_before_the_first_batch_is_the_start(open_loader):
    fresh = open_loader()
    state = fresh.get_state()
    first = _ids(next(fresh))
    fresh.set_state(state)
    assert _ids(next(fresh)) == first


def test_state_of_another_dataset_is_refused_naming_both(open_loader, clips):
    state = open_loader().get_state()
    other = open_loader(examples=clips[:-1])
    with pytest.raises(ValueError, match="dataset") as error:
        other.set_state(state)
    assert loader.fingerprint(clips) in str(error.value)
    assert loader.fingerprint(clips[:-1]) in str(error.value)


def test_state_of_another_seed_or_batch_size_is_refused(open_loader, data_cfg):
    state = open_loader().get_state()
    with pytest.raises(ValueError, match="seed 0, this run has 1"):
        open_loader(seed=1).set_state(state)
    with pytest.raises(ValueError, match="prompts_per_step 4, this run has 2"):
        open_loader(cfg=dataclasses.replace(data_cfg, prompts_per_step=2)).set_state(state)


def test_corrupt_video_keeps_its_row_and_no_other_video_takes_its_place(open_loader, clips):
    path = pathlib.Path(clips[2].video_path)
    path.write_bytes(path.read_bytes()[:500])
    batch = next(open_loader(examples=clips[:4]))
    bad = _ids(batch).index("e2")
    assert batch.valid.tolist() == [p != bad for p in range(4)]
    assert batch.failures[bad].reason == "unreadable"
    assert batch.videos[bad] is None
    assert (batch.prefix.vision_index[bad] == -1).all()
    assert (batch.prefix.vision.window[bad] == -1).all()
    assert not batch.prefix.vision.patches[bad].any()
    assert batch.prefix.length[bad] > 0
    for p in range(4):
        if p != bad:
            alone = video.decode(batch.examples[p].video_path, 4, open_loader()._data)
            np.testing.assert_array_equal(batch.videos[p].frames, alone.frames)
            assert (batch.prefix.vision_index[p] >= 0).any()


def test_batch_of_failures_alone_has_a_valid_shape(clips, tokenizer, vlm_cfg, data_cfg, prompt_cfg):
    failure = types.Failure("missing", "gone.mp4")
    batch = loader.make_batch(clips[:2], [failure, failure], tokenizer, vlm_cfg, data_cfg, prompt_cfg)
    assert batch.prefix.vision.patches.shape == (2, 2, 64, 1176)
    assert batch.prefix.tokens.shape == (2, 256)


def test_too_many_failures_end_the_run(open_loader, clips, data_cfg):
    for example in clips:
        pathlib.Path(example.video_path).unlink()
    batches = open_loader(cfg=dataclasses.replace(data_cfg, max_bad_fraction=0.5))
    next(batches)
    next(batches)
    # 12 of an assumed 20 are more than half
    with pytest.raises(ValueError, match=r"12 of the last 12 videos failed, data\.max_bad_fraction is 0\.5.*missing"):
        next(batches)


def test_tolerated_share_of_failures_goes_on(open_loader, clips):
    pathlib.Path(clips[0].video_path).unlink()
    batches = open_loader()
    assert sum(not valid for _ in range(14) for valid in next(batches).valid) == 8


def test_training_and_evaluation_prepare_a_clip_alike(open_loader, clips, tokenizer, vlm_cfg, data_cfg, prompt_cfg):
    trained = next(open_loader(examples=clips[:4]))
    with video.DecodePool(data_cfg) as pool:
        ((evaluated, real),) = loader.eval_batches(clips[:4], pool, tokenizer, vlm_cfg, data_cfg, prompt_cfg, 4)
    assert real == 4
    assert _ids(evaluated) == ["e0", "e1", "e2", "e3"]
    rows = [_ids(evaluated).index(i) for i in _ids(trained)]
    for name in ("tokens", "positions", "vision_index", "length"):
        np.testing.assert_array_equal(getattr(evaluated.prefix, name)[rows], getattr(trained.prefix, name))
    np.testing.assert_array_equal(evaluated.prefix.vision.patches[rows], trained.prefix.vision.patches)


def test_last_evaluation_batch_is_filled_and_says_how_many_are_real(clips, tokenizer, vlm_cfg, data_cfg, prompt_cfg):
    with video.DecodePool(data_cfg) as pool:
        batches = list(loader.eval_batches(clips, pool, tokenizer, vlm_cfg, data_cfg, prompt_cfg, 3))
    assert [(_ids(batch), real) for batch, real in batches] == [
        (["e0", "e1", "e2"], 3),
        (["e3", "e4", "e5"], 3),
        (["e6", "e6", "e6"], 1),
    ]


def test_prompt_too_long_names_the_example(open_loader, clips, data_cfg):
    batches = open_loader(examples=clips[3:4], cfg=dataclasses.replace(data_cfg, prompt_buckets=(32,)))
    with pytest.raises(ValueError, match=r"e3: \d+ tokens, the largest bucket holds 32"):
        next(batches)


def _assert_equal(batch, other):
    for mine, theirs in zip(_leaves(batch), _leaves(other), strict=True):
        np.testing.assert_array_equal(mine, theirs)


def _leaves(batch):
    prefix = batch.prefix
    return prefix.tokens, prefix.positions, prefix.vision_index, prefix.vision.patches, batch.videos[0].times_s
