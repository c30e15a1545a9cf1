"""transformers: a callback of `Trainer` that publishes the model every N steps.

    from deltawire.integrations.transformers import DeltawireCallback

    trainer = Trainer(model=model, ..., callbacks=[DeltawireCallback(every=10, hf_dir="base")])

The arguments are those of `StepPublisher`. Run with transformers 5.23 and accelerate 1.15.
"""

from __future__ import annotations

from typing import Any

from deltawire.integrations._framework import framework_class
from deltawire.integrations._steps import StepPublisher

TrainerCallback = framework_class("the callback", "transformers:TrainerCallback")


class DeltawireCallback(TrainerCallback):
    """Publishes after each `every`-th step of the optimizer, and at the end of the training."""

    def __init__(self, every: int = 1, **options: Any):
        self._publisher = StepPublisher(every, **options)

    @property
    def version(self) -> int:
        """The last one of this trainer; 0 before the first."""
        return self._publisher.version

    def on_step_end(self, args: Any, state: Any, control: Any, model: Any = None,
                    **_: Any) -> None:
        self._publisher.stepped(model, state.global_step)

    def on_train_end(self, args: Any, state: Any, control: Any, model: Any = None,
                     **_: Any) -> None:
        self._publisher.ended(model, state.global_step)
