"""Strings in, claims and answers out. Boxes here are in 0..1000, so the expected ones are the numbers over 1000."""

import time

import hypothesis
import pytest
from hypothesis import strategies

from vlrl import claims, geometry
from vlrl.data.boxes import from_numbers
from vlrl.types import Claim, Parsed, TimedBox


def to_box(numbers):
    x1, y1, x2, y2 = (value / 1000 for value in numbers)
    return x1, y1, x2, y2


def parse(text):
    return claims.parse(text, to_box)


def in_rationale(claim):
    return parse(f"<think>{claim}</think><answer>B</answer>")


GOOD = "<obj>red circle</obj><box>[100,200,300,400]</box>at<t>3.5</t>s"
CLAIM = Claim("red circle", (0.1, 0.2, 0.3, 0.4), 3.5)


def test_completion_is_read_into_its_parts():
    text = f"<think>I see {GOOD} moving.</think> <answer>From <t>2.0</t>s to <t>5.5</t>s</answer>"
    assert parse(text) == Parsed(
        rationale=f"I see {GOOD} moving.",
        answer="From <t>2.0</t>s to <t>5.5</t>s",
        claims=(CLAIM,),
        num_malformed_claims=0,
        option=None,
        span_s=(2.0, 5.5),
        boxes=(),
    )


@pytest.mark.parametrize(
    "claim",
    [
        "<obj>a</obj><box>[1,2,3,4]</box> at <t> 5 </t> s",
        "<obj> a </obj> <box> [ 1 , 2 , 3 , 4 ] </box>at<t>5</t>s",
        "<obj>a</obj>\n<box>[1,2,3,4]</box>\nat\n<t>\n5.0\n</t>\ns",
        "<obj>a</obj><box>[1.0,2.0,3.0,4.0]</box>at<t>0:05</t>s",
        "<obj>a</obj><box>[1,2,3,4]</box><box>[5,6,7,8]</box>at<t>5</t>s",
        "<obj>a</obj><box>[[1,2,3,4]]</box>at<t>5</t>s",
        "<obj>a</obj><box>[[1,2,3,4], [5,6,7,8]]</box>at<t>5</t>s",
    ],
)
def test_white_space_number_form_and_further_boxes_do_not_change_a_claim(claim):
    parsed = in_rationale(claim)
    assert parsed.claims == (Claim("a", (0.001, 0.002, 0.003, 0.004), 5.0),)
    assert parsed.num_malformed_claims == 0


def test_box_is_clamped_to_the_frame():
    parsed = in_rationale("<obj>a</obj><box>[-50,12.5,2000,500]</box>at<t>1</t>s")
    assert parsed.claims[0].box == (0.0, 0.0125, 1.0, 0.5)


NO_BOX = ["[50,50,10,10]", "[1,2,3]", "[1,2,", "1,2,3,4", "[1,2,3,4,5]", "[]", "", "[a,b,c,d]", "[[[1,2,3,4]]]"]
NO_BOX += ["[[1,2,3]]", "[1,2,1,4]", "[nan,2,3,4]", "[1,2,inf,4]", "[1,2,1e999,4]", "[1200,0,1300,500]"]
NO_BOX += ["[1,2,3,4][5,6,7,8]", "[1,2,3," + "9" * 100 + "]"]


@pytest.mark.parametrize("box", NO_BOX)
def test_box_that_is_no_box_makes_the_claim_malformed(box):
    parsed = in_rationale(f"<obj>a</obj><box>{box}</box>at<t>5</t>s {GOOD}")
    assert parsed.claims == (CLAIM,)
    assert parsed.num_malformed_claims == 1


@pytest.mark.parametrize("time_s", ["", "nan", "inf", "-inf", "1e999", "soon", "1:75", "1:2:3:4", "3 4", "1_0", "0x1"])
def test_time_that_is_not_finite_makes_the_claim_malformed(time_s):
    parsed = in_rationale(f"<obj>a</obj><box>[1,2,3,4]</box>at<t>{time_s}</t>s")
    assert (parsed.claims, parsed.num_malformed_claims) == ((), 1)


