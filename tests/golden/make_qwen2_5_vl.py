"""Writes qwen2_5_vl.npz: a tiny Qwen2.5-VL of transformers, three prompts, and what transformers computes for them.

    python tests/golden/make_qwen2_5_vl.py

The file holds the weights themselves (float16 values, computed with in float32), so no random generator has to agree,
and the versions that wrote it. tests/models/test_golden.py reads it without torch.
"""

import json
import pathlib

import numpy as np
import torch
import transformers
from transformers.models.qwen2_vl import image_processing_pil_qwen2_vl

PATH = pathlib.Path(__file__).with_name("qwen2_5_vl.npz")
IMAGE, VIDEO, START, END = 56, 57, 58, 59
CONFIG = {
    "text_config": {
        "vocab_size": 60,
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "intermediate_size": 40,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [1, 1, 2]},
    },
    "vision_config": {
        "depth": 2,
        "hidden_size": 32,
        "num_heads": 2,
        "intermediate_size": 24,
        "out_hidden_size": 32,
        "patch_size": 4,
        "window_size": 16,
        "fullatt_block_indexes": [1],
        "tokens_per_second": 2,
    },
    "image_token_id": IMAGE,
    "video_token_id": VIDEO,
    "vision_start_token_id": START,
    "vision_end_token_id": END,
    "tie_word_embeddings": False,
}
SECOND_PER_GRID = 0.75


def main() -> None:
    torch.manual_seed(0)
    model = transformers.Qwen2_5_VLForConditionalGeneration(transformers.Qwen2_5_VLConfig(**CONFIG)).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            noise = torch.randn(weight.shape)
            scale = 0.2 if weight.ndim == 1 else weight[0].numel() ** -0.5
            mean = 1.0 if weight.ndim == 1 and not name.endswith("bias") else 0.0
            weight.copy_((mean + scale * noise).half())
    rng = np.random.default_rng(0)
    # 3 x 5 and 3 x 3 merged units: no multiples of the window, which is 2 x 2
    image = rng.integers(0, 256, (1, 24, 40, 3), dtype=np.uint8)
    video = rng.integers(0, 256, (4, 24, 24, 3), dtype=np.uint8)
    prompts = {
        "image": [1, 2, START, *[IMAGE] * 15, END, 3, 4, 5],
        "video": [6, START, *[VIDEO] * 18, END, 7, 8, 9, 10],
        "text": list(range(11, 31)),
    }
    arrays = {
        "versions": np.array(json.dumps({m.__name__: m.__version__ for m in (transformers, torch, np)})),
        "config": np.array(json.dumps(model.config.to_dict())),
        "second_per_grid": np.array(SECOND_PER_GRID),
        "image/frames": image,
        "video/frames": video,
    }
    directory = PATH.with_suffix(".checkpoint")
    model.save_pretrained(directory)  # for the names that a published checkpoint has
    arrays |= {f"weights/{name}": value.astype(np.float16) for name, value in published(directory).items()}
    for name, ids in prompts.items():
        arrays |= {f"{name}/{key}": value for key, value in computed(model, name, ids, image, video).items()}
    np.savez_compressed(PATH, **arrays)
    print(f"{PATH}: {PATH.stat().st_size / 1000:.0f} kB, {arrays['versions']}")


def published(directory: pathlib.Path) -> dict[str, np.ndarray]:
    """Tensors of a saved checkpoint; the directory is removed."""
    from safetensors.numpy import load_file

    tensors = load_file(directory / "model.safetensors")
    for file in directory.iterdir():
        file.unlink()
    directory.rmdir()
    return tensors


@torch.no_grad()
def computed(model, name: str, ids: list[int], image: np.ndarray, video: np.ndarray) -> dict[str, np.ndarray]:
    """Token ids, logits [S, V] and vision features [M, D] of one prompt."""
    tokens = torch.tensor([ids])
    kinds = (tokens == IMAGE).int() + 2 * (tokens == VIDEO).int()
    arguments = {"input_ids": tokens, "attention_mask": torch.ones_like(tokens), "mm_token_type_ids": kinds}
    result = {"tokens": np.array(ids, np.int32)}
    if name != "text":
        pixels, grid = patches(image if name == "image" else video)
        out = model.model.visual(pixels, grid_thw=grid)
        result["features"] = out.pooler_output.numpy()
        if name == "image":
            arguments |= {"pixel_values": pixels, "image_grid_thw": grid}
        else:
            arguments |= {"pixel_values_videos": pixels, "video_grid_thw": grid}
            arguments["second_per_grid_ts"] = torch.tensor([SECOND_PER_GRID])
    result["logits"] = model(**arguments).logits[0].numpy()
    return result


def patches(frames: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
    """pixel_values and grid of an image, or of a video by way of its frames.

    The image processor repeats an image to fill a slice. Of the patches of two frames, each (channel, time, y, x), the
    video's patch takes the first moment of the one and the second of the other.
    """
    processor = image_processing_pil_qwen2_vl.Qwen2VLImageProcessorPil(
        min_pixels=1, max_pixels=2**20, patch_size=4, temporal_patch_size=2, merge_size=2
    )
    one = [processor(frame, return_tensors="np") for frame in frames]
    pixels = [np.asarray(out["pixel_values"]).reshape(-1, 3, 2, 4, 4) for out in one]
    _, rows, columns = np.asarray(one[0]["image_grid_thw"])[0].tolist()
    if len(frames) == 1:
        slices = pixels
    else:
        slices = [np.stack([a[:, :, 0], b[:, :, 1]], axis=2) for a, b in zip(pixels[::2], pixels[1::2], strict=True)]
    grid = torch.tensor([[len(slices), rows, columns]])
    return torch.tensor(np.concatenate(slices).reshape(len(slices) * rows * columns, -1)), grid


if __name__ == "__main__":
    main()
