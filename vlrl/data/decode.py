"""One video file to sampled frames. Imported by the decode workers, so it must stay free of jax.

Checks come before decoding, the demuxer is chosen by us from the first bytes (never probed: a playlist named .mp4 would
open other files), and frames are placed by presentation time, never by index times rate.
"""

import os
import stat
from typing import Any, NamedTuple

import av
import av.error
import numpy as np
from jaxtyping import Float, Int, UInt8

from vlrl.config import DataConfig

MAX_ASPECT = 200  # what vision.smart_resize accepts
# A title that is no UTF-8 must not cost the video: PyAV 19 keeps its bytes, before it has to be told.
BAD_METADATA: dict[str, Any] = {} if int(av.__version__.split(".")[0]) >= 19 else {"metadata_errors": "replace"}


class Clip(NamedTuple):
    """Fields of types.Video."""

    frames: UInt8[np.ndarray, "F height width 3"]
    times_s: Float[np.ndarray, " F"]
    duration_s: float
    fps: float


class RefusedError(Exception):
    """The file gives no video; reason is one word for the counters, detail names value, place and cure."""

    def __init__(self, reason: str, detail: str):
        super().__init__(reason, detail)
        self.reason = reason
        self.detail = detail


class _Timeline(NamedTuple):
    """What one pass over the packets tells."""

    pts: Int[np.ndarray, " N"]
    """Shown frames in order, in units of unit_s."""
    unit_s: float
    last_frame_s: float
    plain: bool
    """H.264, 8 bit, constant rate, nothing hidden by an edit list: what decord places rightly."""


def decode(path: str, num_frames: int, cfg: DataConfig) -> Clip:
    """At most num_frames frames, an even number, evenly spread over the presentation times; one frame is given twice.

    Raises RefusedError with reason missing, unreadable, container, limits or short.
    """
    try:
        demuxer = _demuxer(path)
        timeline = _timeline(path, demuxer, num_frames, cfg)
        if cfg.backend != "pyav" and (cfg.backend == "decord" or timeline.plain):
            clip = _decord(path, timeline, num_frames, cfg)
            if clip is not None:
                return clip
        return _pyav(path, demuxer, timeline, num_frames, cfg)
    except MemoryError:
        raise RefusedError("limits", f"{path}: out of the worker's memory; raise data.max_decoded_bytes") from None
    except (av.error.FFmpegError, OSError, ValueError) as error:
        raise RefusedError("unreadable", f"{path}: {error}; re-encode the file or remove its lines") from error


def sample(times_s: Float[np.ndarray, " N"], num_frames: int) -> Int[np.ndarray, " F"]:
    """Which frames to take: nearest to evenly spaced moments between the first and the last frame (tie: the earlier).

    F is even, at most num_frames and at most N; a single frame is taken twice, to fill a temporal patch.
    """
    count = min(num_frames, len(times_s)) // 2 * 2
    if count == 0:
        return np.zeros(2, np.int64)
    moments = np.linspace(times_s[0], times_s[-1], count)
    right = np.clip(np.searchsorted(times_s, moments), 1, len(times_s) - 1)
    return np.where(moments - times_s[right - 1] <= times_s[right] - moments, right - 1, right)


def _demuxer(path: str) -> str:
    """FFmpeg's name of the container, by its first bytes."""
    try:
        info = os.stat(path)
    except FileNotFoundError:
        raise RefusedError("missing", f"{path}: no such file; paths are relative to the annotation file") from None
    if not stat.S_ISREG(info.st_mode):
        raise RefusedError("unreadable", f"{path}: not a regular file")
    with open(path, "rb") as file:
        head = file.read(1024)
    if head[4:8] in (b"ftyp", b"moov", b"mdat", b"wide", b"free", b"skip"):
        _check_boxes(path, info.st_size)
        return "mp4"
    if head[:4] == b"\x1a\x45\xdf\xa3":
        return "matroska"
    if head[:4] == b"RIFF" and head[8:12] == b"AVI ":
        return "avi"
    # packets of 188 bytes, or of 192 with a time code before each
    if any(head[start::step][:3] == b"GGG" for start, step in ((0, 188), (4, 192))):
        return "mpegts"
    raise RefusedError("container", f"{path}: neither mp4/mov, matroska/webm, MPEG-TS nor AVI (starts {head[:8]!r})")


def _check_boxes(path: str, size: int) -> None:
    """Refuses an mp4 cut off in the middle: FFmpeg would play what is left as if it were the whole video."""
    place = 0
    with open(path, "rb") as file:
        while place < size:
            file.seek(place)
            head = file.read(16)
            if len(head) < 8:
                raise RefusedError("unreadable", f"{path}: cut off at {size} bytes, in the head of a part")
            length = int.from_bytes(head[:4], "big")
            if length == 1:
                length = int.from_bytes(head[8:16], "big")
            if length == 0:  # up to the end of the file
                return
            if not head[4:8].isalnum():  # padding or rubbish after the last part
                return
            if length < 8 or place + length > size:
                raise RefusedError("unreadable", f"{path}: cut off at {size} bytes, a part ends at {place + length}")
            place += length


def _open(path: str, demuxer: str) -> Any:
    container = av.open(path, format=demuxer, options={"protocol_whitelist": "file"}, **BAD_METADATA)
    if not container.streams.video:
        container.close()
        raise RefusedError("unreadable", f"{path}: no video stream")
    codec = container.streams.video[0].codec_context
    if codec is None:
        container.close()
        raise RefusedError("unreadable", f"{path}: unknown codec; re-encode the file")
    # FFmpeg's own threads deadlock beside other thread pools (PyAV issue 1962)
    codec.thread_count = 1
    return container


