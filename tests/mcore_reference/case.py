"""One random case of the reference: everything follows from (family, seed)."""

import random
from dataclasses import dataclass

from .families import random_config
from .hub import HubFile, hf_tensors, random_hub_file
from .model import Model, language_of
from .parallel import Parallel, random_parallel, why_invalid
from .shards import mcore_shards
from .values import hf_values


@dataclass
class Case:
    family: str
    seed: int
    config: dict
    hub: HubFile
    parallel: Parallel
    hf: dict  # the expected HF checkpoint: name -> array
    listed: dict  # name -> (shape, dtype)

    def shards(self):
        return mcore_shards(self.config, self.parallel, self.hf)


def random_case(family, seed, change=lambda language: None, parallel=None):
    """change: alters the language part of config.json before anything follows from it. parallel: the
    layout, where it is not to be drawn."""
    rng = random.Random(f"{family} {seed}")
    config = random_config(family, rng)
    change(language_of(config))
    hub = random_hub_file(config, rng)
    if parallel is None:
        parallel = random_parallel(Model(config), rng)
    assert why_invalid(Model(config), parallel) is None, why_invalid(Model(config), parallel)
    return Case(family, seed, config, hub, parallel, hf_values(config, rng, hub),
                hf_tensors(config, hub))


def seeds_that_show(family, shows, count, change=lambda language: None):
    """Seeds of the first `count` cases for which shows(model, parallel) is true."""
    out = []
    for seed in range(3000):
        rng = random.Random(f"{family} {seed}")
        config = random_config(family, rng)
        change(language_of(config))
        model = Model(config)
        model.hub = random_hub_file(config, rng)
        if shows(model, random_parallel(model, rng)):
            out.append(seed)
            if len(out) == count:
                return out
    raise AssertionError(f"{family}: {len(out)} of {count} cases of the kind that is looked for")
