import re

import numpy as np
import pytest

from vlrl.world import questions, scenes, teacher


@pytest.fixture(scope="module")
def asked():
    """(scene, example) of 400 scenes."""
    rng = np.random.default_rng(11)
    made = [scenes.sample_scene(rng) for _ in range(400)]
    return [(scene, example) for scene in made for example in questions.questions(scene, rng)]


def position(obj, scene, t):
    """Independent of box_at: the centre by hand."""
    knots = np.array(obj.path)
    return np.array([np.interp(t, knots[:, 0], knots[:, 1]), np.interp(t, knots[:, 0], knots[:, 2])])


def true_box(obj, scene, t):
    half = obj.shape.side * min(scene.height, scene.width) / np.array([scene.width, scene.height]) / 2
    return (*(position(obj, scene, t) - half), *(position(obj, scene, t) + half))


def holds(question, phrase, scene):
    """Whether an object is a right answer to a which-question, read off the scene anew."""
    obj = {o.phrase: o for o in scene.objects}.get(phrase)
    if obj is None:
        return False
    if question == "Which object appears late?":
        return obj.visible_s[0] > 0
    if question == "Which object vanishes?":
        return obj.visible_s[1] < scene.duration_s
    if match := re.fullmatch(r"Which object moves (\w+)\?", question):
        x, y = position(obj, scene, obj.visible_s[1]) - position(obj, scene, obj.visible_s[0])
        return {"left": -x, "right": x, "up": -y, "down": y}[match[1]] > 0.1
    other = re.fullmatch(r"Which object touches the (\w+ \w+)\?", question)[1]
    return {phrase, other} == {scene.objects[i].phrase for i in scene.contact[:2]} and phrase != other


def test_exactly_one_option_of_a_choice_is_right(asked):
    seen = set()
    for scene, example in asked:
        if example.task != "mcq":
            continue
        assert len(example.options) == len(set(example.options)) == 4
        if match := re.fullmatch(r"What shape is the (\w+) object\?", example.question):
            right = [o for o in example.options if f"{match[1]} {o}" in {obj.phrase for obj in scene.objects}]
        elif match := re.fullmatch(r"What colour is the (\w+)\?", example.question):
            right = [o for o in example.options if f"{o} {match[1]}" in {obj.phrase for obj in scene.objects}]
        else:
            right = [o for o in example.options if holds(example.question, o, scene)]
        assert right == [example.options["ABCD".index(example.answer_option)]]
        assert example.reference == f"{example.answer_option}. {right[0]}"
        seen.add(" ".join(example.question.split()[:3]))
    assert {"What shape is", "What colour is", "Which object appears", "Which object moves"} <= seen
    assert {"Which object vanishes?", "Which object touches"} <= seen


def test_right_letters_are_uniform(asked):
    letters = [example.answer_option for _, example in asked if example.task == "mcq"]
    counts = np.array([letters.count(letter) for letter in "ABCD"])
    # 400 draws: three standard deviations of a count are 26.
    assert np.abs(counts - 100).max() < 27


def test_spans_are_the_visible_or_touching_time(asked):
    for scene, example in asked:
        if example.answer_span_s is None:
            assert example.task in ("mcq", "where")
            continue
        by_phrase = {obj.phrase: obj for obj in scene.objects}
        if "touch" in example.question:
            assert {scene.objects[i].phrase for i in scene.contact[:2]} == set(example.subjects)
            assert example.answer_span_s == scene.contact[2:]
        else:
            assert example.answer_span_s == by_phrase[example.subjects[0]].visible_s
        assert all(phrase in example.question for phrase in example.subjects)


def test_answer_boxes_are_the_true_boxes_at_the_asked_moments(asked):
    for scene, example in asked:
        times = [float(t) for t in re.findall(r"(\d+\.\d) s", example.question)]
        assert [box.time_s for box in example.answer_boxes] == times
        located = re.search(r"[Ww]here is (?:the (\w+ \w+)|it) at", example.question)
        for box in example.answer_boxes:
            obj = questions.named(scene, located[1] or example.subjects[0])
            assert box.box == pytest.approx(true_box(obj, scene, box.time_s))
            assert obj.visible_s[0] <= box.time_s <= scene.frame_times_s[-1]


