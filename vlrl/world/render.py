"""Pictures of a scene: frames at any time and size, and the video file."""

import functools
import pathlib
from collections.abc import Callable
from fractions import Fraction

import av
import numpy as np
from jaxtyping import Float, UInt8

from vlrl.world import scenes


def render(
    scene: scenes.Scene, times_s: Float[np.ndarray, " F"], height: int, width: int
) -> UInt8[np.ndarray, "F {height} {width} 3"]:
    """The frames at `times_s`, drawn at height x width (shapes stretch along when the aspect differs)."""
    times = np.asarray(times_s, np.float64)
    frames = np.repeat(_background(height, width)[None], len(times), axis=0)
    for obj in scene.objects:
        shown = [k for k, t in enumerate(times.tolist()) if scenes.is_visible(obj, scene, t)]
        if shown:
            _draw(frames, shown, obj, scene, times[shown])
    return frames


def write_mp4(scene: scenes.Scene, path: pathlib.Path) -> None:
    """H.264 file in which every frame shows the scene at its own true time; time 0 is the first frame."""
    times = np.array(scene.frame_times_s)
    # A time base of a millisecond carries irregular times exactly; k / fps needs its own.
    base = Fraction(1, 1000) if scene.variable_frame_rate else Fraction(1, scene.fps)
    ticks = np.round(times / float(base)).astype(int).tolist()
    pictures = render(scene, times, scene.height, scene.width)
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=scene.fps)
        stream.width, stream.height, stream.pix_fmt = scene.width, scene.height, "yuv420p"
        stream.options = {"crf": "18", "preset": "veryfast", "threads": "1"}
        stream.codec_context.time_base = base
        for tick, picture in zip(ticks, pictures, strict=True):
            frame = av.VideoFrame.from_ndarray(picture, format="rgb24")
            frame.pts, frame.time_base = tick, base
            container.mux(stream.encode(frame))
        container.mux(stream.encode())


@functools.lru_cache(maxsize=16)
def _background(height: int, width: int) -> UInt8[np.ndarray, "{height} {width} 3"]:
    """Dim gradient whose red tells the column and whose blue tells the row: a tower that knows only relative
    positions can read the absolute place off the pixels."""
    picture = np.full((height, width, 3), 40, np.uint8)
    picture[:, :, 0] = np.round(np.linspace(20, 100, width))
    picture[:, :, 2] = np.round(np.linspace(20, 100, height))[:, None]
    picture.flags.writeable = False
    return picture


def _draw(
    frames: UInt8[np.ndarray, "A height width 3"],
    shown: list[int],
    obj: scenes.Object,
    scene: scenes.Scene,
    times_s: Float[np.ndarray, " F"],
) -> None:
    """Blends the object into frames[shown] (in place), each within a window that just holds it."""
    height, width = frames.shape[1:3]
    w, h = scenes.extent(obj.shape, scene.height, scene.width)
    centre = scenes.centres(obj, times_s) * (width, height)
    radius = np.array([w * width, h * height]) / 2
    size = np.ceil(2 * radius).astype(int) + 2
    corner = np.clip(np.floor(centre - radius).astype(int), 0, (width, height) - size)
    # Pixel centres in units of the half side: the shape fills [-1, 1].
    u = ((corner[:, 0, None] + np.arange(size[0]) + 0.5 - centre[:, 0, None]) / radius[0]).astype(np.float32)
    v = ((corner[:, 1, None] + np.arange(size[1]) + 0.5 - centre[:, 1, None]) / radius[1]).astype(np.float32)
    distance = _DISTANCE[obj.shape.kind](u[:, None, :], v[:, :, None]) * np.float32(np.sqrt(radius.prod()))
    cover = np.clip(0.5 - distance, 0, 1)[..., None]
    colour = np.array(scenes.COLOURS[obj.shape.colour], np.float32)
    paint, keep = cover * colour + np.float32(0.5), 1 - cover
    for k, (x, y) in enumerate(corner.tolist()):
        window = frames[shown[k], y : y + size[1], x : x + size[0]]
        window[...] = window * keep[k] + paint[k]


def _square(u: Float[np.ndarray, "F 1 X"], v: Float[np.ndarray, "F Y 1"]) -> Float[np.ndarray, "F Y X"]:
    return np.maximum(np.abs(u), np.abs(v)) - 1


def _circle(u: Float[np.ndarray, "F 1 X"], v: Float[np.ndarray, "F Y 1"]) -> Float[np.ndarray, "F Y X"]:
    return np.sqrt(u * u + v * v) - 1


def _triangle(u: Float[np.ndarray, "F 1 X"], v: Float[np.ndarray, "F Y 1"]) -> Float[np.ndarray, "F Y X"]:
    """Apex at the top, base at the bottom of the bounds."""
    return np.maximum((2 * np.abs(u) - v - 1) / np.float32(5**0.5), v - 1)


def _ring(u: Float[np.ndarray, "F 1 X"], v: Float[np.ndarray, "F Y 1"]) -> Float[np.ndarray, "F Y X"]:
    return np.abs(np.sqrt(u * u + v * v) - np.float32(0.775)) - np.float32(0.225)


def _cross(u: Float[np.ndarray, "F 1 X"], v: Float[np.ndarray, "F Y 1"]) -> Float[np.ndarray, "F Y X"]:
    a, b, arm = np.abs(u), np.abs(v), np.float32(0.3)
    return np.minimum(np.maximum(a - 1, b - arm), np.maximum(a - arm, b - 1))


# Signed distance to the edge, negative inside, in units of the half side.
_DISTANCE: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    "square": _square,
    "circle": _circle,
    "triangle": _triangle,
    "ring": _ring,
    "cross": _cross,
}
