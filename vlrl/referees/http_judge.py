"""The judge behind an OpenAI-compatible endpoint: paced, retried a few times, and abstaining when no answer is had.

Only descriptions and items are sent. The key is read from the environment and is in no file, message or repr.
"""

import concurrent.futures
import dataclasses
import http.client
import json
import os
import re
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Sequence
from typing import Any

from vlrl.config import JudgeConfig
from vlrl.referees import judge, judge_prompt
from vlrl.referees.judge import Case
from vlrl.types import Failure, Judgement

MAX_BYTES = 2**20
MAX_WAIT_S = 60.0
"""Longest wait that an endpoint may ask for."""
FOR_NOW = (408, 409, 425, 429, 500, 502, 503, 504)
"""HTTP statuses that a later try may not meet."""
POSITIVE, NEGATIVE = frozenset(("yes", "pass", "passed")), frozenset(("no", "fail", "failed"))
LOCAL = ("localhost", "127.0.0.1", "::1")


class _Pace:
    """Hands out moments at least 1 / requests_per_s apart, to any number of threads."""

    def __init__(self, requests_per_s: float):
        self._gap_s = 1 / requests_per_s
        self._next_s = 0.0
        self._lock = threading.Lock()

    def wait(self) -> None:
        with self._lock:
            moment = max(self._next_s, time.monotonic())
            self._next_s = moment + self._gap_s
        time.sleep(max(moment - time.monotonic(), 0.0))


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A redirect would carry the key to wherever it points."""

    def redirect_request(self, *_: Any) -> None:
        return None


@dataclasses.dataclass(frozen=True)
class HttpJudge:
    cfg: JudgeConfig
    key: str = dataclasses.field(repr=False)
    pace: _Pace = dataclasses.field(repr=False, compare=False)

    def ask(self, cases: Sequence[Case]) -> list[Judgement]:
        with concurrent.futures.ThreadPoolExecutor(self.cfg.concurrency, thread_name_prefix="judge") as pool:
            return list(pool.map(self._judgement, cases))

    def _judgement(self, case: Case) -> Judgement:
        """Up to four requests: evidence and, where there is some, outcome; relevance; quality."""
        cfg, said = self.cfg, judge_prompt.spoken(case.item, case.description, self.cfg)
        opening = [{"role": "system", "content": cfg.system}] if cfg.system else []
        first = lambda question: [*opening, {"role": "user", "content": said + question}]  # noqa: E731
        evidence = self._answer(first(cfg.evidence_question))
        if isinstance(evidence, Failure):
            return Judgement(failure=evidence)
        outcome: bool | Failure = False
        if evidence:
            answered = {"role": "assistant", "content": cfg.words[1]}
            second = {"role": "user", "content": cfg.outcome_question}
            outcome = self._answer([*first(cfg.evidence_question), answered, second])
        relevance = self._answer(first(cfg.relevance_question))
        quality = self._answer(first(cfg.quality_question))
        for answer in (outcome, relevance, quality):
            if isinstance(answer, Failure):
                return Judgement(failure=answer)
        return Judgement(judge.finding(evidence, bool(outcome)), bool(relevance), bool(quality))

    def _answer(self, messages: list[dict[str, str]]) -> bool | Failure:
        body = {"model": self.cfg.model, "messages": messages, "temperature": 0}
        answer = self._post(json.dumps(body | {"max_tokens": self.cfg.max_answer_tokens}).encode())
        return answer if isinstance(answer, Failure) else read(answer, self.cfg.words)

    def _post(self, body: bytes) -> bytes | Failure:
        """The endpoint's answer, after at most 1 + cfg.retries tries."""
        wait_s, failure = self.cfg.retry_wait_s, Failure("judge_unreachable", "not asked")
        for attempt in range(self.cfg.retries + 1):
            if attempt:
                time.sleep(wait_s)
                wait_s = min(2 * wait_s, MAX_WAIT_S)
            self.pace.wait()
            try:
                with _OPENER.open(self._request(body), timeout=self.cfg.timeout_s) as response:
                    return _all_of(response, self.cfg.timeout_s)
            except urllib.error.HTTPError as error:
                with error:
                    failure = Failure("judge_refused", f"HTTP {error.code}")
                    if error.code not in FOR_NOW:
                        return failure
                    wait_s = max(wait_s, _asked_wait_s(error.headers.get("Retry-After")))
            except TimeoutError:
                failure = Failure("judge_timeout", f"no answer in {self.cfg.timeout_s:g} s")
            except (OSError, http.client.HTTPException) as error:  # URLError is an OSError
                timed_out = isinstance(getattr(error, "reason", None), TimeoutError)
                reason = "judge_timeout" if timed_out else "judge_unreachable"
                failure = Failure(reason, type(error).__name__)
        return failure

    def _request(self, body: bytes) -> urllib.request.Request:
        headers = {"Content-Type": "application/json"}
        if self.key:
            headers["Authorization"] = f"Bearer {self.key}"
        return urllib.request.Request(f"{self.cfg.url.rstrip('/')}/chat/completions", body, headers)


