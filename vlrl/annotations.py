"""Checks annotation files, and divides one into a training and a test side.

python -m vlrl.annotations check data/all.jsonl                        # lists every bad line
python -m vlrl.annotations check data/train.jsonl --against data/eval.jsonl --disjoint child
python -m vlrl.annotations split data/all.jsonl --by child             # or item, site; writes train and eval beside it
"""

import argparse
import json
import pathlib
import sys
from collections.abc import Sequence

from vlrl import command_line
from vlrl.data import examples, fields, splits
from vlrl.types import Example


def check(path: str, against: str, disjoint: str) -> None:
    """Raises one ValueError listing every malformed line of the file(s), or everyone who is on both sides."""
    files = [path, against] if against else [path]
    found = [examples.check(file) for file in files]
    if errors := [error for _, problems in found for error in problems]:
        raise fields.complaint(errors, most=None)
    for file, (rows, _) in zip(files, found, strict=True):
        print(f"{file}: {len(rows)} examples, all well-formed")
    if against:
        check_disjoint(found[0][0], found[1][0], disjoint)
        print(f"no {disjoint} is in both files")


def check_disjoint(train: Sequence[Example], test: Sequence[Example], field: str) -> None:
    """Raises ValueError counting who is on both sides; names stay out of it: they are people."""
    if shared := splits.leaks(train, test, field):
        raise ValueError(
            f"{len(shared)} {field} value(s) are on both sides, with {_rows(train, shared, field)} training and "
            f"{_rows(test, shared, field)} test rows; split again with `python -m vlrl.annotations split --by {field}`"
        )


def split(path: str, by: str, train_share: float, seed: int, names: tuple[str, str]) -> None:
    """Writes the two sides into the folder of the file, whose lines they repeat byte for byte."""
    if by != "item" and by not in splits.FIELDS:
        raise ValueError(f"--by {by}: choose item, {', '.join(splits.FIELDS)}")
    if not 0 < train_share < 1:
        raise ValueError(f"--train-share {train_share}: must be between 0 and 1, such as 0.9")
    rows = examples.read(path)
    sides = splits.per_item(rows, train_share, seed) if by == "item" else splits.disjoint(rows, by, train_share, seed)
    file = pathlib.Path(path)
    lines = {json.loads(line)["example_id"]: line for _, line in fields.numbered(file)}
    for name, side in zip(names, sides, strict=True):
        target = file.with_name(f"{name}.jsonl")
        if target.exists():
            raise ValueError(f"{target}: exists; remove it or choose other --names")
        target.write_bytes(b"".join(lines[example.example_id] + b"\n" for example in side))
        print(f"{target}: {len(side)} examples")


def _rows(rows: Sequence[Example], names: Sequence[str], field: str) -> int:
    return sum(splits.FIELDS[field](example) in names for example in rows)


def main(argv: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    checking = commands.add_parser("check", help="list every bad line; with --against, everyone on both sides")
    checking.add_argument("file")
    checking.add_argument("--against", default="", help="the other side of a split")
    checking.add_argument("--disjoint", default="child", choices=tuple(splits.FIELDS))
    splitting = commands.add_parser("split", help="write a training and a test file")
    splitting.add_argument("file")
    splitting.add_argument("--by", default="item", help="item (per item), child or site (nobody on both sides)")
    splitting.add_argument("--train-share", type=float, default=0.9)
    splitting.add_argument("--seed", type=int, default=0)
    splitting.add_argument("--names", nargs=2, default=("train", "eval"))
    args = parser.parse_args(argv[1:])
    if args.command == "check":
        check(args.file, args.against, args.disjoint)
    else:
        split(args.file, args.by, args.train_share, args.seed, tuple(args.names))


if __name__ == "__main__":
    command_line.run(main, sys.argv)
