"""Which frames of a step are kept, and how small."""

import io

import numpy as np
import PIL.Image
import tiny_vlm

from vlrl import step_media
from vlrl.types import Batch, Claim, Example, Failure, Verdict, Video

PREFIX = tiny_vlm.collate(tiny_vlm.CFG, [tiny_vlm.row(tiny_vlm.CFG, tiny_vlm.text(1))] * 2, 1)
TIMES_S = np.array([0.0, 0.5, 1.0, 1.5])


def batch(frames):
    examples = tuple(Example(f"e{p}", f"/videos/e{p}.mp4", "mcq", "Q?", "R") for p in range(2))
    videos = (Video(frames, TIMES_S, 2.0, 2.0), None)
    return Batch(examples, videos, (None, Failure("corrupt", "/videos/e1.mp4")), ("p", "p"), PREFIX)


def verdict(frame_index):
    claim = Claim("red circle", (0.0, 0.0, 0.5, 0.5), 1.0)
    return Verdict(claim, frame_index, float(TIMES_S[frame_index]), 1.0, 1.0, 1.0, ("A", "A"))


def shades(height, width):
    """Four frames, each of one grey."""
    return np.repeat([0, 80, 160, 240], height * width * 3).reshape(4, height, width, 3).astype(np.uint8)


def test_every_claimed_frame_is_kept_once():
    rows = step_media.rows(batch(shades(20, 30)), (((verdict(3), verdict(0)), (verdict(3),)), ((), ())))
    assert [(row["example_id"], row["frame_time_s"], row["height_px"], row["width_px"]) for row in rows] == [
        ("e0", 0.0, 20, 30),
        ("e0", 1.5, 20, 30),
    ]
    means = [np.asarray(PIL.Image.open(io.BytesIO(row["jpeg"]))).mean() for row in rows]
    np.testing.assert_allclose(means, [0, 240], atol=2)


def test_video_without_claims_shows_its_middle_and_a_failed_one_nothing():
    rows = step_media.rows(batch(shades(20, 30)), (((), ()), ((), ())))
    assert [(row["example_id"], row["frame_time_s"]) for row in rows] == [("e0", 1.0)]


def test_large_frames_are_shrunk_and_keep_their_shape():
    (row,) = step_media.rows(batch(shades(360, 640)), (((verdict(1),),), ((),)))
    assert PIL.Image.open(io.BytesIO(row["jpeg"])).size == (320, 180)
    assert (row["height_px"], row["width_px"]) == (360, 640)


def test_row_holds_no_path():
    rows = step_media.rows(batch(shades(20, 30)), (((), ()), ((), ())))
    assert "/videos" not in repr(rows)