_OPENER = urllib.request.build_opener(_NoRedirect)


def make(cfg: JudgeConfig) -> HttpJudge:
    """Raises ValueError for an address that is none, a key that is not set or would travel in the clear."""
    judge_prompt.check(cfg)
    parts = urllib.parse.urlsplit(cfg.url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"judge.url: {cfg.url!r} is no address; write the base of an endpoint as https://host/v1")
    if parts.username or parts.password:
        raise ValueError("judge.url: holds a name or password; put the key into the variable of judge.key_variable")
    for name in ("timeout_s", "requests_per_s", "concurrency", "max_answer_tokens"):
        if getattr(cfg, name) <= 0:
            raise ValueError(f"judge.{name}: {getattr(cfg, name)} must be above 0")
    key = os.environ.get(cfg.key_variable, "") if cfg.key_variable else ""
    if cfg.key_variable and not key:
        raise ValueError(f"judge.key_variable: {cfg.key_variable} is not in the environment; export it")
    if key and parts.scheme == "http" and parts.hostname not in LOCAL:
        raise ValueError(f"judge.url: {cfg.url!r} would carry the key unencrypted; use https")
    return HttpJudge(cfg, key, _Pace(cfg.requests_per_s))


def read(body: bytes, words: tuple[str, str] = ("no", "yes")) -> bool | Failure:
    """Whether the answer is the positive one. What is cut, says neither or says both is a failure, not a no."""
    try:
        choice = json.loads(body)["choices"][0]
        text, finish = choice["message"]["content"], choice.get("finish_reason")
    except (ValueError, LookupError, TypeError, AttributeError):
        return Failure("judge_unreadable", "no chat completion in the answer")
    if finish == "length":
        return Failure("judge_cut", "the answer hit judge.max_answer_tokens")
    said = set(re.findall(r"\w+", text.casefold())) if isinstance(text, str) else set()
    positive = bool(said & (POSITIVE | {words[1].casefold()}))
    negative = bool(said & (NEGATIVE | {words[0].casefold()}))
    if positive == negative:
        return Failure("judge_unreadable", "neither answer, or both")
    return positive


def _all_of(response: Any, timeout_s: float) -> bytes:
    """The body, at most MAX_BYTES. The socket's own time-out starts anew with each byte that drips in."""
    deadline, parts, size = time.monotonic() + timeout_s, [], 0
    while size < MAX_BYTES and (part := response.read1(2**16)):
        parts.append(part)
        size += len(part)
        if time.monotonic() > deadline:
            raise TimeoutError
    return b"".join(parts)


def _asked_wait_s(header: str | None) -> float:
    """Seconds of a Retry-After header; 0 where it is a date or nothing."""
    return min(float(header), MAX_WAIT_S) if header and re.fullmatch(r"\d{1,6}", header) else 0.0
