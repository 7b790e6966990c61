"""Writes what runs did as one HTML file that opens anywhere; they may still be training.

python -m vlrl.report runs/tiny_ser                         # runs/tiny_ser/report.html
python -m vlrl.report runs/a runs/b --out compared.html     # several runs beside each other
python -m vlrl.report runs/tiny_ser --watch 60              # again every minute, until the run has ended
python -m vlrl.report runs/tiny_ser --plots figures         # also the curves as PNG, for a paper
"""

import argparse
import os
import pathlib
import sys
import time

from vlrl import command_line
from vlrl.reporting import page, plots, runs, text
from vlrl.reporting.groups import Limits

MAX_RUNS = 8
"""As many as there are colours."""


def write(directories: list[pathlib.Path], out: pathlib.Path, limits: Limits, reload_s: float = 0.0) -> bool:
    """Replaces the file `out` in one rename. Returns whether every run is finished."""
    found = [runs.read(directory) for directory in directories]
    content = page.render(found, limits, reload_s).encode()
    tmp = out.with_name(f".{out.name}.tmp")
    try:
        tmp.write_bytes(content)
        os.replace(tmp, out)
    except OSError as error:
        raise ValueError(f"--out {out}: cannot be written ({error.strerror}); name another file") from error
    print(f"{text.clean(str(out))}: {len(content) / 2**20:.1f} MiB", flush=True)
    return all(run.evaluations["results"] for run in found)


def main(argv: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", metavar="RUN", type=pathlib.Path, help="directory of a run")
    parser.add_argument("--out", type=pathlib.Path, help="file to write (default: report.html in the first run)")
    parser.add_argument("--watch", type=float, default=0.0, metavar="SECONDS", help="write again and again")
    parser.add_argument("--plots", type=pathlib.Path, metavar="DIR", help="write the curves there as PNG files")
    parser.add_argument("--rollouts", type=int, default=Limits.rollouts, help="at most so many are shown")
    parser.add_argument("--max-mb", type=float, default=Limits.bytes / 2**20, help="room for rollouts and frames")
    parser.add_argument("--steps", default="", metavar="FIRST:LAST", help="rollouts of these steps only")
    args = parser.parse_args(argv[1:])
    if len(args.runs) > MAX_RUNS:
        raise ValueError(f"{len(args.runs)} runs: more than {MAX_RUNS} cannot be told apart; name fewer")
    first, last = _steps(args.steps)
    limits = Limits(args.rollouts, int(args.max_mb * 2**20), first, last)
    out = args.out or args.runs[0] / "report.html"
    if args.plots:
        plots.write([runs.read(directory) for directory in args.runs], args.plots)
    finished = write(args.runs, out, limits, args.watch)
    while args.watch and not finished:
        time.sleep(args.watch)
        finished = write(args.runs, out, limits, args.watch)


def _steps(value: str) -> tuple[int, int]:
    if not value:
        return Limits.first_step, Limits.last_step
    first, _, last = value.partition(":")
    try:
        return int(first or 0), int(last) if last else Limits.last_step
    except ValueError:
        raise ValueError(f"--steps {value}: expected FIRST:LAST, such as 100:120") from None


if __name__ == "__main__":
    command_line.run(main, sys.argv)
