import av
import numpy as np
import pytest

from vlrl.world import render, scenes


def still(kind="square", colour="red", side=0.4, at=(0.5, 0.5), visible_s=(0.0, 4.0)):
    return scenes.Object(scenes.Shape(kind, colour, side), ((0.0, *at),), visible_s)


def scene_of(*objects, height=100, width=100, fps=10, times=None):
    variable = times is not None
    times = times or tuple(k / fps for k in range(4 * fps))
    return scenes.Scene(tuple(objects), 4.0, fps, height, width, variable, times)


def decoded(path):
    with av.open(str(path)) as container:
        frames = list(container.decode(video=0))
        times = [float(frame.pts * frame.time_base) for frame in frames]
        return np.stack([frame.to_ndarray(format="rgb24") for frame in frames]), times


def test_a_square_fills_exactly_the_pixels_of_its_box():
    picture = render.render(scene_of(still()), np.array([0.0]), 100, 100)[0]
    inside = np.zeros((100, 100), bool)
    inside[30:70, 30:70] = True
    assert (picture[inside] == scenes.COLOURS["red"]).all()
    assert (picture[~inside][:, 1] == 40).all()
    assert picture[~inside].max() == 100


def test_background_red_grows_to_the_right_and_blue_to_the_bottom():
    picture = render.render(scene_of(), np.array([0.0]), 84, 140)[0]
    assert picture[0, 0].tolist() == [20, 40, 20]
    assert picture[0, -1].tolist() == [100, 40, 20]
    assert picture[-1, 0].tolist() == [20, 40, 100]
    assert picture[-1, -1].tolist() == [100, 40, 100]


@pytest.mark.parametrize("kind", scenes.SHAPES)
def test_every_shape_reaches_the_four_sides_of_its_box_and_no_further(kind):
    obj = still(kind, "white", side=0.38, at=(0.41, 0.53))
    scene = scene_of(obj, height=140, width=84)
    picture = render.render(scene, np.array([0.0]), 140, 84)[0]
    rows, columns = np.nonzero(picture[:, :, 1] > 145)
    drawn = np.array([columns.min() / 84, rows.min() / 140, (columns.max() + 1) / 84, (rows.max() + 1) / 140])
    off_px = np.abs(drawn - scenes.box_at(obj, scene, 0.0)) * (84, 140, 84, 140)
    assert off_px.max() <= 1.5


def test_shapes_cover_the_area_that_geometry_says():
    # Of the 40 px box: all; pi/4; half; the ring between .55 and 1 of the radius; two bars of .3 less their middle.
    expected = {"square": 1, "circle": 0.785, "triangle": 0.5, "ring": 0.785 * (1 - 0.55**2), "cross": 0.6 - 0.09}
    for kind, share in expected.items():
        picture = render.render(scene_of(still(kind, "white")), np.array([0.0]), 100, 100)[0]
        cover = (picture[:, :, 1].astype(float) - 40) / 210
        assert cover.sum() / 1600 == pytest.approx(share, abs=0.015), kind


def test_frames_show_an_object_only_while_it_is_visible_and_where_it_then_is():
    path = ((0.0, 0.3, 0.3), (4.0, 0.7, 0.3))
    obj = scenes.Object(scenes.Shape("square", "green", 0.2), path, (1.0, 3.0))
    frames = render.render(scene_of(obj), np.array([0.5, 1.0, 2.5, 3.5]), 100, 100)
    columns = [np.nonzero(frame[30, :, 1] > 200)[0] for frame in frames]
    assert columns[0].size == 0
    assert columns[3].size == 0
    assert (columns[1].min(), columns[1].max()) == (30, 49)  # centre .4: from .3 to .5
    assert (columns[2].min(), columns[2].max()) == (45, 64)


def test_drawing_at_another_aspect_keeps_the_box():
    scene = scene_of(still(side=0.5), height=98, width=126)
    picture = render.render(scene, np.array([0.0]), 112, 112)[0]
    rows, columns = np.nonzero(picture[:, :, 0] > 170)
    box = scenes.box_at(scene.objects[0], scene, 0.0)
    drawn = np.array([columns.min(), rows.min(), columns.max() + 1, rows.max() + 1]) / 112
    assert np.abs(drawn - box).max() < 1 / 112


def test_decoded_video_shows_the_true_frames_at_their_times(tmp_path):
    rng = np.random.default_rng(1)
    for number in range(6):
        scene = scenes.sample_scene(rng)
        render.write_mp4(scene, tmp_path / f"{number}.mp4")
        frames, times = decoded(tmp_path / f"{number}.mp4")
        assert times == pytest.approx(scene.frame_times_s, abs=1e-4)
        truth = render.render(scene, np.array(scene.frame_times_s), scene.height, scene.width)
        difference = np.abs(frames.astype(int) - truth)
        # Half-resolution chroma smears edges; areas stay within a few values.
        assert np.median(difference) <= 2
        assert difference.mean() < 5


def test_decoded_object_keeps_its_colour_inside_its_box(tmp_path):
    obj = still("square", "yellow", side=0.4)
    render.write_mp4(scene_of(obj, height=112, width=112), tmp_path / "a.mp4")
    frames, _ = decoded(tmp_path / "a.mp4")
    middle = frames[:, 46:66, 46:66].reshape(-1, 3).astype(int)
    assert np.abs(middle - scenes.COLOURS["yellow"]).max() <= 8


def test_irregular_times_reach_the_file_and_each_frame_shows_its_own_time(tmp_path):
    times = (0.0, 0.05, 0.5, 0.75, 2.0, 2.013, 3.9)
    obj = scenes.Object(scenes.Shape("square", "white", 0.2), ((0.0, 0.2, 0.5), (4.0, 0.8, 0.5)), (0.0, 4.0))
    render.write_mp4(scene_of(obj, height=112, width=112, times=times), tmp_path / "vfr.mp4")
    frames, decoded_times = decoded(tmp_path / "vfr.mp4")
    assert decoded_times == pytest.approx(times, abs=1e-4)
    for frame, t in zip(frames, times, strict=True):
        columns = np.nonzero(frame[56, :, 1] > 150)[0]
        assert (columns.min() + columns.max() + 1) / 2 / 112 == pytest.approx(0.2 + 0.15 * t, abs=0.012)
