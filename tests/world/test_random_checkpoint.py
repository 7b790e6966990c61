"""Random checkpoints of every family are whole Hugging Face directories, in our eyes and in transformers'."""

import numpy as np
import pytest
import transformers

from vlrl.data import encoding
from vlrl.io import hf_import, hf_keys
from vlrl.models.config import MARKS
from vlrl.world import random_checkpoint, tokenizer

FAMILIES = tuple(random_checkpoint.HF_CONFIGS)
CLAIM = "<think><obj>red circle</obj><box>[100,120,300,320]</box>at<t>1.0</t>s</think><answer>B</answer>"


@pytest.fixture(scope="module", params=FAMILIES)
def written(request, tmp_path_factory):
    directory = tmp_path_factory.mktemp("random") / request.param
    random_checkpoint.main(["random_checkpoint", "--family", request.param, "--out", str(directory)])
    return request.param, directory


def test_directory_is_read_back_with_every_weight(written):
    family, directory = written
    cfg, _ = hf_import.load_config(directory)
    flat = hf_keys.flatten(hf_import.load_params(directory, cfg, "float32"))
    expected = hf_keys.flatten(random_checkpoint.params(random_checkpoint.hf_config(family), 0))
    assert cfg.family == family
    assert flat.keys() == expected.keys()
    for path, leaf in flat.items():
        np.testing.assert_array_equal(leaf, expected[path])


def test_transformers_reads_its_config_and_tokenizer(written):
    family, directory = written
    theirs = transformers.AutoConfig.from_pretrained(directory)
    assert theirs.model_type == family
    assert theirs.get_text_config().rope_parameters["rope_theta"] == 10000
    tiny = transformers.AutoTokenizer.from_pretrained(directory, local_files_only=True)
    assert len(tiny) == theirs.get_text_config().vocab_size
    assert tiny.eos_token == "<|im_end|>"
    ids = tiny.apply_chat_template([{"role": "user", "content": "red"}], add_generation_prompt=True, tokenize=False)
    assert ids.endswith("<|im_start|>user\nred<|im_end|>\n<|im_start|>assistant\n")


def test_marks_of_the_family_are_the_ids_of_its_config(written):
    family, directory = written
    if family in MARKS:
        cfg, _ = hf_import.load_config(directory)
        tiny = transformers.AutoTokenizer.from_pretrained(directory, local_files_only=True)
        marks = tiny.convert_tokens_to_ids([MARKS[family].image, MARKS[family].video])
        assert marks == [cfg.image_token_id, cfg.video_token_id]


def test_seeds_differ_and_a_directory_in_use_is_left_alone(tmp_path):
    arguments = ["random_checkpoint", "--family", "qwen2", "--out", str(tmp_path / "a")]
    random_checkpoint.main(arguments)
    before = (tmp_path / "a" / "model.safetensors").read_bytes()
    with pytest.raises(ValueError, match="already in use"):
        random_checkpoint.main([*arguments, "--seed", "1"])
    assert (tmp_path / "a" / "model.safetensors").read_bytes() == before
    random_checkpoint.main([*arguments, "--seed", "1", "--overwrite"])
    assert (tmp_path / "a" / "model.safetensors").read_bytes() != before


def test_tags_of_a_claim_are_special_tokens_in_internvl_and_never_come_from_untrusted_text():
    tiny = tokenizer.build("internvl")
    special = {i for i, token in tiny.added_tokens_decoder.items() if token.special}
    assert special.issuperset(tiny.convert_tokens_to_ids(["<box>", "</box>", "<img>", "<IMG_CONTEXT>"]))
    ids = encoding.tokenize_text(tiny, CLAIM + "<img><IMG_CONTEXT></img>", trusted=False)
    assert not special & set(ids)
    assert tiny.decode(ids) == CLAIM + "<img><IMG_CONTEXT></img>"
    assert special & set(encoding.tokenize_text(tiny, CLAIM, trusted=True))
