"""Writes a run's newest policy for other tools.

python -m vlrl.export --workdir runs/tiny_ser --format hf --out exported     merged Hugging Face directory
python -m vlrl.export --workdir runs/tiny_ser --format peft --out adapter    PEFT adapter
"""

import pathlib
import sys

import jax

from vlrl import command_line, config
from vlrl.io import hf_export, hf_import, run_directory
from vlrl.models import lora
from vlrl.rl import optimizer, update


def export(cfg: config.Config, workdir: pathlib.Path, format: str, out: pathlib.Path, overwrite: bool) -> None:
    architecture, _ = hf_import.load_config(cfg.policy.path)
    base = hf_import.shapes(architecture, cfg.policy.dtype)  # no weights: only the adapter's shapes hang on it
    fresh = update.init(lora.init(jax.random.key(0), base, cfg.lora), optimizer.make(cfg.opt, cfg.steps))
    adapter = jax.device_get(run_directory.read_state(workdir, fresh).adapter)
    if format == "hf":
        # From the base's own files: exact also where the run held them in a shorter type.
        hf_export.export_merged(cfg.policy.path, None, adapter, cfg.lora, out, overwrite=overwrite)
        print(f"{out}: evaluate it as the run did, {cfg.data.num_frames} frames of at most {cfg.data.max_pixels} px:")
        print(f"  vllm serve {out} --limit-mm-per-prompt.video 1")
        print(
            f"  lmms_eval --model qwen2_5_vl --tasks videomme --model_args "
            f"pretrained={out},max_num_frames={cfg.data.num_frames},max_pixels={cfg.data.max_pixels}"
        )
    else:
        hf_export.export_peft(cfg.policy.path, adapter, cfg.lora, out, overwrite=overwrite)
        print(f"{out}: PeftModel.from_pretrained(base, {str(out)!r}), base from {cfg.policy.path}")


def main(argv: list[str]) -> None:
    flags = command_line.parse(
        argv, __doc__ or "", {"workdir": None, "format": "hf", "out": None, "overwrite": False}, config_required=False
    )
    if flags.format not in ("hf", "peft"):
        raise ValueError(f"--format {flags.format}: choose hf (merged weights) or peft (adapter)")
    workdir = pathlib.Path(flags.workdir)
    export(run_directory.read_config(workdir), workdir, flags.format, pathlib.Path(flags.out), flags.overwrite)


if __name__ == "__main__":
    command_line.run(main, sys.argv)
