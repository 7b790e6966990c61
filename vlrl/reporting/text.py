"""Text from models, data and judges, made harmless to show.

Markup is not escaped here: the template escapes what it prints, the script sets text and never HTML.
"""

import json
import re
from typing import Any

import markupsafe

_COLOUR = re.compile(r"\x1b\[[0-?]{0,64}[ -/]{0,8}[@-~]")
# Control characters but tab and newline, and the marks that turn the direction of what follows: they make text that
# reads otherwise than it is (Unicode TR 36, 2.2).
_UNSEEN = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u200e\u200f\u202a-\u202e\u2066-\u2069\ufeff]")
_BROKEN = re.compile(r"[\ud800-\udfff]")
_IN_SCRIPT = {character: f"\\u{ord(character):04x}" for character in "<>&"} | {"/": "\\/"}


def clean(value: Any, limit: int = 6000) -> str:
    """The value as text without terminal escapes, control characters and broken Unicode, cut after `limit` characters.

    What stands between escapes stays: nothing that a policy wrote is hidden."""
    text = value if isinstance(value, str) else "" if value is None else str(value)
    more = len(text) - limit
    text = text[:limit].replace("\r\n", "\n").replace("\r", "\n")
    text = _BROKEN.sub("\ufffd", _UNSEEN.sub("", _COLOUR.sub("", text)))
    return f"{text} … {more} more characters" if more > 0 else text


def embed(value: Any) -> markupsafe.Markup:
    """JSON for a script element of type application/json: ASCII, and no character that HTML reads.

    `json.dumps` leaves `</script>` as it is. Slashes are escaped too, so that no address can be read out of the file.
    Raises ValueError for NaN and infinity, which JSON has not."""
    text = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    # Outside of strings JSON has none of these characters.
    return markupsafe.Markup(re.sub(r"[<>&/]", lambda match: _IN_SCRIPT[match[0]], text))