@pytest.mark.parametrize(
    "claim",
    [
        "<obj>a</obj><box>[1,2,3,4]</box>",
        "<obj>a</obj><box>[1,2,3,4]</box>at<t>5</t>",
        "<obj>a</obj><box>[1,2,3,4]</box><t>5</t>s",
        "<obj>a</obj> is in <box>[1,2,3,4]</box>at<t>5</t>s",
        "<obj> </obj><box>[1,2,3,4]</box>at<t>5</t>s",
        f"<obj>{'a' * 500}</obj><box>[1,2,3,4]</box>at<t>5</t>s",
        "<obj>a<box>[1,2,3,4]</box>at<t>5</t>s",
        "<obj>",
    ],
)
def test_incomplete_claim_is_malformed(claim):
    parsed = in_rationale(claim)
    assert (parsed.claims, parsed.num_malformed_claims) == ((), 1)


def test_copies_of_one_claim_count_once():
    assert in_rationale(GOOD * 10).claims == (CLAIM,)
    assert in_rationale(GOOD + GOOD.replace("red", "Red")).claims == (CLAIM,)


def test_same_object_in_another_box_or_time_is_another_claim():
    parsed = in_rationale(GOOD + GOOD.replace("3.5", "4.5") + GOOD.replace("100", "110") + GOOD)
    assert [(claim.box[0], claim.time_s) for claim in parsed.claims] == [(0.1, 3.5), (0.1, 4.5), (0.11, 3.5)]


def test_claims_count_only_inside_the_first_closed_rationale():
    assert parse(f"<think>x</think>{GOOD}<answer>B</answer>").claims == ()
    assert parse(f"<think>x</think><think>{GOOD}</think><answer>B</answer>").claims == ()
    assert parse(f"<think>{GOOD}<answer>B</answer>").claims == ()
    assert parse(f"<think>x</think><answer>{GOOD}</answer>").claims == ()


def test_last_answer_of_the_completion_counts():
    assert parse("<think>x</think><answer>A</answer> no, <answer>B</answer>").answer == "B"
    assert parse("<think>x</think><answer>A <answer>B</answer>").answer == "B"
    assert parse("<think>x</think><answer>A</answer></answer>").answer == "A"
    assert parse("<think>x</think><answer>A</answer><answer>B").answer == "A"


def test_answer_tags_echoed_in_the_rationale_are_no_answer():
    echoed = "<think>I must answer inside <answer></answer>, say <answer>A</answer>.</think>"
    assert parse(echoed).answer is None
    assert parse(echoed + "<answer>C</answer>").option == "C"


def test_answer_after_an_unclosed_rationale_is_still_an_answer():
    parsed = parse("<think>x <answer>B</answer>")
    assert (parsed.rationale, parsed.answer) == (None, "B")


