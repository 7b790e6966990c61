"""Videos for the loader: decoded in processes that can be killed, a failure being a value."""

import collections
import contextlib
import multiprocessing
import multiprocessing.connection
import os
import pathlib
import re
import subprocess
import sys
import threading
import time
from collections.abc import Sequence

import vlrl
from vlrl import types
from vlrl.config import DataConfig
from vlrl.data import decode as decoder

START_TIMEOUT_S = 120.0
MAX_FAILED_STARTS = 3
WORKER_BYTES = 2 * 2**30
"""Address space of a worker beside the frames: interpreter, libraries, decoder."""


def decode(path: str, num_frames: int, cfg: DataConfig) -> types.Video | types.Failure:
    """One video in this process, without a deadline; see decode.decode for what is sampled."""
    try:
        return types.Video(*decoder.decode(path, num_frames, cfg))
    except decoder.RefusedError as refused:
        return types.Failure(refused.reason, refused.detail)


class _Worker:
    """A decoding process and our end of its pipe."""

    def __init__(self, cfg: DataConfig, target: str):
        self.connection, theirs = multiprocessing.Pipe()
        # one BLAS thread: each reserves address space, which is limited
        environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": _python_path()}
        command = [sys.executable, "-m", "vlrl.data.decode_worker", str(theirs.fileno()), target]
        self.process = subprocess.Popen(
            # frames exist three times at the worst: decoded, stacked, pickled
            [*command, str(3 * cfg.max_decoded_bytes + WORKER_BYTES)],
            pass_fds=[theirs.fileno()],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is the run's to handle
        )
        theirs.close()
        self.ready = False
        self.job: int | None = None
        self.deadline = time.monotonic() + START_TIMEOUT_S

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        self.connection.close()


class DecodePool:
    """cfg.decode_workers processes; a video that overruns cfg.decode_timeout_s costs its worker, not the run."""

    def __init__(self, cfg: DataConfig, target: str = "vlrl.data.decode:decode"):
        self._cfg = cfg
        self._target = target
        self._workers: list[_Worker] = []
        self._failed_starts = 0
        self._lock = threading.Lock()

    def map(self, paths: Sequence[str]) -> list[types.Video | types.Failure]:
        """The video of each path, in order. Failure reasons: those of decode.decode, timeout, crashed."""
        with self._lock:
            results: list[types.Video | types.Failure | None] = [None] * len(paths)
            waiting = collections.deque(range(len(paths)))
            while any(result is None for result in results):
                missing = min(self._cfg.decode_workers, sum(r is None for r in results)) - len(self._workers)
                self._workers += [_Worker(self._cfg, self._target) for _ in range(missing)]
                self._assign(waiting, paths)
                self._collect(results, paths)
            return [result for result in results if result is not None]

    def peak_rss_bytes(self) -> int:
        """Of the living workers together, 0 where /proc does not say. The usage that wait() reports would do no better:
        it begins with the memory of the process that started the worker."""
        peak_bytes = 0
        for worker in self._workers:
            with contextlib.suppress(OSError):
                status = pathlib.Path(f"/proc/{worker.process.pid}/status").read_text()
                peak_bytes += sum(1024 * int(n) for n in re.findall(r"VmHWM:\s*(\d+) kB", status))
        return peak_bytes

    def close(self) -> None:
        """Kills the workers. They also end by themselves with this process."""
        with self._lock:
            for worker in self._workers:
                worker.kill()
            self._workers = []

    def __enter__(self) -> "DecodePool":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _assign(self, waiting: collections.deque[int], paths: Sequence[str]) -> None:
        for worker in self._workers:
            if waiting and worker.ready and worker.job is None:
                worker.job = waiting.popleft()
                worker.deadline = time.monotonic() + self._cfg.decode_timeout_s
                with contextlib.suppress(OSError):  # dead: _collect finds its pipe closed
                    worker.connection.send((paths[worker.job], self._cfg.num_frames, self._cfg))

    def _collect(self, results: list[types.Video | types.Failure | None], paths: Sequence[str]) -> None:
        """Waits for an answer, a death or a deadline, and notes what it means."""
        busy = {worker.connection: worker for worker in self._workers if worker.job is not None or not worker.ready}
        patience = max(0.0, min(worker.deadline for worker in busy.values()) - time.monotonic())
        for connection in multiprocessing.connection.wait(list(busy), patience):
            worker = busy[connection]  # type: ignore[index]  # wait() gives back what it was given
            try:
                answer = worker.connection.recv()
            except (EOFError, OSError):
                self._lose(worker, results, paths, "crashed", f"the decoder died ({worker.process.wait()})")
                continue
            if not worker.ready:
                worker.ready, self._failed_starts = True, 0
            elif worker.job is not None:
                good = answer[0] == "ok"
                results[worker.job] = types.Video(*answer[1]) if good else types.Failure(*answer)
                worker.job = None
        now = time.monotonic()
        for worker in [w for w in busy.values() if (w.job is not None or not w.ready) and w.deadline <= now]:
            if worker in self._workers:
                cure = f"{self._cfg.decode_timeout_s} s were not enough; re-encode the file or raise decode_timeout_s"
                self._lose(worker, results, paths, "timeout", cure)

    def _lose(
        self,
        worker: _Worker,
        results: list[types.Video | types.Failure | None],
        paths: Sequence[str],
        reason: str,
        detail: str,
    ) -> None:
        worker.kill()
        self._workers.remove(worker)
        if worker.job is not None:
            results[worker.job] = types.Failure(reason, f"{paths[worker.job]}: {detail}")
        elif not worker.ready:
            self._failed_starts += 1
            if self._failed_starts >= MAX_FAILED_STARTS:
                raise RuntimeError(f"decode workers do not start: {reason}, {detail}; see the errors printed above")


def _python_path() -> str:
    """Lets the worker import this very vlrl, installed or not."""
    here = str(pathlib.Path(vlrl.__path__[0]).parent)
    return os.pathsep.join(filter(None, [here, os.environ.get("PYTHONPATH", "")]))
