"""Write the golden files of this version: `python tests/write_golden.py`.

    tests/golden/<version>/data          a prepared text
    tests/golden/<version>/run           a finished run on a task
    tests/golden/<version>/interrupted   the same run, killed after its second epoch
    tests/golden/<version>/lm            a run of a language model, with its checkpoint
    tests/golden/<version>/export        its model, exported for Hugging Face
    tests/golden/<version>/ledger.jsonl  a ledger of one run that is done and one that failed
    tests/golden/<version>/outputs.json  what all of them give

Every later version must load them to the same outputs. A version that changes a format writes a
directory of its own, and keeps the others: `tests/test_golden.py` reads them all.
"""

import json
import shutil
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from texts import write_texts
from torch import Tensor, nn

from statemix import __version__
from statemix.cli import main
from statemix.config.model import ModelConfig
from statemix.data import open_data
from statemix.lm.saved import load_model
from statemix.sweep import Ledger
from statemix.sweep.ledger import make_entry
from statemix.train import RunConfig, loop, train
from statemix.train.trained import load_trained

GOLDEN = Path(__file__).parent / "golden"
TASK = RunConfig(
    "s3",
    ModelConfig(options={"n_blocks": 4, "block_size": 3}, width=12),
    length=8,
    train_examples=64,
    test_examples=32,
    batch=16,
    epochs=4,
    lr=1e-2,
)
TEXT = "--vocab 280 --validation 0.1 --shard-tokens 1000"
MODEL = "--preset 180k-bdlru-m4 --width 16 --layers 1 --options n_blocks=4 block_size=3 --tie"
STEPS = "--length 16 --batch 2 --steps 12 --save-every 8 --keep 2 --peak-tflops 1"


def main_writer() -> None:
    """Write the directory of this version, which must not exist."""
    out = GOLDEN / __version__
    if out.exists():
        sys.exit(f"{out} exists: golden files are never written again. Change the version first.")
    with tempfile.TemporaryDirectory() as folder:
        _write(Path(folder) / "golden")
        shutil.copytree(Path(folder) / "golden", out, ignore=shutil.ignore_patterns("lock"))
    size = sum(path.stat().st_size for path in out.rglob("*"))
    print(f"written to {out}: {size:,} bytes")


def _write(out: Path) -> None:
    texts = write_texts(out.parent / "texts", documents=16, sentences=6)
    _call(f"lm prepare {texts} --out {out / 'data'} {TEXT}")
    meta = out / "data" / "data.json"
    meta.write_text(meta.read_text().replace(str(texts), "texts"))
    _call(f"lm train {out / 'data'} --out {out / 'lm'} {MODEL} {STEPS}")
    _call(f"lm export {out / 'lm' / 'final'} {out / 'export'}")
    result = train(TASK, out / "run")
    _interrupt(out / "interrupted")
    ledger = Ledger(out / "ledger.jsonl")
    ledger.append(make_entry(TASK, json.loads((out / "run" / "result.json").read_text()), None))
    ledger.append(make_entry(RunConfig("s2"), None, "ValueError: an example"))
    assert result.id == TASK.id
    (out / "outputs.json").write_text(json.dumps(outputs(out), indent=1) + "\n")


def _call(words: str) -> None:
    main(words.split())


def _interrupt(directory: Path) -> None:
    """Train for two epochs, with a checkpoint after each."""

    def stop(_: Any, report: Any) -> None:
        if report.epoch == 1:
            raise KeyboardInterrupt

    seconds = loop.CHECKPOINT_SECONDS
    loop.CHECKPOINT_SECONDS = 0
    with suppress(KeyboardInterrupt):
        train(TASK, directory, observer=stop)
    loop.CHECKPOINT_SECONDS = seconds


# What the files give


def outputs(directory: Path) -> dict[str, Any]:
    """The outputs of every golden file in `directory`."""
    entries, complaints = Ledger(directory / "ledger.jsonl").read()
    return {
        "run": run_outputs(directory / "run"),
        "data": data_outputs(directory / "data"),
        "lm": lm_outputs(load_model(directory / "lm" / "final").model),
        "ledger": [[entry.id, entry.status] for entry in entries] + complaints,
    }


def run_outputs(directory: Path) -> dict[str, Any]:
    """The config's id, and the logits of the selected weights."""
    config, _, model = load_trained(directory)
    return {"id": config.id, "logits": _logits(model, 6)}


def lm_outputs(model: nn.Module) -> list[list[float]]:
    """The logits of a language model, whose vocabulary has at least 256 tokens."""
    return _logits(model, 256)


def data_outputs(directory: Path) -> dict[str, Any]:
    """Vocabulary, sizes, sums of tokens, and the first document as text."""
    from tokenizers import Tokenizer

    data = open_data(directory)
    data.verify()
    splits = {name: data.split(name) for name in ("train", "validation")}
    shard = splits["train"].shards[0]
    first = shard.tokens[1 : shard.starts[1]].tolist()
    sums = {
        name: [int(shard.tokens.astype(np.int64).sum()) for shard in split.shards]
        for name, split in splits.items()
    }
    text = Tokenizer.from_file(str(data.tokenizer)).decode(first)
    return {"vocab": data.meta.vocab, "sums": sums, "text": text}


@torch.no_grad()
def _logits(model: nn.Module, vocab: int) -> list[list[float]]:
    """Logits for twelve tokens; six classes are enough to tell weights apart."""
    found: Tensor = model((7 * torch.arange(12) % vocab)[None])[0]
    return found[0, :, :6].double().tolist()


if __name__ == "__main__":
    main_writer()