@pytest.mark.parametrize("text", ["", "B", "<answer>", "</answer>", "</answer><answer>", "<think></think>"])
def test_no_answer_tags_no_answer(text):
    assert parse(text).answer is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("(B)", "B"),
        ("B.", "B"),
        ("[B]", "B"),
        ("Answer: B", "B"),
        ("answer: b", "B"),
        ("b", "B"),
        ("(b)", "B"),
        ("b)", "B"),
        ("", None),
        ("An apple, so B", "B"),
        ("B", "B"),
        ("**B**", "B"),
        ("B. A red circle", "B"),
        ("(B) A red circle", "B"),
        ("(A) is wrong, so B", "B"),
        ("A or B? C", "C"),
        ("A is right", "A"),
        ("The answer is A because it moves", "A"),
        ("Option D", "D"),
        ("B, I think", "B"),
        ("A red circle", None),
        ("a red circle", None),
        ("BANANA", None),
        ("From <t>2.0</t>s to <t>5.5</t>s", None),
        ("Z", None),
    ],
)
def test_option_is_the_letter_stated_last(text, expected):
    assert claims.option(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("From <t>2.0</t>s to <t>5.5</t>s", (2.0, 5.5)),
        ("from <t> 2 </t> s to <t> 5.5 </t> s", (2.0, 5.5)),
        ("1:23 to 1:30", (83.0, 90.0)),
        ("12.5s to 20s", (12.5, 20.0)),
        ("00:12.5 to 00:15.0", (12.5, 15.0)),
        ("1:02:03.5 - 1:02:04", (3723.5, 3724.0)),
        ("12 seconds and 20 seconds", (12.0, 20.0)),
        ("3 \u2013 4.25", (3.0, 4.25)),
        ("not 1 to 2, rather 3 to 4", (3.0, 4.0)),
        ("5 to 5", (5.0, 5.0)),
        ("5 to 2", None),
        ("1:90 to 2:00", None),
        ("-3 to 5", None),
        ("5 to 1:30:45:50", None),
        ("5", None),
        ("2, 5", None),
        ("", None),
        ("<t>nan</t>s to <t>5</t>s", None),
        ("From <t>2.0</t>s to <t>5.5</t>s <box>[1 - 2,2,3,4]</box>at<t>3.5</t>s", (2.0, 5.5)),
    ],
)
def test_span_knows_clock_times_and_units(text, expected):
    assert claims.span(text) == expected


BOX = (0.0125, 0.003, 0.04, 0.06)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("<box>[12.5, 3, 40, 60]</box>at<t>3.5</t>s", (TimedBox(3.5, BOX),)),
        ("<box>[12.5,3,40,60]</box> at <t>1</t>s and <box>[12.5,3,40,60]</box>", (TimedBox(1.0, BOX), BOX)),
        ("<box>[[12.5,3,40,60],[0,0,500,.5]]</box>", (BOX, (0.0, 0.0, 0.5, 0.0005))),
        ("[12.5, 3, 40, 60]", (BOX,)),
        ("[0,0,.5,.5]", ((0.0, 0.0, 0.0005, 0.0005),)),
        ('```json\n[{"bbox_2d": [12.5, 3, 40, 60], "label": "a"}]\n```', (BOX,)),
        ('```json\n[{"bbox_2d": [12.5, 3, 40, 60], "time": 2}]\n```', (TimedBox(2.0, BOX),)),
        ('```\n{"8": [12.5, 3, 40, 60], "9.5": [[12.5, 3, 40, 60]]}\n```', (TimedBox(8.0, BOX), TimedBox(9.5, BOX))),
        ("```json\n[[12.5, 3, 40, 60], [1, 2, 3, 4]]\n```", (BOX, (0.001, 0.002, 0.003, 0.004))),
        ('```json\n[{"bbox_2d": [12.5, 3, 40, 60]}, {"bbox_2d": [1, 2,', (BOX,)),
        ("```json\n[true, false, null, NaN]\n```", ()),
        ("```json\n[" + "9" * 6000 + ", 3, 40, 60]\n```", ()),
        ("<box>[50,50,10,10]</box>", ()),
        ("<box>[1,2,", ()),
        ("[1,2,", ()),
        ("[B]", ()),
        ("", ()),
    ],
)
def test_answer_boxes_are_read_from_tags_json_and_bare_lists(text, expected):
    assert claims.boxes(text, to_box) == expected


def test_each_prompt_is_read_in_its_own_coordinates():
    texts = [[f"<think>{GOOD}</think>"] * 2, [f"<think>{GOOD}</think>"] * 2]
    parsed = claims.parse_all(texts, [to_box, lambda numbers: to_box([value / 10 for value in numbers])])
    assert [[one.claims[0].box[2] for one in group] for group in parsed] == [[0.3, 0.3], [0.03, 0.03]]


