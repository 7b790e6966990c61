"""The frames that a step's claims point at, small, for the report.

They are kept while training and not decoded again for the report: this is the picture that the referee graded, edits of
the video included, the run directory can be read where the videos are not, and a report opens no video file.
"""

import io
from collections.abc import Sequence
from typing import Any

import numpy as np
import PIL.Image
from jaxtyping import UInt8

from vlrl.types import Batch, Verdict

LONGEST_SIDE_PX = 320
QUALITY = 80
"""Both together: about 10 kB a frame of an ordinary video."""


def rows(batch: Batch, verdicts: Sequence[Sequence[Sequence[Verdict]]]) -> list[dict[str, Any]]:
    """One row for each frame of each prompt that a claim was graded on; the middle frame where there is no claim.

    `height_px` and `width_px` are those of the video, `jpeg` is shrunk to LONGEST_SIDE_PX. A prompt without video has
    no row."""
    found = []
    for example, video, group in zip(batch.examples, batch.videos, verdicts, strict=True):
        if video is None:
            continue
        claimed = {verdict.frame_index for completion in group for verdict in completion}
        for index in sorted(claimed or {len(video.frames) // 2}):
            height, width = video.frames[index].shape[:2]
            found.append(
                {
                    "example_id": example.example_id,
                    "frame_time_s": float(video.times_s[index]),
                    "height_px": height,
                    "width_px": width,
                    "jpeg": small_jpeg(video.frames[index]),
                }
            )
    return found


def small_jpeg(frame: UInt8[np.ndarray, "height width 3"]) -> bytes:
    """The frame as a JPEG file without metadata, its longest side at most LONGEST_SIDE_PX."""
    image = PIL.Image.fromarray(frame)
    image.thumbnail((LONGEST_SIDE_PX, LONGEST_SIDE_PX))
    file = io.BytesIO()
    image.save(file, "JPEG", quality=QUALITY)
    return file.getvalue()
