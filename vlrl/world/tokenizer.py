"""The tiny world's tokenizer: few pieces, Qwen's special tokens, any text.

A Unigram model picks the fewest pieces. Colours have pieces without and shapes with a leading space, and letters
stand alone, so that a word is the same token wherever the templates put it. Coordinates on the grid and times with one
decimal are one token each. Characters without a piece fall back to their UTF-8 bytes.
"""

import itertools
import json
import pathlib
import string

import tokenizers
import transformers
from tokenizers import decoders, models

from vlrl.models.config import Family
from vlrl.world import questions, scenes

SPECIAL = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|object_ref_start|>",
    "<|object_ref_end|>",
    "<|box_start|>",
    "<|box_end|>",
    "<|quad_start|>",
    "<|quad_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|vision_pad|>",
    "<|image_pad|>",
    "<|video_pad|>",
)
INTERN_SPECIAL = ("<img>", "</img>", "<IMG_CONTEXT>", "<quad>", "</quad>", "<ref>", "</ref>", "<box>", "</box>")
"""InternVL3 adds these to Qwen's; the tags of a claim are among them."""
TAGS = (
    *("<think>", "</think>", "<answer>", "</answer>", "</think><answer>"),
    *("<obj>", "</obj>", " s : <obj>", "</obj><box>[", " ; "),
    *("<box>", "</box>", "<box>[", "]</box>", "]</box>at<t>", "</t>s <box>["),
    *("<t>", "</t>", "at<t>", "</t>s", "From <t>", " to <t>", "</t>s to <t>"),
)
TEMPLATES = (
    *("What shape is the ", " object?", "What colour is the", "?", "Which object", " appears late?", " vanishes?"),
    *(" moves", " touches the ", "When is the ", " visible", "When do the ", " and the ", " touch", "Where is the "),
    *(" and where is", " the ", " it", " at ", " s?", " s and ", " and "),
    *(f" {direction}?" for direction in scenes.DIRECTIONS),
)
FRAME = (
    *("system", "user", "assistant", "system\n", "user\n", "assistant\n", "You are a helpful assistant."),
    # The default hints, one a task.
    "Answer with the letter of the correct option.",
    "Answer as: From <t>start</t>s to <t>end</t>s.",
    "Answer with one <box>[x1,y1,x2,y2]</box>at<t>seconds</t>s for each asked moment.",
    "Answer as: From <t>start</t>s to <t>end</t>s, then <box>[x1,y1,x2,y2]</box>at<t>seconds</t>s.",
)
REFEREE = (
    *("Question", "Reference", "Response", "Object", "Relevance", "Localization", "Grade", "Answer", "Claim", "Time"),
    *("question", "reference", "response", "object", "relevance", "localization", "grade", "answer", "claim", "time"),
    *("image", "images", "frame", "crop", "box", "boxed", "video", "text", "letter", "letters", "evidence", "first"),
    *("second", "third", "the", "The", "a", "an", "is", "are", "in", "of", "on", "to", "for", "with", "from", "and"),
    *("or", "not", "be", "by", "as", "it", "its", "this", "that", "one", "two", "How", "how", "well", "does", "do"),
    *("show", "shows", "match", "matches", "named", "right", "wrong", "best", "worst", "good", "poor", "only", "full"),
    *("Judge", "judge", "given", "below", "above", "whether", "inside", "tight", "useful", "relevant", "located"),
)
_INTERN_NAMES = {
    "start_image_token": "<img>",
    "end_image_token": "</img>",
    "context_image_token": "<IMG_CONTEXT>",
    "video_token": "<|video_pad|>",
}
"""What transformers' InternVLProcessor asks the tokenizer for."""
# The least that any sum of ordinary pieces can undercut: a byte piece is never chosen for the text "<0x41>".
_BYTE_SCORE = -1000.0

