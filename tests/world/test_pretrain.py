"""The cold start's stages, as far as they are no training."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vlrl import config
from vlrl.models import vlm
from vlrl.world import architecture, lessons, pretrain, scenes, tokenizer


def test_balancing_scales_the_features_and_leaves_what_the_dense_head_reads():
    cfg, model = config.load("configs/tiny_ser.py"), architecture.model()
    params = pretrain._init(model, cfg, seed=0)
    syllabus = lessons.Syllabus(videos=1, questions=1, branch_length=72, num_objects=1, loose_share=0.0)
    prefix = next(pretrain._lesson(cfg, [(1, syllabus)], np.random.default_rng(0)))[0]
    large = jax.tree.map(lambda x: x * 30, params["model"]["visual"]["merger"]["fc2"])
    params["model"]["visual"]["merger"]["fc2"] = large

    after = pretrain.balanced(model, params, prefix.vision)

    def features_and_reading(tree):
        features = vlm.encode_video(model, tree["model"], prefix.vision)
        return features, features @ tree["dense"]["kernel"]

    _, read_before = features_and_reading(params)
    features, read_after = features_and_reading(after)
    np.testing.assert_allclose(float(jnp.sqrt(jnp.mean(features**2))), pretrain.FEATURE_RMS, rtol=1e-4)
    np.testing.assert_allclose(read_after, read_before, rtol=1e-3, atol=1e-3)


def test_words_begin_as_the_directions_the_dense_head_reads():
    tiny = tokenizer.build()
    dense = np.random.default_rng(0).normal(size=(128, sum(lessons.DENSE_FIELDS)))
    before = {"embed": {"embedding": jnp.zeros((len(tiny), 128))}}
    after = np.asarray(architecture.words_as_seen(before, dense, tiny)["embed"]["embedding"])
    colours = after[tiny.convert_tokens_to_ids(list(scenes.COLOURS))]
    # What the head reads as a colour (columns 2 to 8, after "object or not") resembles that colour's word most.
    assert (np.argmax(dense[:, 2:9].T @ colours.T, axis=1) == np.arange(7)).all()
    np.testing.assert_allclose(np.sqrt(np.mean(colours**2)), architecture.WORD_RMS, rtol=1e-5)
    assert np.count_nonzero(after.any(axis=1)) == len(scenes.COLOURS) + len(scenes.SHAPES)


def test_frozen_parts_stay_and_the_others_move(tmp_path):
    params = {"model": {"visual": jnp.ones(3), "decoder": jnp.ones(3)}, "dense": jnp.ones(3)}
    batches = iter([np.ones((pretrain.DEVICES, 3), np.float32)] * 3)

    def loss(params, batch):
        return jnp.sum(batch @ params["model"]["decoder"]), {}

    stage = pretrain.Stage(steps=3, lr=0.1, batch=pretrain.DEVICES)
    after = pretrain._train("none", params, loss, batches, stage, tmp_path, frozen=("visual", "dense"))
    assert after["model"]["visual"].tolist() == after["dense"].tolist() == [1.0] * 3
    assert (np.asarray(after["model"]["decoder"]) < 1).all()


def _fails(rng):
    yield "a batch"
    raise ValueError("lesson 2 is too long")


def test_error_of_the_process_that_makes_batches_reaches_the_trainer():
    batches = pretrain._stream(_fails, seed=0)
    assert next(batches) == "a batch"
    with pytest.raises(ValueError, match="lesson 2 is too long"):
        next(batches)
