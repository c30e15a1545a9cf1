"""An independent statement of how Megatron-Core shards relate to HF checkpoints.

Written from formulas, for reading; the layout programs of deltawire are tested against it and share
nothing with it. Python and numpy only. See README.md for what is where.
"""
