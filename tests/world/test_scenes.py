import itertools

import numpy as np
import pytest

from vlrl.world import scenes


def still(kind="square", colour="red", side=0.25, at=(0.5, 0.5), visible_s=(0.0, 4.0)):
    return scenes.Object(scenes.Shape(kind, colour, side), ((0.0, *at),), visible_s)


def scene_of(*objects, height=100, width=200, fps=10, times=None):
    times = times or tuple(k / fps for k in range(4 * fps))
    return scenes.Scene(tuple(objects), 4.0, fps, height, width, False, times)


@pytest.fixture(scope="module")
def many():
    rng = np.random.default_rng(5)
    return [scenes.sample_scene(rng) for _ in range(300)]


def apart(a, b):
    """Gap between two boxes along the axis that separates them most; negative where they overlap."""
    return max(a[0] - b[2], b[0] - a[2], a[1] - b[3], b[1] - a[3])


def test_box_of_a_still_square_is_its_side_of_the_shorter_edge_about_its_centre():
    obj = still(side=0.4, at=(0.5, 0.6))
    # Side .4 of 100 px is 40 px: .2 of the width 200 and .4 of the height 100.
    assert scenes.box_at(obj, scene_of(obj), 1.0) == pytest.approx((0.4, 0.4, 0.6, 0.8))


def test_box_of_a_moving_object_is_interpolated_between_its_waypoints():
    obj = scenes.Object(scenes.Shape("circle", "blue", 0.2), ((1.0, 0.2, 0.5), (3.0, 0.4, 0.7)), (0.0, 4.0))
    scene = scene_of(obj, height=100, width=100)
    assert scenes.box_at(obj, scene, 0.0) == pytest.approx((0.1, 0.4, 0.3, 0.6))
    assert scenes.box_at(obj, scene, 2.0) == pytest.approx((0.2, 0.5, 0.4, 0.7))
    assert scenes.box_at(obj, scene, 3.5) == pytest.approx((0.3, 0.6, 0.5, 0.8))


def test_box_is_none_before_an_object_appears_and_from_the_moment_it_vanishes():
    obj = still(visible_s=(1.0, 3.0))
    shown = [scenes.box_at(obj, scene_of(obj), t) is not None for t in (0.9, 1.0, 2.9, 3.0)]
    assert shown == [False, True, True, False]


def test_objects_stay_inside_the_frame_and_apart_unless_they_meet(many):
    for scene in many:
        met = scenes.meeting(scene)
        for t in np.linspace(0, scene.duration_s, 60):
            boxes = {}
            for obj in scene.objects:
                (x, y), (w, h) = (
                    scenes.centres(obj, np.array([t]))[0],
                    scenes.extent(obj.shape, scene.height, scene.width),
                )
                boxes[obj.phrase] = (x - w / 2, y - h / 2, x + w / 2, y + h / 2)
                assert min(boxes[obj.phrase]) > -1e-9
                assert max(boxes[obj.phrase]) < 1 + 1e-9
            for a, b in itertools.combinations(boxes, 2):
                pair = met is not None and {a, b} == {met[0].phrase, met[1].phrase}
                assert apart(boxes[a], boxes[b]) > (-1e-9 if pair else 0)


def test_objects_that_meet_touch_exactly_in_the_stated_interval(many):
    found = [scene for scene in many if scene.contact is not None]
    assert len(found) > 50
    for scene in found:
        a, b, start, end = scenes.meeting(scene)
        assert end - start >= 0.35 * scene.duration_s
        for t in np.arange(0, scene.duration_s, 0.05).tolist():
            gap = apart(scenes.box_at(a, scene, t), scenes.box_at(b, scene, t))
            assert (gap < 1e-9) == (start - 1e-9 <= t <= end + 1e-9), (t, start, end, gap)


def test_colours_of_a_scene_differ_and_objects_are_slow(many):
    for scene in many:
        assert len({obj.shape.colour for obj in scene.objects}) == len(scene.objects)
        for obj in scene.objects:
            for (t0, x0, y0), (t1, x1, y1) in itertools.pairwise(obj.path):
                assert np.hypot(x1 - x0, y1 - y0) / (t1 - t0) < 0.083


def test_at_most_one_object_appears_late_and_one_vanishes_early(many):
    for scene in many:
        assert sum(obj.visible_s[0] > 0 for obj in scene.objects) <= 1
        assert sum(obj.visible_s[1] < scene.duration_s for obj in scene.objects) <= 1


def test_frame_times_start_at_zero_rise_and_are_even_only_without_variable_rate(many):
    for scene in many:
        gaps = np.diff(scene.frame_times_s)
        assert scene.frame_times_s[0] == 0
        assert scene.frame_times_s[-1] < scene.duration_s
        assert gaps.min() > 0
        assert (np.ptp(gaps) > 0.01) == scene.variable_frame_rate


def test_number_of_objects_can_be_asked_for_and_a_wrong_number_is_refused():
    rng = np.random.default_rng(0)
    assert [len(scenes.sample_scene(rng, n).objects) for n in (1, 2, 3)] == [1, 2, 3]
    with pytest.raises(ValueError, match="num_objects is 4"):
        scenes.sample_scene(rng, 4)


def test_equal_seeds_give_equal_scenes():
    assert scenes.sample_scene(np.random.default_rng(3)) == scenes.sample_scene(np.random.default_rng(3))
