"""Lessons are what the policy and the referee will meet: same tokens, true grades."""

import dataclasses
import re

import numpy as np
import pytest

from vlrl import config, geometry
from vlrl.data import encoding, prompt, vision
from vlrl.world import architecture, drills, lessons, questions, referee_lessons, render, scenes, teacher, tokenizer


@pytest.fixture(scope="module")
def cfg() -> config.Config:
    return config.load("configs/tiny_ser.py")


@pytest.fixture(scope="module")
def tiny():
    return tokenizer.build()


def test_prefix_and_branch_are_the_policys_prompt_and_the_teachers_completion(cfg, tiny):
    syllabus = lessons.Syllabus(videos=1, questions=3, branch_length=72, num_objects=None, loose_share=0.0)
    data = dataclasses.replace(cfg.data, prompt_buckets=(96,))
    lesson = lessons.make(np.random.default_rng(5), tiny, architecture.CONFIG, data, cfg.prompt, syllabus)

    # The same draws again, put together as the loader does: one row with video and question.
    rng = np.random.default_rng(5)
    scene = scenes.sample_scene(rng, None)
    pictures, times = lessons.frames(scene, cfg.data.num_frames, rng)
    slices = vision.slices(pictures, architecture.CONFIG.vision, cfg.data.min_pixels, cfg.data.max_pixels)
    asked = [q for _ in range(3) for q in questions.questions(scene, rng, with_tracks=False)]
    for g in range(3):
        k = int(rng.integers(len(asked)))
        segments = prompt.policy_prompt(asked[k], slices, times, scene.duration_s, "qwen2_5_vl", cfg.prompt)
        row = encoding.encode(tiny, segments, architecture.CONFIG, "row")
        rng.random()
        text = teacher.teacher(asked[k], scene, times, rng, 1.0)
        expected = [*row.tokens.tolist(), *tiny(text)["input_ids"], tiny.eos_token_id]
        start, length = int(lesson.prefix.length[0]), int(lesson.branches.length[0, g])
        joined = [*lesson.prefix.tokens[0, :start].tolist(), *lesson.branches.tokens[0, g, :length].tolist()]
        assert joined == expected
        assert int(lesson.prefix.next_position[0]) == row.positions[0, start]
        graded = lesson.loss_mask[0, g, :length]
        assert np.count_nonzero(graded) == len(tiny(text)["input_ids"]) + 1
        heavy = [tiny.decode([t]) for t in lesson.branches.tokens[0, g, :length][graded > 1]]
        if asked[k].task == "mcq":  # what was seen, and the letter
            assert heavy == [*re.findall(r"<obj>(\w+)( \w+)</obj>", text)[0], f" {asked[k].answer_option}"]
        else:
            assert heavy == []


def test_drills_grade_true_coordinates_and_the_letters_of_listed_options(tiny):
    rng = np.random.default_rng(1)
    square = scenes.Object(scenes.Shape("square", "blue", 0.5), ((0.0, 0.25, 0.25),), (0.0, 4.0))
    scene = scenes.Scene((square,), 4.0, 8, 112, 112, False, tuple(k / 8 for k in range(32)))
    times = np.linspace(0, 3.875, 8)
    ids, weights = drills.pointing(rng, tiny, scene, times)
    graded = [tiny.decode([i]) for i, weight in zip(ids, weights, strict=True) if weight]
    assert graded == ["0", "0", "500", "500"] * 3

    for _ in range(20):
        ids, weights = drills.choosing(rng, tiny, scene, times)
        listed, *restated = tiny.decode(ids).split(" ; ")
        options = {line.split(". ")[1]: line[0] for line in listed.strip().split("\n")}
        assert sorted(options.values()) == list("ABCD")
        assert {tuple(text.rsplit(" ", 1)) for text in restated} == set(options.items())
        graded = [tiny.decode([i]).strip() for i, weight in zip(ids, weights, strict=True) if weight]
        assert graded == [text[-1] for text in restated]