def _timeline(path: str, demuxer: str, num_frames: int, cfg: DataConfig) -> _Timeline:
    with _open(path, demuxer) as container:
        stream = container.streams.video[0]
        codec = stream.codec_context
        _check_size(path, codec.width, codec.height, num_frames, cfg)
        packets = [p for p in container.demux(stream) if p.size]
        shown = [p for p in packets if not p.is_discard]
        unit_s = float(stream.time_base)
        fallback_s = float(1 / stream.average_rate) if stream.average_rate else 0.0
        steps: list[int] = []
        if any(p.pts is None for p in shown):  # AVI stores decoding times only
            pts = np.array([], np.int64)
        else:
            pts = np.unique(np.array([p.pts for p in shown], np.int64))
            steps = np.diff(pts).tolist()
        lengths = [p.duration for p in shown if p.pts is not None and len(pts) and p.pts == pts[-1] and p.duration]
        plain = (
            demuxer == "mp4"
            and codec.name == "h264"
            and codec.pix_fmt == "yuv420p"
            and len(packets) == len(shown) == len(pts)
            and len(set(steps)) <= 1
        )
        return _Timeline(pts, unit_s, lengths[0] * unit_s if lengths else fallback_s, plain)


def _check_size(path: str, width: int, height: int, num_frames: int, cfg: DataConfig) -> None:
    if min(width, height) < 1 or max(width, height) > MAX_ASPECT * min(width, height):
        raise RefusedError("limits", f"{path}: frames of {width}x{height} px; the largest aspect is {MAX_ASPECT}")
    needed = width * height * 3 * num_frames
    if needed > cfg.max_decoded_bytes:
        raise RefusedError(
            "limits",
            f"{path}: {num_frames} frames of {width}x{height} px take {needed} bytes, data.max_decoded_bytes is "
            f"{cfg.max_decoded_bytes}; raise it or shrink the video",
        )


def _pyav(path: str, demuxer: str, timeline: _Timeline, num_frames: int, cfg: DataConfig) -> Clip:
    pts = timeline.pts
    for _ in range(2):
        times_s = (pts - pts[0]) * timeline.unit_s if len(pts) else np.zeros(0)
        index = sample(times_s, num_frames) if len(pts) else np.zeros(0, np.int64)
        frames, seen = _frames_at(path, demuxer, {int(pts[i]) for i in index}, num_frames, cfg)
        if len(pts) and len(frames) == len(set(index.tolist())):
            images = np.stack([frames[int(pts[i])] for i in index])
            return _clip(images, times_s, index, timeline)
        # Packet times were absent or promised frames that do not decode: go by the frames that did.
        pts = np.unique(np.array(seen, np.int64))
    raise RefusedError("short", f"{path}: no frame could be decoded; re-encode the file or remove its lines")


def _frames_at(
    path: str, demuxer: str, wanted: set[int], num_frames: int, cfg: DataConfig
) -> tuple[dict[int, np.ndarray], list[int]]:
    """The frames shown at the wanted times, turned upright, and the times of all frames passed on the way."""
    frames: dict[int, np.ndarray] = {}
    seen: list[int] = []
    with _open(path, demuxer) as container:
        for frame in container.decode(container.streams.video[0]):
            if frame.pts is None:
                raise RefusedError("unreadable", f"{path}: frames carry no time; re-encode the file")
            seen.append(frame.pts)
            if frame.pts in wanted:
                _check_size(path, frame.width, frame.height, num_frames, cfg)
                if frame.is_corrupt:
                    raise RefusedError("unreadable", f"{path}: damaged frame at {frame.time} s; re-encode the file")
                # The display matrix turns counter-clockwise, as rot90 does; phones film portrait this way.
                frames[frame.pts] = np.rot90(frame.to_ndarray(format="rgb24"), round(frame.rotation / 90) % 4)
                if len(frames) == len(wanted):
                    break
    if len({image.shape for image in frames.values()}) > 1:
        raise RefusedError("unreadable", f"{path}: the frame size changes within the video; re-encode the file")
    return frames, seen


def _decord(path: str, timeline: _Timeline, num_frames: int, cfg: DataConfig) -> Clip | None:
    """The fast path; None where decord is absent or, under backend=auto, counts other frames than there are."""
    try:
        import decord  # no wheel for aarch64
    except ImportError:
        if cfg.backend == "decord":
            raise RefusedError("unreadable", "data.backend is decord, which is not installed; use auto") from None
        return None
    decord.logging.set_level(decord.logging.QUIET)
    try:
        reader = decord.VideoReader(path, num_threads=1)
        counted: int | str = len(reader)
    except decord.DECORDError as error:
        counted, reader = str(error)[:200], None
    if reader is None or counted != len(timeline.pts):
        if cfg.backend == "decord":
            detail = f"{path}: decord finds {counted} frames, the container {len(timeline.pts)}; use data.backend=auto"
            raise RefusedError("unreadable", detail)
        return None
    times_s = (timeline.pts - timeline.pts[0]) * timeline.unit_s
    index = sample(times_s, num_frames)
    return _clip(reader.get_batch(index.tolist()).asnumpy(), times_s, index, timeline)


def _clip(
    images: UInt8[np.ndarray, "F height width 3"],
    times_s: Float[np.ndarray, " N"],
    index: Int[np.ndarray, " F"],
    timeline: _Timeline,
) -> Clip:
    duration_s = float(times_s[-1]) + timeline.last_frame_s
    fps = len(times_s) / duration_s if duration_s > 0 else 0.0
    return Clip(images, times_s[index].astype(np.float64), duration_s, fps)
