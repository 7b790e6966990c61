"""Memory and time of importing a checkpoint of a published size.

python benchmarks/import_3b.py                                   Qwen2.5-VL-3B in bfloat16, shards of at most 5 GB
python benchmarks/import_3b.py --preset Qwen/Qwen3-VL-8B-Instruct --directory /scratch

Writes random shards into a temporary directory, imports them in a process of its own, deletes them, and prints one JSON
object. `peak_over_bound` is the peak of host memory over what is allowed: the parameters kept in host memory and 1.2
times the largest shard. `before_gb` is what the process held before it read anything, and counts in the peak.
"""

import argparse
import json
import pathlib
import resource
import subprocess
import sys
import tempfile
import time

import jax
import numpy as np

from vlrl.io import hf_directory, hf_import, hf_keys
from vlrl.models import presets

GB = 1e9


def write(preset: str, directory: pathlib.Path, shard_gb: float) -> None:
    """A checkpoint of that size, every tensor cut from the same noise."""
    cfg = presets.get(preset)
    noise = np.random.default_rng(0).normal(size=2**20).astype("bfloat16")
    shapes = {name: entry.shape for entry in hf_keys.table(cfg) for name in entry.names}
    sizes = {name: (*shape, 2) for name, shape in shapes.items()}
    hf_directory.write_tensors(directory, sizes, lambda name: np.resize(noise, shapes[name]), int(shard_gb * GB))
    hf_directory.write_config(directory, presets.PRESETS[preset], cfg.tie_word_embeddings)


def read(directory: pathlib.Path, dtype: str) -> dict:
    before_gb = _peak_gb()
    cfg, _ = hf_import.load_config(directory)
    start = time.perf_counter()
    params = jax.block_until_ready(hf_import.place_params(directory, cfg, dtype))
    seconds = time.perf_counter() - start
    kept_gb = sum(leaf.nbytes for leaf in jax.tree.leaves(params)) / GB
    host_gb = kept_gb if jax.default_backend() == "cpu" else 0.0
    shard_gb = max(file.stat().st_size for file in directory.glob("*.safetensors")) / GB
    return {
        "backend": jax.default_backend(),
        "dtype": dtype,
        "peak_gb": _peak_gb(),
        "before_gb": before_gb,
        "kept_gb": kept_gb,
        "kept_in_host_memory_gb": host_gb,
        "largest_shard_gb": shard_gb,
        "peak_over_bound": _peak_gb() / (host_gb + 1.2 * shard_gb),
        "import_s": seconds,
    }


def _peak_gb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / GB


def main() -> None:
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("--preset", default="Qwen/Qwen2.5-VL-3B-Instruct", choices=presets.PRESETS)
    flags.add_argument("--dtype", default="bfloat16")
    flags.add_argument("--shard_gb", type=float, default=hf_directory.MAX_SHARD_BYTES / GB)
    flags.add_argument("--directory", type=pathlib.Path, help="where the temporary directory is made")
    flags.add_argument("--step", choices=("write", "read"), help=argparse.SUPPRESS)
    args = flags.parse_args()
    if args.step == "write":
        write(args.preset, args.directory, args.shard_gb)
    elif args.step == "read":
        figures = {"preset": args.preset, **read(args.directory, args.dtype)}
        print(json.dumps({name: round(x, 3) if isinstance(x, float) else x for name, x in figures.items()}, indent=2))
    else:
        with tempfile.TemporaryDirectory(dir=args.directory) as folder:
            # Both in processes of their own: the peak of a process is never less than that of its parent at the start.
            for step in ("write", "read"):
                command = [sys.executable, __file__, *sys.argv[1:], f"--directory={folder}", f"--step={step}"]
                subprocess.run(command, check=True)


if __name__ == "__main__":
    main()