def test_tracks_hold_every_object_at_every_frame_that_shows_it(asked):
    for scene, example in asked[:100]:
        assert set(example.tracks) == {obj.phrase for obj in scene.objects}
        for obj in scene.objects:
            start, end = obj.visible_s
            times = [t for t in scene.frame_times_s if t >= start and (t < end or end == scene.duration_s)]
            track = example.tracks[obj.phrase]
            assert [box.time_s for box in track] == pytest.approx(times, abs=1e-4)
            for box in track[:: max(1, len(track) // 3)]:
                assert box.box == pytest.approx(true_box(obj, scene, box.time_s), abs=2e-4)


def test_tracks_can_be_left_out():
    scene = scenes.sample_scene(np.random.default_rng(0))
    made = questions.questions(scene, np.random.default_rng(0), with_tracks=False)
    assert all(example.tracks == {} for example in made)


def test_a_box_is_written_on_the_grid_and_never_empty():
    assert questions.box_text((0.1, 0.249, 0.5, 1.0)) == "<box>[100,240,500,1000]</box>"
    assert questions.box_text((0.999, 0.999, 1.0, 1.0)) == "<box>[980,980,1000,1000]</box>"
    assert questions.box_text((-0.2, 0.301, 1.2, 0.302)) == "<box>[0,300,1000,320]</box>"


def still_scene():
    red = scenes.Object(scenes.Shape("circle", "red", 0.4), ((0.0, 0.5, 0.4),), (1.0, 4.0))
    blue = scenes.Object(scenes.Shape("square", "blue", 0.2), ((0.0, 0.1, 0.1),), (0.0, 4.0))
    return scenes.Scene((red, blue), 4.0, 10, 112, 112, False, tuple(k / 10 for k in range(40)))


def example_of(task, scene):
    rng = np.random.default_rng(0)
    while True:
        for example in questions.questions(scene, rng):
            if example.task == task and example.subjects == ("red circle",) and len(example.answer_boxes) < 2:
                return example


FRAME_TIMES = (0.0, 0.56, 1.11, 1.67, 2.23, 2.79, 3.34, 3.9)


def test_teacher_states_time_then_claim_and_rounds_the_span():
    scene = still_scene()
    text = teacher.teacher(example_of("when", scene), scene, FRAME_TIMES, np.random.default_rng(0))
    # Slices begin at 0, 1.11, 2.23, 3.34; the circle (x .3 to .7, y .2 to .6) shows from the second on.
    claim = "{t} s : <obj>red circle</obj><box>[300,200,700,600]</box>at<t>{t}</t>s"
    assert text == (
        f"<think>{claim.format(t='1.1')} ; {claim.format(t='3.3')}</think>"
        "<answer>From <t>1.0</t>s to <t>4.0</t>s</answer>"
    )


def test_teacher_cites_the_slice_nearest_the_asked_moment_and_scales_boxes():
    scene = still_scene()
    example = example_of("where", scene)
    asked = example.answer_boxes[0].time_s
    nearest = min((1.11, 2.23, 3.34), key=lambda t: abs(t - asked))
    text = teacher.teacher(example, scene, FRAME_TIMES, np.random.default_rng(0), looseness=1.5)
    # Half sides grow from .2 to .3: x .2 to .8, y .1 to .7.
    box = "<box>[200,100,800,700]</box>at<t>{:.1f}</t>s"
    assert text == (
        f"<think>{nearest:.1f} s : <obj>red circle</obj>{box.format(nearest)}</think>"
        f"<answer>{box.format(asked)}</answer>"
    )


def test_teacher_draws_the_looseness_of_each_box_when_it_is_a_function():
    scene = still_scene()
    scales = iter((1.0, 2.0))
    text = teacher.teacher(
        example_of("when", scene), scene, FRAME_TIMES, np.random.default_rng(0), lambda rng: next(scales)
    )
    assert re.findall(r"\[.*?\]", text) == ["[300,200,700,600]", "[100,0,900,800]"]


def test_teacher_claims_are_true_for_every_question(asked):
    rng = np.random.default_rng(2)
    pattern = r"(\d+\.\d) s : <obj>(\w+ \w+)</obj><box>\[(\d+),(\d+),(\d+),(\d+)\]</box>at<t>(\d+\.\d)</t>s"
    for scene, example in asked:
        times = np.linspace(0, scene.frame_times_s[-1], 8)
        text = teacher.teacher(example, scene, times, rng)
        claims = re.findall(pattern, text)
        assert 1 <= len(claims) <= 2
        assert text.count("<obj>") == len(claims)
        for stated, phrase, *corners, t in claims:
            slice_s = min(times[::2], key=lambda s: abs(s - float(t)))
            assert stated == t == f"{slice_s:.1f}"
            assert phrase in example.subjects
            wanted = np.array(true_box(questions.named(scene, phrase), scene, slice_s)) * 1000
            assert np.abs(np.array(corners, float) - wanted).max() <= 10 + 1e-6
        if example.task == "mcq":
            letter = example.answer_option
            option = example.options["ABCD".index(letter)]
            assert text.endswith(f"s ; {option} {letter}</think><answer>{letter}</answer>")


def test_teacher_still_cites_an_object_that_no_slice_begins_with():
    scene = still_scene()
    example = example_of("when", scene)
    text = teacher.teacher(example, scene, (0.0, 3.9), np.random.default_rng(0))
    assert "2.5 s : <obj>red circle</obj>" in text


def test_a_moment_that_does_not_show_the_object_is_refused():
    scene = still_scene()
    with pytest.raises(ValueError, match=r"red circle is not visible at 0\.5 s"):
        questions._true_box(scene, scene.objects[0], 0.5)
    assert questions._true_box(scene, scene.objects[1], 0.5).box == pytest.approx((0, 0, 0.2, 0.2))