@pytest.mark.parametrize(
    ("numbers", "space", "size_px"),
    [
        ("[.25, .5, .75, 1]", "norm1", (480, 640)),
        ("[250, 500, 750, 1000]", "norm1000", (480, 640)),
        ("[80, 120, 240, 240]", "abs_resized", (240, 320)),
        ("[160, 240, 480, 480]", "abs_resized", (480, 640)),
    ],
)
def test_one_box_in_any_convention_is_the_same_claim(numbers, space, size_px):
    text = f"<think><obj>a</obj><box>{numbers}</box>at<t>5</t>s</think><answer><box>{numbers}</box></answer>"
    parsed = claims.parse(text, lambda values: from_numbers(values, space, size_px))
    assert geometry.iou(parsed.claims[0].box, (0.25, 0.5, 0.75, 1.0)) == 1.0
    assert parsed.boxes == ((0.25, 0.5, 0.75, 1.0),)


def test_converter_that_refuses_makes_the_claim_malformed():
    parsed = claims.parse(f"<think>{GOOD}</think>", lambda numbers: None)
    assert (parsed.claims, parsed.num_malformed_claims) == ((), 1)


PIECES = [
    "<think>",
    "</think>",
    "<answer>",
    "</answer>",
    "<obj>",
    "</obj>",
    "<box>",
    "</box>",
    "<t>",
    "</t>",
    "at",
    "s",
]
PIECES += [
    "[1,2,3,4]",
    "[[",
    "]]",
    "[",
    "]",
    ",",
    "-",
    "to",
    "5",
    "1:30",
    "9" * 40,
    "nan",
    "A",
    "(b)",
    " ",
    "\n",
    "```",
]
PIECES += ["json", "{", "}", '"bbox_2d":', '"', "\ud800", "\u0663", "\x00"]


@hypothesis.given(strategies.lists(strategies.sampled_from(PIECES), max_size=60))
@hypothesis.settings(max_examples=400, deadline=None, derandomize=True, database=None)
def test_no_sequence_of_pieces_raises(pieces):
    text = "".join(pieces)
    for hostile in (text, f"<think>{text}</think><answer>{text}</answer>"):
        parsed = parse(hostile)
        for claim in parsed.claims:
            x1, y1, x2, y2 = claim.box
            assert 0 <= x1 < x2 <= 1
            assert 0 <= y1 < y2 <= 1


@hypothesis.given(strategies.text(max_size=300))
@hypothesis.settings(max_examples=200, deadline=None, derandomize=True, database=None)
def test_no_text_raises(text):
    parse(text)
    parse(f"<think>{text}</think><answer>{text}</answer>")


HOSTILE = [
    "<obj>",
    "<box>",
    "<box>[",
    "<obj>a</obj>",
    "<obj>a</obj><box>[1,2,3,4]</box>",
    "<think>",
    "<answer>",
    "[",
    " ",
]
HOSTILE += [
    "</answer>",
    "<answer></think>",
    "1",
    "1:",
    "1.",
    "1 to ",
    "1 ",
    "A ",
    "(",
    "answer: ",
    "```",
    "```json[",
    "{",
]
HOSTILE += [
    '{"box":',
    "[1,2,3,4],",
    "1,",
    "<t>",
    "</box>at",
    "<t>1</t>s",
    "e",
    "-",
    "'",
    "\n",
    "<",
    "<obj>a</obj> ",
    ":",
]
HOSTILE += ["[[1,2,3,4],", "I a", '"1":[', GOOD, "<box>[1,2,3,4]</box>at<t>1</t>s"]


@pytest.mark.parametrize("piece", HOSTILE)
def test_hundred_kilobytes_of_hostile_text_parse_in_linear_time(piece):
    body = piece * (100_000 // len(piece))
    texts = (body, f"<think>{body}</think><answer>{body}</answer>", f"<think><obj>a</obj><box>[{body}]</box>{body}")
    texts += (f"<answer>```json{body}```</answer>", f"<answer>1{body}to 2</answer>")
    for text in texts:
        start = time.process_time()
        parse(text)
        # A quadratic pass takes minutes here; a linear one, with run-time type checks on, below a second.
        assert time.process_time() - start < 5.0