CHAT_TEMPLATE = """\
{%- macro show(content) -%}
{%- if content is string -%}{{ content }}
{%- else -%}
{%- for part in content -%}
{%- if part.type == 'image' or part.type == 'image_url' or 'image' in part -%}
<|vision_start|><|image_pad|><|vision_end|>
{%- elif part.type == 'video' or 'video' in part -%}
<|vision_start|><|video_pad|><|vision_end|>
{%- elif 'text' in part -%}{{ part.text }}
{%- endif -%}
{%- endfor -%}
{%- endif -%}
{%- endmacro -%}
{%- if messages[0].role != 'system' -%}
{{ '<|im_start|>system\\nYou are a helpful assistant.<|im_end|>\\n' }}
{%- endif -%}
{%- for message in messages -%}
{{ '<|im_start|>' + message.role + '\\n' }}{{ show(message.content) }}{{ '<|im_end|>\\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\\n' }}{%- endif -%}
"""


INTERN_CHAT_TEMPLATE = """\
{%- for message in messages -%}
{{ '<|im_start|>' + message.role + '\\n' }}
{%- if message.content is string -%}{{ message.content }}
{%- else -%}
{%- for part in message.content -%}
{%- if part.type == 'image' -%}{{ '<IMG_CONTEXT>\\n' }}
{%- elif part.type == 'video' -%}{{ '<|video_pad|>\\n' }}
{%- else -%}{{ part.text }}
{%- endif -%}
{%- endfor -%}
{%- endif -%}
{{ '<|im_end|>\\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\\n' }}{%- endif -%}
"""


def build(family: Family = "qwen2_5_vl") -> transformers.PreTrainedTokenizerFast:
    """The tokenizer with the special tokens and the chat template of the family.

    Encode untrusted text with `split_special_tokens=True`, which reads "<|im_end|>" as characters.
    """
    intern = family == "internvl"
    special = (*SPECIAL, *INTERN_SPECIAL) if intern else SPECIAL
    # An ordinary piece of the same letters would be the special token itself: untrusted text could spell it.
    words = [piece for piece in _pieces() if piece not in special]
    # Fewest pieces win; among equals the least even split, so that a choice never hangs on rounding.
    scored = [("<unk>", _BYTE_SCORE), *((f"<0x{byte:02X}>", _BYTE_SCORE) for byte in range(256))]
    scored += [(piece, -1 + 1e-6 * len(piece) ** 2) for piece in words]
    core = tokenizers.Tokenizer(models.Unigram(scored, unk_id=0, byte_fallback=True))
    core.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    core.add_special_tokens([tokenizers.AddedToken(name, special=True, normalized=False) for name in special])
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=core,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        chat_template=INTERN_CHAT_TEMPLATE if intern else CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
        model_max_length=4096,
        **({"extra_special_tokens": _INTERN_NAMES} if intern else {}),
    )


def save(path: pathlib.Path, family: Family = "qwen2_5_vl") -> None:
    """Writes tokenizer.json, tokenizer_config.json and the chat template into the directory `path`."""
    build(family).save_pretrained(str(path))
    # transformers 5 writes a class name that 4.x does not know, and spreads named special tokens over the file; both
    # know this class, and the names in one place.
    file = path / "tokenizer_config.json"
    settings = json.loads(file.read_text())
    settings.pop("backend", None)
    if family == "internvl":
        settings = {name: value for name, value in settings.items() if name not in _INTERN_NAMES}
        settings["extra_special_tokens"] = _INTERN_NAMES
    file.write_text(json.dumps({**settings, "tokenizer_class": "PreTrainedTokenizerFast"}, indent=2) + "\n")


def _pieces() -> list[str]:
    coordinates = [str(k) for k in range(0, 1001, questions.GRID)]
    times = [f"{k / 10:.1f}" for k in range(101)]
    colours, shapes = list(scenes.COLOURS), [f" {kind}" for kind in scenes.SHAPES]
    # With and without the space before, and the headings as they open a line.
    referee = [*REFEREE, *(f" {word}" for word in REFEREE), *(f"{word}: " for word in REFEREE[:10])]
    letters = [f" {letter}" for letter in "ABCDE"]
    ascii_characters = list(string.printable)
    groups = (ascii_characters, coordinates, times, TAGS, TEMPLATES, FRAME, colours, shapes, letters, referee)
    # Shapes must keep their one spelling: no piece for them without the space.
    return list(dict.fromkeys([*itertools.chain(*groups), " object", ". ", "\n\n", ", "]))
