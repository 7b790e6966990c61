"""What config.json may say."""

import copy

import pytest

from vlrl.models import config

INTERNVL = {
    # The fields of OpenGVLab/InternVL3-1B-hf that are read, with small sizes.
    "model_type": "internvl",
    "downsample_ratio": 0.5,
    "image_token_id": 150,
    "projector_hidden_act": "gelu",
    "vision_feature_layer": -1,
    "vision_feature_select_strategy": "default",
    "text_config": {
        "model_type": "qwen2",
        "vocab_size": 160,
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "intermediate_size": 96,
        "rope_theta": 1000000.0,
        "rope_scaling": {"factor": 2.0, "rope_type": "dynamic", "type": "dynamic"},
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": False,
    },
    "vision_config": {
        "attention_bias": True,
        "hidden_act": "gelu",
        "hidden_size": 32,
        "image_size": [448, 448],
        "intermediate_size": 48,
        "layer_norm_eps": 1e-6,
        "model_type": "internvl_vision",
        "norm_type": "layer_norm",
        "num_attention_heads": 2,
        "num_channels": 3,
        "num_hidden_layers": 2,
        "patch_size": [14, 14],
        "use_absolute_position_embeddings": True,
        "use_mask_token": False,
        "use_mean_pooling": True,
        "use_qk_norm": False,
    },
}


def changed(place, field, value):
    raw = copy.deepcopy(INTERNVL)
    (raw[place] if place else raw)[field] = value
    return raw


def test_internvl_is_read():
    cfg = config.from_hf(INTERNVL)
    assert (cfg.image_token_id, cfg.video_token_id, cfg.mrope_section) == (150, 150, None)
    assert cfg.vision == config.InternVision(
        depth=2, hidden_size=32, num_heads=2, intermediate_size=48, out_hidden_size=64, patch_size=14
    )
    assert cfg.vision.merge_units == 4


@pytest.mark.parametrize(
    ("place", "field", "value", "only"),
    [
        ("vision_config", "norm_type", "rms_norm", "'layer_norm'"),
        ("vision_config", "hidden_act", "gelu_pytorch_tanh", "'gelu'"),
        ("vision_config", "use_mean_pooling", False, "True"),
        ("vision_config", "use_absolute_position_embeddings", False, "True"),
        ("vision_config", "use_mask_token", True, "False"),
        ("", "projector_hidden_act", "relu", "'gelu'"),
        ("", "vision_feature_layer", -2, "-1"),
        ("", "vision_feature_select_strategy", "full", "'default'"),
    ],
)
def test_setting_of_internvl_that_is_not_implemented_names_field_value_and_cure(place, field, value, only):
    with pytest.raises(ValueError) as error:  # noqa: PT011
        config.from_hf(changed(place, field, value))
    path = f"{place}.{field}" if place else field
    assert str(error.value) == f"config.json: {path} {value!r} is not implemented; use a checkpoint with {only}"


@pytest.mark.parametrize("ratio", [0.3, 1 / 3])
def test_pixel_shuffle_that_leaves_patches_over_is_refused(ratio):
    # 32 patches a side are no multiple of 3
    with pytest.raises(ValueError, match=r"downsample_ratio 0\.3\d* does not merge whole blocks of the 448/14 patches"):
        config.from_hf(changed("", "downsample_ratio", ratio))


def test_tiles_that_are_not_square_are_refused():
    with pytest.raises(ValueError, match=r"vision_config.image_size \[448, 224\] is not square; only square tiles"):
        config.from_hf(changed("vision_config", "image_size", [448, 224]))


def test_stretched_rotary_positions_are_refused():
    raw = changed("text_config", "rope_scaling", {"rope_type": "yarn", "factor": 4.0})
    with pytest.raises(ValueError, match="rope_scaling of type 'yarn' is not implemented; use a checkpoint without"):
        config.from_hf(raw)