def test_naming_drill_asks_and_grades_the_words_of_the_object_that_the_video_shows(tiny):
    rng = np.random.default_rng(1)
    square = scenes.Object(scenes.Shape("square", "blue", 0.5), ((0.0, 0.25, 0.25),), (1.0, 4.0))
    scene = scenes.Scene((square,), 4.0, 8, 112, 112, False, tuple(k / 8 for k in range(32)))
    asked = set()
    for _ in range(20):
        ids, weights = drills.naming(rng, tiny, scene, np.linspace(0, 3.875, 8))
        asked |= set(re.findall(r"(Wh[^?]*\?)\n[123]\.\d s : <obj>blue square</obj>", tiny.decode(ids)))
        graded = [tiny.decode([i]) for i, weight in zip(ids, weights, strict=True) if weight]
        assert graded == ["blue", " square"] * 2
    assert asked == {"What shape is the blue object?", "What colour is the square?", "Which object appears late?"}


def test_a_branch_that_does_not_fit_is_named(cfg, tiny):
    syllabus = lessons.Syllabus(videos=1, questions=1, branch_length=20, num_objects=None, loose_share=0.0)
    data = dataclasses.replace(cfg.data, prompt_buckets=(96,))
    with pytest.raises(ValueError, match=r"a branch of \d+ tokens, branch_length is 20"):
        lessons.make(np.random.default_rng(0), tiny, architecture.CONFIG, data, cfg.prompt, syllabus)


def test_dense_truth_names_the_object_of_a_unit_and_its_edges(cfg):
    square = scenes.Object(scenes.Shape("square", "blue", 0.5), ((0.0, 0.25, 0.25),), (0.0, 4.0))
    scene = scenes.Scene((square,), 4.0, 8, 112, 112, False, tuple(k / 8 for k in range(32)))
    times = np.linspace(0, 3.875, 8)
    frames = render.render(scene, times, 112, 112)
    slices = vision.slices(frames, architecture.CONFIG.vision, cfg.data.min_pixels, cfg.data.max_pixels)
    truth = lessons._dense(scene, times, slices)
    # The square fills the upper left quarter: units 0, 1, 4, 5 of the 4 x 4; edges at 0 and .5 of the frame.
    assert [u for u in range(16) if truth[0, u, 0]] == [0, 1, 4, 5]
    blue, kind = list(scenes.COLOURS).index("blue"), scenes.SHAPES.index("square")
    assert truth[0, 0].tolist() == [1, blue, kind, 1, 1, 0, 0, 25, 25]


@pytest.mark.parametrize("kind", list(referee_lessons.KINDS))
def test_truth_of_a_corrupted_claim_follows_its_kind(kind):
    rng = np.random.default_rng(3)
    seen = []
    for _ in range(40):
        scene = scenes.sample_scene(rng)
        times = np.array(scene.frame_times_s)[:: max(1, len(scene.frame_times_s) // 8)][:8]
        example = questions.questions(scene, rng, with_tracks=False)[0]
        claim = referee_lessons.corrupted(example, scene, times, rng, kind)
        named = [o for o in scene.objects if o.phrase == claim.phrase]
        box = scenes.box_at(named[0], scene, float(times[claim.frame])) if named else None
        assert claim.iou == pytest.approx(geometry.iou(claim.box, box) if box else 0.0)
        seen.append(claim)
    localization = [claim.letters[1] for claim in seen]
    if kind == "right":
        assert np.mean([letter == 0 for letter in localization]) > 0.9
    if kind in ("whole_frame", "wrong_name", "wrong_object"):
        assert np.mean([letter == 4 for letter in localization]) > 0.9
    if kind == "wrong_name":
        assert all(claim.phrase not in {o.phrase for o in scene.objects} or claim.iou < 0.3 for claim in seen)


def test_letters_fall_at_the_bounds():
    claim = referee_lessons.Claimed("right", 0, (0.0, 0.0, 1.0, 1.0), "red ring", iou=0.75, relevance=0.374)
    assert claim.letters == (3, 0)
    assert dataclasses.replace(claim, iou=0.449, relevance=0.875).letters == (0, 3)
    assert dataclasses.replace(claim, iou=0.299, relevance=0.0).letters == (4, 4)
