"""Frames to the patches that the vision tower reads: resize, normalise, cut, order.

One preprocessing for training, evaluation and referee. Index arithmetic stays here, outside jit.
"""

import dataclasses
import math

import numpy as np
from jaxtyping import Float, Int, UInt8

from vlrl.data import tiles
from vlrl.models.config import InternVision, Qwen3Vision, Qwen25Vision, VisionConfig

STATISTICS: dict[type[VisionConfig], tuple[tuple[float, float, float], tuple[float, float, float]]] = {
    # CLIP's training images (openai/CLIP clip/clip.py), ImageNet for InternViT: each family's preprocessor_config.json.
    Qwen25Vision: ((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)),
    Qwen3Vision: ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5)),
    InternVision: ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
}
"""Mean and standard deviation of the channels of pixels in [0, 1]."""

MAX_ASPECT = 200


@dataclasses.dataclass(frozen=True)
class SlicePatches:
    """Slices of equal size: one image (InternVL: its tiles), or the frame pairs of one video."""

    patches: Float[np.ndarray, "I N W"]
    """Merge order: each merge x merge block adjacent, blocks row by row."""
    rope: Int[np.ndarray, "I N 2"]
    window: Int[np.ndarray, "I N"]
    grid: tuple[int, int, int]
    """Slices, rows, columns in patches."""
    size_px: tuple[int, int]
    """Height and width after the resize; of an image in tiles, those of all tiles together."""
    merge_size: int

    @property
    def units(self) -> int:
        """Merged units (= tokens) of one slice."""
        return self.grid[1] * self.grid[2] // self.merge_size**2

    def part(self, start: int, stop: int) -> "SlicePatches":
        """Slices start..stop-1 alone."""
        return dataclasses.replace(
            self,
            patches=self.patches[start:stop],
            rope=self.rope[start:stop],
            window=self.window[start:stop],
            grid=(stop - start, *self.grid[1:]),
        )


def smart_resize(height: int, width: int, factor: int, min_pixels: int, max_pixels: int) -> tuple[int, int]:
    """Height and width (px) as multiples of factor, area within the bounds, aspect nearly kept.

    Rule of Qwen2-VL (qwen-vl-utils vision_process.py). Unlike transformers' copy a side is never 0, whatever the area.
    Raises ValueError where one side is over 200 times the other.
    """
    if max(height, width) > MAX_ASPECT * min(height, width):
        raise ValueError(f"{width}x{height} px: one side is over {MAX_ASPECT} times the other; crop or pad the frame")
    rows = max(factor, round(height / factor) * factor)
    columns = max(factor, round(width / factor) * factor)
    if rows * columns > max_pixels:
        shrink = math.sqrt(height * width / max_pixels)
        rows = max(factor, math.floor(height / shrink / factor) * factor)
        columns = max(factor, math.floor(width / shrink / factor) * factor)
    elif rows * columns < min_pixels:
        grow = math.sqrt(min_pixels / (height * width))
        rows = math.ceil(height * grow / factor) * factor
        columns = math.ceil(width * grow / factor) * factor
    return rows, columns


def slices(
    frames: UInt8[np.ndarray, "F height width 3"],
    cfg: VisionConfig,
    min_pixels: int,
    max_pixels: int,
    max_tiles: int = 1,
) -> SlicePatches:
    """Slices of a video, or of an image given as one frame; the last frame is repeated to fill the last slice.

    min_pixels and max_pixels bound the area of one frame after the resize. InternVL has tiles of one size instead: one
    for a frame of a video, up to max_tiles and a thumbnail for an image.
    """
    frames, size_px = _fitted(frames, cfg, min_pixels, max_pixels, max_tiles)
    missing = -len(frames) % cfg.temporal_patch_size
    frames = np.concatenate([frames, np.repeat(frames[-1:], missing, axis=0)])
    mean, std = (np.array(values, np.float32) for values in STATISTICS[type(cfg)])
    pixels = (frames.astype(np.float32) / np.float32(255) - mean) / std
    rows, columns = frames.shape[1] // cfg.patch_size, frames.shape[2] // cfg.patch_size
    count = len(frames) // cfg.temporal_patch_size
    rope, window = _indices(rows, columns, cfg)
    return SlicePatches(
        patches=_patches(pixels, count, rows, columns, cfg),
        rope=np.repeat(rope[None], count, axis=0),
        window=np.repeat(window[None], count, axis=0),
        grid=(count, rows, columns),
        size_px=size_px,
        merge_size=cfg.spatial_merge_size,
    )


def _fitted(
    frames: UInt8[np.ndarray, "F height width 3"], cfg: VisionConfig, min_pixels: int, max_pixels: int, max_tiles: int
) -> tuple[UInt8[np.ndarray, "F2 h2 w2 3"], tuple[int, int]]:
    """Frames as the tower takes them, and the size (height, width) to which each was resized before any cut."""
    if isinstance(cfg, InternVision):
        rows, columns = tiles.grid(frames.shape[1], frames.shape[2], cfg.image_size, 1, max_tiles)
        cut = [tiles.cut(frame, cfg.image_size, 1, max_tiles) for frame in frames]
        return np.concatenate(cut), (rows * cfg.image_size, columns * cfg.image_size)
    factor = cfg.patch_size * cfg.spatial_merge_size
    size_px = smart_resize(frames.shape[1], frames.shape[2], factor, min_pixels, max_pixels)
    return np.stack([tiles.stretch(frame, size_px) for frame in frames]), size_px


def _patches(
    pixels: Float[np.ndarray, "F height width 3"], count: int, rows: int, columns: int, cfg: VisionConfig
) -> Float[np.ndarray, "I N W"]:
    """Row vectors (channel, time, y, x), patches in merge order: the layout Qwen2-VL's Conv3d kernel was trained on."""
    merge, patch, time = cfg.spatial_merge_size, cfg.patch_size, cfg.temporal_patch_size
    blocks = pixels.reshape(count, time, rows // merge, merge, patch, columns // merge, merge, patch, 3)
    blocks = blocks.transpose(0, 2, 5, 3, 6, 8, 1, 4, 7)
    return np.ascontiguousarray(blocks.reshape(count, rows * columns, 3 * time * patch * patch))


def _indices(rows: int, columns: int, cfg: VisionConfig) -> tuple[Int[np.ndarray, "N 2"], Int[np.ndarray, " N"]]:
    """(row, column) and window number of every patch, in merge order."""
    merge = cfg.spatial_merge_size
    rope = np.stack(np.meshgrid(np.arange(rows), np.arange(columns), indexing="ij"), axis=-1)
    rope = rope.reshape(rows // merge, merge, columns // merge, merge, 2).transpose(0, 2, 1, 3, 4).reshape(-1, 2)
    window = np.zeros(len(rope), np.int64)
    if isinstance(cfg, Qwen25Vision):
        side = cfg.window_size // merge // cfg.patch_size  # merged units
        across = -(-(columns // merge) // side)
        window = rope[:, 0] // merge // side * across + rope[:, 1] // merge // side
    return rope.astype(np.int32), window.astype(np.int32)
