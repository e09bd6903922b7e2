"""Run the suite: `make test-faults`, or `PYTHONPATH=tests python -m faults`.

FAULTS=20 runs twenty times as many cases. FAULTS_PART=3/8 runs the third of eight parts and adds
its counts to results/faults.json; a part that is there is not run again. `--kind` and `--case` run
a single case, and show what it prints.
"""

import argparse
import os
import sys
from pathlib import Path

import torch

from faults import results, world
from faults.kinds import KINDS, SMALL
from faults.runner import Kind, describe, run_kind
from statemix.sweep.ledger import commit

_SEED = 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--kind", choices=list(KINDS), action="append")
    parser.add_argument("--case", type=int)
    parser.add_argument("--seed", type=int, default=_SEED)
    parser.add_argument("--jobs", type=int, default=min(2, os.cpu_count() or 1))
    parser.add_argument("--out", type=Path, default=results.FILE, help="where parts add up")
    parser.add_argument("--small", action="store_true", help="the cases of `make test`")
    options = parser.parse_args()
    scale = int(os.environ.get("FAULTS", "1"))
    torch.set_num_threads(1)
    if options.small:
        sys.exit(_run_small() > 0)
    world.preload()
    failed = 0
    for name in options.kind or KINDS:
        kind = KINDS[name]
        if options.case is not None:
            tally = run_kind(kind, [options.case], seed=options.seed, quiet=False)
            print(describe(kind, tally), *tally.failures, sep="\n")
            failed += len(tally.failures)
        else:
            failed += _run(kind, scale, options.seed, options.jobs, options.out)
    sys.exit(failed > 0)


def _run_small() -> int:
    """Run the cases of `make test`; return the number of failures."""
    failed = 0
    for kind in SMALL:
        tally = run_kind(kind, kind.small, seed=_SEED)
        print(describe(kind, tally), *tally.failures, sep="\n")
        failed += len(tally.failures)
    return failed


def _run(kind: Kind, scale: int, seed: int, jobs: int, out: Path) -> int:
    """Run a kind, or a part of it; return the number of failures."""
    text = os.environ.get("FAULTS_PART", "")
    part, parts = map(int, text.split("/")) if text else (1, 1)
    if text and results.finished(results.load(out), kind.name, part, parts, scale, seed):
        print(f"{kind.title}: part {text} is in {out}")
        return 0
    numbers = range(part - 1, kind.cases * scale, parts)
    tally = run_kind(kind, numbers, seed=seed, jobs=jobs)
    print(describe(kind, tally), *tally.failures, sep="\n", flush=True)
    if text:
        place = (part, parts)
        results.add(out, results.part_of(kind.name, place, scale, seed, tally, commit()))
    return len(tally.failures)


if __name__ == "__main__":
    main()
