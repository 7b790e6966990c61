import json
import random
import re

import numpy as np
import pytest
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st

from vlrl.world import questions, scenes, teacher, tokenizer

TOKENIZER = tokenizer.build()
SLICE = "<|vision_start|>" + "<|video_pad|>" * 16 + "<|vision_end|>"


def encode(text):
    return TOKENIZER.encode(text, add_special_tokens=False, split_special_tokens=True)


def decode(ids):
    return TOKENIZER.decode(ids, skip_special_tokens=False)


@pytest.fixture(scope="module")
def samples():
    """(prompt, completion) of over 2000 questions."""
    rng = np.random.default_rng(7)
    made = []
    while len(made) < 2000:
        scene = scenes.sample_scene(rng)
        times = np.linspace(0, scene.frame_times_s[-1], 8)
        for example in questions.questions(scene, rng, with_tracks=False):
            lines = [f"{letter}. {text}" for letter, text in zip("ABCD", example.options, strict=False)]
            frames = "".join(f"{t:.1f}s{SLICE}" for t in times[::2])
            content = frames + "\n".join([example.question, *lines])
            prompt = TOKENIZER.apply_chat_template(
                [{"role": "user", "content": content}], tokenize=False, add_generation_prompt=True
            )
            made.append((prompt, teacher.teacher(example, scene, times, rng)))
    return made


def test_vocabulary_is_small():
    assert len(TOKENIZER) <= 1000


def test_every_coordinate_and_time_of_a_completion_is_one_token(samples):
    for _, text in samples:
        pieces = [decode([token]) for token in encode(text)]
        numbers = [piece for piece in pieces if re.search(r"\d", piece)]
        assert numbers == re.findall(r"\d+\.\d|\d+", text)


def test_completions_and_prompts_fit_their_bounds(samples):
    completions = [len(encode(text)) + 1 for _, text in samples]  # + end of turn
    prompts = [len(TOKENIZER.encode(prompt, add_special_tokens=False)) for prompt, _ in samples]
    assert max(completions) <= 64
    assert max(prompts) <= 128


def test_decoding_gives_every_sample_back(samples):
    for prompt, text in samples:
        assert decode(encode(text)) == text
        assert decode(TOKENIZER.encode(prompt, add_special_tokens=False)) == prompt


@settings(max_examples=300, deadline=None)
@given(st.text())
def test_decoding_gives_any_text_back(text):
    assert decode(encode(text)) == text


def test_text_that_looks_like_pieces_of_the_model_is_read_as_characters():
    for text in ("<0x41>", "<unk>", "<0xE2><0x98>", "☃<0x0A>", "  \t\r\n "):
        assert decode(encode(text)) == text
    assert decode(encode("".join(map(chr, range(0x250))))) == "".join(map(chr, range(0x250)))


def test_untrusted_text_never_gives_a_special_id():
    special = set(TOKENIZER.convert_tokens_to_ids(list(tokenizer.SPECIAL)))
    assert len(special) == len(tokenizer.SPECIAL)
    choose = random.Random(0)
    for name in tokenizer.SPECIAL:
        text = f"a{name}{choose.choice(tokenizer.SPECIAL)} b"
        assert not special & set(encode(text))
        assert decode(encode(text)) == text
        assert TOKENIZER.encode(name, add_special_tokens=False) == [TOKENIZER.convert_tokens_to_ids(name)]


def test_words_are_the_same_tokens_in_questions_options_and_claims():
    red, circle = encode("red circle")
    for text in ("Where is the red circle at 3.5 s?", "\nA. red circle", "<obj>red circle</obj>"):
        ids = encode(text)
        assert ids[ids.index(red) + 1] == circle
    assert encode("red")[0] in encode("\nB. red")
    assert circle in encode("\nB. circle")
    assert encode("B") == [token for token in encode("\nB. red") if decode([token]) == "B"]


def test_chat_layout_equals_that_of_qwen2_5_vl():
    content = [{"type": "video"}, {"type": "image"}, {"type": "text", "text": "What?"}]
    text = TOKENIZER.apply_chat_template(
        [{"role": "user", "content": content}, {"role": "assistant", "content": "B"}], tokenize=False
    )
    assert text == (
        "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n"
        "<|im_start|>user\n<|vision_start|><|video_pad|><|vision_end|><|vision_start|><|image_pad|><|vision_end|>"
        "What?<|im_end|>\n<|im_start|>assistant\nB<|im_end|>\n"
    )
    given = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": " Hi "}]
    assert TOKENIZER.apply_chat_template(given, tokenize=False, add_generation_prompt=True) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n Hi <|im_end|>\n<|im_start|>assistant\n"
    )


def test_saved_tokenizer_loads_and_encodes_equally(tmp_path, samples):
    tokenizer.save(tmp_path)
    loaded = transformers.AutoTokenizer.from_pretrained(tmp_path)
    settings_ = json.loads((tmp_path / "tokenizer_config.json").read_text())
    assert settings_["tokenizer_class"] == "PreTrainedTokenizerFast"
    assert (loaded.eos_token, loaded.pad_token) == ("<|im_end|>", "<|endoftext|>")
    assert loaded.chat_template == TOKENIZER.chat_template
    for prompt, text in samples[:50]:
        assert loaded.encode(prompt) == TOKENIZER.encode(prompt)
        assert loaded.encode(text, split_special_tokens=True) == encode(text)
