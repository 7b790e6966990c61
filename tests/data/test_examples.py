import json

import pytest

from vlrl import types
from vlrl.data import examples

GOOD = {"example_id": "a", "video": "clips/a.mp4", "task": "mcq", "question": "Which?", "reference": "B. blue"}
MCQ = {**GOOD, "options": ["red", "blue"], "answer_option": "B"}


@pytest.fixture
def write(tmp_path):
    def make(*rows):
        path = tmp_path / "train.jsonl"
        path.write_text("\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows) + "\n")
        return str(path)

    return make


def test_every_field_is_read(write, tmp_path):
    row = {
        **MCQ,
        "task": "both",
        "answer_span_s": [2, 5.5],
        "answer_boxes": [[3.5, 0.1, 0.2, 0.3, 0.4]],
        "subjects": ["red circle"],
        "tracks": {"red circle": [[0, 0, 0, 1, 1], [0.5, 0.1, 0.2, 0.3, 0.4]]},
    }
    (example,) = examples.read(write(row))
    timed = types.TimedBox(3.5, (0.1, 0.2, 0.3, 0.4))
    assert example == types.Example(
        example_id="a",
        video_path=str(tmp_path / "clips/a.mp4"),
        task="both",
        question="Which?",
        reference="B. blue",
        options=("red", "blue"),
        answer_option="B",
        answer_span_s=(2.0, 5.5),
        answer_boxes=(timed,),
        subjects=("red circle",),
        tracks={"red circle": (types.TimedBox(0.0, (0.0, 0.0, 1.0, 1.0)), types.TimedBox(0.5, (0.1, 0.2, 0.3, 0.4)))},
    )


def test_null_means_absent_and_blank_lines_are_skipped(write):
    row = {**MCQ, "answer_span_s": None, "answer_boxes": [], "tracks": {}}
    (example,) = examples.read(write("", row, " "))
    assert example.answer_span_s is None


def test_all_malformed_lines_are_named_at_once(write):
    path = write(MCQ, "{", {**MCQ, "example_id": "b", "qestion": "?"}, {**MCQ, "example_id": "c", "task": "what"}, MCQ)
    with pytest.raises(ValueError, match="malformed annotations") as error:
        examples.read(path)
    lines = str(error.value).splitlines()[1:]
    assert [line.split(": ")[:2] for line in lines] == [
        [f"{path}:2", "line"],
        [f"{path}:3", "qestion"],
        [f"{path}:4", "task"],
        [f"{path}:5", "example_id"],
    ]
    assert "did you mean question?" in lines[1]
    assert "choose one of mcq, when, where, both" in lines[2]
    assert "also on line 1" in lines[3]


def test_a_long_list_of_errors_is_cut_and_counted(write):
    with pytest.raises(ValueError, match=r"and 20 more$"):
        examples.read(write(*["{"] * 120))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"question": None}, "train.jsonl:1: question: expected text, got None"),
        ({"question": " "}, "question: expected text"),
        ({"example_id": 7}, "example_id: expected text, got 7"),
        ({"task": ["mcq"]}, "task: "),
        ({"options": "red"}, "options: expected a list of texts"),
        ({"options": ["red"]}, "options: 1 options for task mcq; give 2 to 26"),
        ({"answer_option": "C"}, "answer_option: 'C' is no option; write one letter of AB"),
        ({"answer_option": "AB"}, "answer_option: 'AB' is no option"),
        ({"answer_option": None}, "answer_option: None is no option"),
        ({"task": "when"}, r"answer_span_s: missing for task when; write \[start, end\]"),
        ({"task": "where"}, "answer_boxes: missing for task where"),
        ({"answer_span_s": [5, 2]}, "answer_span_s: ends before it starts"),
        ({"answer_span_s": [-1, 2]}, "answer_span_s: times are seconds from 0 on"),
        ({"answer_span_s": [1]}, "answer_span_s: expected 2 numbers"),
        ({"answer_span_s": ["1", 2]}, "answer_span_s: expected 2 numbers"),
        ({"answer_span_s": [True, 2]}, "answer_span_s: expected 2 numbers"),
        ({"answer_boxes": [[1, 0.5, 0.5, 0.1, 0.1]]}, "answer_boxes: .* x1 < x2"),
        ({"answer_boxes": [[1, 10, 20, 30, 40]]}, "divide pixels by width and height"),
        ({"answer_boxes": [[1, 2, 3]]}, "answer_boxes: expected 5 numbers"),
        ({"tracks": [[1, 0, 0, 1, 1]]}, "tracks: expected boxes by phrase"),
        ({"tracks": {"cat": [[1, 0, 0, 1, 2]]}}, "tracks: .* from 0 to 1"),
        ({"video": 3}, "video: expected text"),
    ],
)
def test_malformed_fields_are_named_with_their_cure(write, change, message):
    with pytest.raises(ValueError, match=message):
        examples.read(write({**MCQ, **change}))


@pytest.mark.parametrize("line", ["[1]", '"text"', '{"example_id": NaN}', '{"a": Infinity}', "\x00"])
def test_lines_that_are_no_object_are_named(write, line):
    with pytest.raises(ValueError, match=r"train\.jsonl:1: line: "):
        examples.read(write(line))


def test_missing_fields_are_all_named(write):
    with pytest.raises(ValueError, match="malformed") as error:
        examples.read(write({"task": "mcq"}))
    assert [line.split(": ")[1] for line in str(error.value).splitlines()[1:]] == [
        "example_id",
        "video",
        "question",
        "reference",
    ]


@pytest.mark.parametrize(
    "path",
    [
        "../a.mp4",
        "clips/../../a.mp4",
        "/etc/passwd",
        "~/a.mp4",
        "%2e%2e/a.mp4",
        "file:///a/%2e%2e/b.mp4",
        "http://169.254.169.254/a.mp4",
        "concat:a.mp4|b.mp4",
        "..\\a.mp4",
        "a\0.mp4",
    ],
)
def test_paths_outside_the_folder_are_refused(write, path):
    with pytest.raises(ValueError, match=r":1: video: .* (leaves the folder|is a URL|is no path)"):
        examples.read(write({**MCQ, "video": path}))


def test_links_outside_the_folder_are_refused(tmp_path):
    (tmp_path / "secret").mkdir()
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "clips").symlink_to(tmp_path / "secret")
    file = tmp_path / "data" / "train.jsonl"
    file.write_text(json.dumps(MCQ))
    with pytest.raises(ValueError, match=r"video: 'clips/a\.mp4' links to .*secret/a\.mp4, outside"):
        examples.read(str(file))


def test_missing_or_empty_file_is_an_error(write, tmp_path):
    with pytest.raises(ValueError, match=r"no such annotation file; set data\.train"):
        examples.read(str(tmp_path / "gone.jsonl"))
    with pytest.raises(ValueError, match="holds no example"):
        examples.read(write(""))


def test_missing_video_is_not_an_error_of_the_file(write):
    assert len(examples.read(write(MCQ))) == 1
