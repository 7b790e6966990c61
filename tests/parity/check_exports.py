"""What we export, read by the transformers and peft that are installed: a table of families by checks.

    python tests/parity/check_exports.py make DIR     tiny bases of every family, their exports, our logits (needs vlrl)
    python tests/parity/check_exports.py check DIR    loads it all, prints the table, fails on any fault (without vlrl)

launch/check_exports.sh does both with both lines of transformers.
"""

import contextlib
import json
import logging
import pathlib
import re
import sys
import warnings

import numpy as np

FAMILIES = ("qwen2_5_vl", "qwen3_vl", "internvl", "qwen2", "qwen3")
CASES = [f"{family} {head}" for family in FAMILIES for head in ("untied", "tied")]
RANK, ALPHA = 3, 12.0
IDS = (40, 7, 99, 150, 23, 64, 81, 5)
TEXT = "<think><obj>red circle</obj><box>[100,200,500,600]</box>at<t>1.0</t>s</think>"
ABOUT_KEYS = re.compile(r"\bkeys?\b|weight|missing|unexpected|adapter|\btie|newly|mismatch", re.IGNORECASE)
ATOL = 2e-4


def make(directory, case):
    """The base, merged in one file and in shards, the adapter, and our logits with it."""
    from vlrl.config import LoraConfig
    from vlrl.io import hf_export, hf_keys
    from vlrl.models import config
    from vlrl.world import random_checkpoint

    family, head = case.split()
    raw = random_checkpoint.hf_config(family)
    for part in (raw, raw.get("text_config", raw)):
        part["tie_word_embeddings"] = head == "tied"
    params, cfg, lora_cfg = random_checkpoint.params(raw, 0), config.from_hf(raw), LoraConfig(RANK, ALPHA)
    rng, shapes = np.random.default_rng(1), hf_keys.lora_shapes(cfg, RANK, lora_cfg.targets)
    adapter = hf_keys.unflatten({path: rng.normal(scale=0.2, size=s).astype(np.float32) for path, s in shapes.items()})
    directory.mkdir(parents=True)
    base = directory / "base"
    random_checkpoint.write(directory / "files", family, 0)
    hf_export.export_full(raw, params, "float32", base, carry_from=directory / "files")
    hf_export.export_merged(base, None, adapter, lora_cfg, directory / "merged")
    hf_export.export_merged(base, None, adapter, lora_cfg, directory / "sharded", max_shard_bytes=200_000)
    hf_export.export_peft(base, adapter, lora_cfg, directory / "adapter")
    np.save(directory / "logits.npy", our_logits(cfg, {"params": params, "lora": adapter}))


def our_logits(cfg, variables):
    """Of the token after IDS, [V]."""
    from vlrl.models import vlm
    from vlrl.types import PrefixInput, VisionInput

    count = len(IDS)
    tokens, length = np.array([IDS], np.int32), np.array([count], np.int32)
    positions = np.broadcast_to(np.arange(count, dtype=np.int32), (1, 3, count))
    patches = np.zeros((1, 0, 0, cfg.vision.patch_width), np.float32)
    seen = VisionInput(patches, np.zeros((1, 0, 0, 2), np.int32), np.zeros((1, 0, 0), np.int32))
    prefix = PrefixInput(tokens, length, positions, length, np.full_like(tokens, -1), seen)
    model = vlm.Vlm(cfg, lora_scale=ALPHA / RANK, unroll=True)
    prefill = vlm.prefill(model, variables, prefix, np.zeros((1, 0, cfg.hidden_size), np.float32))
    return np.asarray(vlm.next_logits(model, variables, prefill.last_hidden))[0]


def check(directory, case):
    """{check: "" or what is wrong}, with everything that the libraries had to say about keys counted as wrong."""
    expected = np.load(directory / "logits.npy")
    found = {name: _loads(directory / name, case, expected) for name in ("merged", "sharded")}
    found["adapter"] = _wraps(directory, case, expected)
    found["files"] = _files(directory / "merged", directory / "files")
    return found


def _loads(directory, case, expected):
    with _complaints() as said:
        model, info = _load(directory, case)
        said += [f"{kind}: {sorted(keys)[:3]}" for kind, keys in info.items() if keys]
        said += _differences(model, expected)
    return "; ".join(said)


def _wraps(directory, case, expected):
    import peft

    with _complaints() as said:
        model = peft.PeftModel.from_pretrained(_load(directory / "base", case)[0], directory / "adapter").eval()
        tensors = peft.utils.load_peft_weights(str(directory / "adapter"), device="cpu")
        told = peft.utils.set_peft_model_state_dict(model, tensors)
        said += [f"missing: {key}" for key in told.missing_keys if "lora" in key]
        said += [f"unexpected: {key}" for key in told.unexpected_keys]
        wrapped = sum("lora_" in name for name, _ in model.named_parameters())
        if wrapped != len(tensors):
            said.append(f"peft wraps {wrapped} matrices, the file holds {len(tensors)}")
        said += _differences(model, expected)
    return "; ".join(said)


def _files(directory, source):
    import transformers

    ids, expected = (
        transformers.AutoTokenizer.from_pretrained(path)(TEXT)["input_ids"] for path in (directory, source)
    )
    said = [] if ids == expected else ["the tokenizer reads text differently"]
    if not transformers.GenerationConfig.from_pretrained(directory).eos_token_id:
        said.append("generation_config.json names no end of a completion")
    return "; ".join(said)


def _load(directory, case):
    import torch
    import transformers

    text_only = case.split()[0] in ("qwen2", "qwen3")
    auto = transformers.AutoModelForCausalLM if text_only else transformers.AutoModelForImageTextToText
    model, info = auto.from_pretrained(directory, output_loading_info=True, dtype=torch.float32)
    return model.eval(), info


def _differences(model, expected):
    import torch

    with torch.no_grad():
        logits = model(input_ids=torch.tensor([IDS])).logits[0, -1].numpy()
    error = np.abs(logits - expected).max()
    return [] if error <= ATOL else [f"logits differ by {error:.1e}"]


@contextlib.contextmanager
def _complaints():
    """What is logged or warned about keys and weights in the block, in a list that the block may add to."""
    said, told = [], []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: told.append(record.getMessage())
    loggers = [logging.getLogger(name) for name in ("transformers", "peft")]
    for logger in loggers:
        logger.addHandler(handler)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        try:
            yield said
        finally:
            for logger in loggers:
                logger.removeHandler(handler)
    told += [str(warning.message) for warning in warned]
    said += [line.strip() for line in told if ABOUT_KEYS.search(line)]


def main(argv):
    step, directory = argv[1], pathlib.Path(argv[2])
    if step == "make":
        for case in CASES:
            make(directory / case, case)
        return
    import peft
    import torch
    import transformers

    print(f"transformers {transformers.__version__}, peft {peft.__version__}, torch {torch.__version__}")
    found = {case: check(directory / case, case) for case in CASES}
    columns = list(found[CASES[0]])
    print(f"{'':18}" + "".join(f"{column:>9}" for column in columns))
    for case, row in found.items():
        print(f"{case:18}" + "".join(f"{'FAULT' if row[column] else 'ok':>9}" for column in columns))
    faults = {f"{case}, {name}": fault for case, row in found.items() for name, fault in row.items() if fault}
    if faults:
        sys.exit(json.dumps(faults, indent=2))


if __name__ == "__main__":
    main(sys.argv)
