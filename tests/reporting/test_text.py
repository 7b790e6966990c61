"""Shown text is harmless whatever it was, and nothing of what was written is hidden by it."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vlrl.reporting import text


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x1b]0;title\x07after", "]0;titleafter"),  # what follows an unfinished escape must stay readable
        ("a\x00b\x7fc\x9bd", "abcd"),
        ("two\r\nlines\tand a tab", "two\nlines\tand a tab"),
        ("back\rwards", "back\nwards"),
        ("pay \u202eevila\u2066", "pay evila"),
        ("broken \ud800 text", "broken \ufffd text"),
        ("\u4e2d\u6587 \U0001f600", "\u4e2d\u6587 \U0001f600"),
        (None, ""),
        (3.5, "3.5"),
    ],
)
def test_control_characters_go_and_text_stays(written, shown):
    assert text.clean(written) == shown


def test_long_text_is_cut_and_says_so():
    assert text.clean("a" * 25, 20) == "a" * 20 + " … 5 more characters"


def test_many_unfinished_escapes_take_linear_time():
    assert len(text.clean("\x1b[" * 50_000 + "1;" * 50_000, 200_000)) <= 200_000


@given(st.text(st.characters(), max_size=200))
def test_any_text_can_be_encoded_and_has_no_control_character(written):
    shown = text.clean(written)
    shown.encode()
    assert not [character for character in shown if ord(character) < 32 and character not in "\t\n"]


@given(
    st.recursive(
        st.text() | st.integers() | st.none(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)
    )
)
def test_embedded_json_means_the_same_and_holds_no_markup(value):
    embedded = str(text.embed(value))
    assert json.loads(embedded) == value
    assert not set(embedded) & set("<>&")
    assert embedded.isascii()


def test_embedded_json_holds_no_address():
    assert "http://" not in text.embed("http://169.254.169.254/a")


def test_not_finite_numbers_are_refused():
    with pytest.raises(ValueError, match="JSON"):
        text.embed(float("nan"))
