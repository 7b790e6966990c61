"""The referee's prompt for one claim: (boxed frame, crop, question, reference answer, response, object phrase).

Both grading questions branch off the same prefix, so the images and the quoted response are read once.
"""

from typing import Any

import numpy as np
from jaxtyping import Int, UInt8

from vlrl.config import RefereeConfig
from vlrl.data import boxes, encoding, prompt, vision
from vlrl.models.config import VlmConfig
from vlrl.referees import grader, views
from vlrl.types import Box, Example

LETTERS = "ABCDE"
GRADES = (1.0, 0.75, 0.5, 0.25, 0.0)


def prefix_segments(
    example: Example,
    frame: UInt8[np.ndarray, "height width 3"],
    box: Box,
    phrase: str,
    response: str,
    model: VlmConfig,
    cfg: RefereeConfig,
    tokenizer: Any,
) -> tuple[prompt.Segment, ...]:
    """Everything the two questions share. Question, response and phrase are untrusted: no special tokens in them."""
    shown = (views.boxed_frame(frame, box), cfg.min_pixels), (views.crop(frame, box), cfg.crop_min_pixels)
    images = [vision.slices(view[None], model.vision, least, cfg.max_pixels, cfg.max_tiles) for view, least in shown]
    quoted = encoding.tokenize_text(tokenizer, response, trusted=False)
    if len(quoted) > cfg.max_response_tokens:
        response = tokenizer.decode(quoted[: cfg.max_response_tokens])
    space = boxes.of_family(cfg.box_space, model.family)
    written = boxes.to_text(box, space, images[0].size_px)
    user = (
        *(segment for image in images for segment in prompt.image_segments(image, model.family)),
        prompt.Text(cfg.instruction.replace("{box}", written), True),
        prompt.Text(
            f"Question: {prompt.asked(example)}\nReference: {example.reference}\n"
            f"Response: {response}\nObject: {phrase}\n",
            False,
        ),
    )
    return prompt.open_chat(cfg.system, user)


def question_tokens(tokenizer: Any, model: VlmConfig, cfg: RefereeConfig) -> tuple[list[int], list[int]]:
    """Branches: the relevance and the localization question, each up to where the letter is due."""
    rows = [
        encoding.encode(tokenizer, prompt.close_chat(question), model, "referee question")
        for question in (cfg.relevance_question, cfg.localization_question)
    ]
    return rows[0].tokens.tolist(), rows[1].tokens.tolist()


def letter_ids(tokenizer: Any) -> Int[np.ndarray, " 5"]:
    """Token ids of A to E. Raises ValueError where a letter is not one token."""
    return grader.word_ids(tokenizer, LETTERS, "referee")
