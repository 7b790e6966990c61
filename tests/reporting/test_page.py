"""The file is a document of its own: no text of a run becomes markup, nothing is fetched, nothing private is in it."""

import base64
import hashlib
import html.parser
import json
import re

import made
import pytest

from vlrl.reporting import groups, page, runs

PAYLOADS = (
    "</script><script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "<!--<script>",
    "]]><svg onload=alert(1)>",
    "\"'><a href='http://169.254.169.254/'>x</a>",
    "{{ 7 * 7 }} {% raw %}",
    "\x1b]0;owned\x07\x1b[2Jtext",
    "\ud800 broken \u202e evil \u2028",
    "&lt;b&gt; &#x3c;script&#x3e;",
)


class Elements(html.parser.HTMLParser):
    """Every element with its attributes, and the text of scripts and styles."""

    def __init__(self, text):
        super().__init__()
        self.elements, self.inside = [], {}
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data):
        if self.elements and self.elements[-1][0] in ("script", "style", "title"):
            self.inside.setdefault(len(self.elements) - 1, data)

    def texts(self, tag):
        return [self.inside[i] for i, (name, _) in enumerate(self.elements) if name == tag and i in self.inside]


def rendered(*directories, limits=None):
    return page.render([runs.read(directory) for directory in directories], limits or groups.Limits())


def data_of(text):
    return json.loads(Elements(text).texts("script")[0])


def hostile(directory, payload):
    """A run that says the payload wherever text of others comes in."""
    verdict = made.verdict(object=payload, failure=payload, relevance=payload, localization=payload)
    texts = dict.fromkeys(("example_id", "task", "prompt", "completion", "reference", "reason", "judge_text"), payload)
    column = payload.encode("utf-8", "replace").decode()
    rows = [made.row(0, verdicts=(verdict,)) | texts | {f"rewards/{column}": 1.0}]
    mode = {payload: {payload: [1.0, 2.0]}}
    made.run(
        directory,
        [rows],
        metrics={0: {"reward": 1.0, f"own/{payload}": 2.0, f"invalid/{payload}": 1.0}},
        config={"prompt": {payload: payload}, "rewards": {payload: 1.0}},
        files={
            "before": mode,
            "after": mode,
            "results": {"before": {payload: {"mean": 1.0}}, "by_task": {"before": {payload: {payload: 1.0}}}},
        },
    )
    return directory


@pytest.mark.parametrize("payload", PAYLOADS)
def test_text_of_a_run_never_becomes_markup(tmp_path, payload):
    plain = Elements(rendered(hostile(tmp_path / "run", "word")))
    found = Elements(rendered(hostile(tmp_path / "other" / "run", payload)))
    assert [tag for tag, _ in found.elements] == [tag for tag, _ in plain.elements]
    assert [set(attributes) for _, attributes in found.elements] == [set(a) for _, a in plain.elements]
    assert [tag for tag, _ in found.elements].count("script") == 2
    assert not [name for _, attributes in found.elements for name in attributes if name.startswith("on")]


@pytest.mark.parametrize("payload", PAYLOADS)
def test_text_of_a_run_arrives_without_its_control_characters(tmp_path, payload):
    text = rendered(hostile(tmp_path / "run", payload))
    assert "\x1b" not in text
    assert "\\u001b" not in text
    (rollout,) = data_of(text)["groups"][0]["rollouts"]
    assert "\u202e" not in rollout["completion"]
    kept = re.sub(r"[^a-z0-9 ]", "", payload.replace("\x1b[2J", ""))
    assert kept in re.sub(r"[^a-z0-9 ]", "", rollout["completion"])


def test_names_of_directories_are_text(tmp_path):
    text = rendered(made.run(tmp_path / "<img onerror=x>", [[made.row()]]))
    assert "<img" not in text
    assert Elements(text).texts("title") == ["<img onerror=x> · vlrl report"]


@pytest.mark.parametrize("payload", PAYLOADS)
def test_nothing_is_fetched(tmp_path, payload):
    text = rendered(hostile(tmp_path / "run", payload))
    assert "://" not in text
    addresses = [a for _, attributes in Elements(text).elements for a in ("src", "href", "action") if a in attributes]
    assert addresses == []


def test_only_the_scripts_and_styles_of_the_file_may_run(tmp_path):
    found = Elements(rendered(made.run(tmp_path / "run", [[made.row()]])))
    (policy,) = [a["content"] for tag, a in found.elements if tag == "meta" and "http-equiv" in a]
    rules = dict(rule.split(" ", 1) for rule in policy.split("; "))

    def sha256(source):
        return f"'sha256-{base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()}'"

    assert rules == {
        "default-src": "'none'",
        "script-src": sha256(found.texts("script")[1]),
        "style-src": sha256(found.texts("style")[0]),
        "img-src": "data:",
        "base-uri": "'none'",
        "form-action": "'none'",
    }


def test_script_sets_text_and_never_markup(tmp_path):
    script = Elements(rendered(made.run(tmp_path / "run", [[made.row()]]))).texts("script")[1]
    for word in (
        "innerHTML",
        "outerHTML",
        "insertAdjacent",
        "document.write",
        "eval(",
        "Function(",
        "fetch",
        "import(",
    ):
        assert word not in script


def test_report_without_log_media_holds_no_frame_and_no_path(tmp_path):
    rows = [[made.row(verdicts=(made.verdict(),))]]
    text = rendered(made.run(tmp_path / "run", rows, media={0: [made.frame()]}))
    assert data_of(text)["media"] == []
    assert "/9j/" not in text.replace("\\/", "/")  # how a JPEG begins in base64
    assert "orchard" not in text
    assert str(tmp_path) not in text.replace("\\/", "/")


def test_report_with_log_media_holds_the_frames(tmp_path):
    rows = [[made.row(verdicts=(made.verdict(),))]]
    text = rendered(made.run(tmp_path / "run", rows, media={0: [made.frame()]}, config=made.MEDIA))
    (jpeg,) = data_of(text)["media"]
    assert base64.b64decode(jpeg).startswith(b"\xff\xd8\xff")


def test_several_runs_are_beside_each_other(tmp_path):
    first = made.run(tmp_path / "first", [[made.row()]], files={"results": {"examples": 1}})
    second = made.run(tmp_path / "second", [[made.row()]], config={"seed": 7})
    data = data_of(rendered(first, second))
    assert [(run["name"], run["state"]) for run in data["runs"]] == [
        ("first", "1 of 4 steps, finished"),
        ("second", "1 of 4 steps, not finished"),
    ]
    assert [series["label"] for series in data["charts"][0]["series"]] == ["first", "second"]
    assert {"name": "seed", "values": ["0", "7"]} in data["settings"]
    assert sorted(group["run"] for group in data["groups"]) == [0, 1]


def test_run_that_has_just_begun_is_a_page(tmp_path):
    data = data_of(rendered(made.run(tmp_path / "run", [])))
    assert (data["groups"], data["charts"], data["evaluations"]) == ([], [], [{"modes": [], "tasks": []}])


def test_run_cut_while_writing_is_a_page(tmp_path):
    directory = made.run(tmp_path / "run", [[made.row()]])
    with (directory / "metrics.jsonl").open("a") as file:
        file.write('{"step": 1, "reward": 1')
    (directory / "rollouts" / "step_000001.parquet").write_bytes(b"PAR1")
    data = data_of(rendered(directory))
    assert data["charts"][0]["series"][0]["steps"] == [0.0]
    assert data["runs"][0]["notes"] == ["rollouts/step_000001.parquet cannot be read (ArrowInvalid) and is left out"]
