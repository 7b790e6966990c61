"""Process that decodes videos for DecodePool: `python -m vlrl.data.decode_worker FD MODULE:FUNCTION MEMORY_BYTES`.

A plain subprocess and not multiprocessing: its spawn would import the run's main module, and jax with it, anew.
"""

import importlib
import os
import resource
import sys
import threading
import time
import traceback
from multiprocessing.connection import Connection

from vlrl.data import decode


def main(fd: int, target: str, memory_bytes: int) -> None:
    """Answers (path, num_frames, cfg) with ("ok", Clip) or (reason, detail) until the other end closes."""
    resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    threading.Thread(target=_exit_with_parent, args=(os.getppid(),), daemon=True).start()
    module, function = target.split(":")
    run = getattr(importlib.import_module(module), function)
    connection = Connection(fd)
    connection.send("ready")
    while True:
        try:
            job = connection.recv()
        except EOFError:
            return
        try:
            answer = ("ok", run(*job))
        except decode.RefusedError as refused:
            answer = (refused.reason, refused.detail)
        except Exception:
            answer = ("crashed", traceback.format_exc(limit=-3))
        connection.send(answer)


def _exit_with_parent(parent: int) -> None:
    # The pipe tells an idle worker; this is for one that is deep in a decoder when the run is killed.
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
