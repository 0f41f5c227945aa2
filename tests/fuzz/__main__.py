"""Fuzz each target for a while, and keep what broke it."""

from __future__ import annotations

import argparse
import random
import sys
import time
import traceback
from pathlib import Path

from tests.fuzz.mutate import mutated
from tests.fuzz.targets import TARGETS

FOUND = Path(__file__).parent / "found"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("targets", nargs="*", help=f"of: {', '.join(TARGETS)}; default all")
    parser.add_argument("--seconds", type=float, default=60.0, help="for each target (60)")
    parser.add_argument("--seed", type=int, default=None, help="repeat a run")
    args = parser.parse_args()
    unknown = set(args.targets) - set(TARGETS)
    if unknown:
        parser.error(f"unknown: {', '.join(unknown)}; there are: {', '.join(TARGETS)}")
    failures = 0
    for name in args.targets or TARGETS:
        failures += fuzz(name, args.seconds, args.seed or random.randrange(2**32))
    return 1 if failures else 0


def fuzz(name: str, seconds: float, seed: int) -> int:
    target = TARGETS[name]
    chooser = random.Random(seed)
    seeds = target.seeds()
    tried = 0
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        data = mutated(chooser.choice(seeds), chooser)
        try:
            target.run(data)
        except Exception:  # noqa: BLE001 - anything at all is a finding
            FOUND.mkdir(exist_ok=True)
            path = FOUND / f"{name}-{seed}-{tried}"
            path.write_bytes(data)
            traceback.print_exc()
            print(f"{name}: failed after {tried} inputs, seed {seed}; input kept in {path.name}")
            return 1
        tried += 1
    print(f"{name}: {tried} inputs in {seconds:.0f} s, seed {seed}, nothing found")
    return 0


if __name__ == "__main__":
    sys.exit(main())
