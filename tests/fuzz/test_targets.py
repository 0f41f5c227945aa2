"""A short run of each fuzz target, so that the targets themselves stay alive."""

import random

import pytest

from tests.fuzz.mutate import mutated
from tests.fuzz.targets import TARGETS


@pytest.mark.parametrize("name", TARGETS)
def test_good_and_spoiled_bytes_never_break_it(name):
    target = TARGETS[name]
    chooser = random.Random(7)
    for seed in target.seeds():
        target.run(seed)
        for length in range(0, len(seed), max(1, len(seed) // 200)):
            target.run(seed[:length])
        for _ in range(300):
            target.run(mutated(seed, chooser))
