"""Lightning: a callback of `Trainer` that publishes the model every N steps.

    from deltawire.integrations.lightning import DeltawireCallback

    trainer = Trainer(..., callbacks=[DeltawireCallback(every=10, module="model", hf_dir="base")])

The other arguments are those of `StepPublisher`. Run with Lightning 2.6.6.
"""

from __future__ import annotations

import operator
from typing import Any

from deltawire.integrations._framework import framework_class
from deltawire.integrations._steps import StepPublisher

Callback = framework_class(
    "the callback", "lightning.pytorch:Callback", "pytorch_lightning:Callback")


class DeltawireCallback(Callback):
    """Publishes after each `every`-th step of the optimizer, and at the end of the training.
    `module`: the attribute of the LightningModule that is the model, such as "model"; None: all of
    it, by its own names."""

    def __init__(self, every: int = 1, *, module: str | None = None, **options: Any):
        self._part = operator.attrgetter(module) if module else lambda whole: whole
        self._publisher = StepPublisher(every, **options)

    @property
    def version(self) -> int:
        """The last one of this trainer; 0 before the first."""
        return self._publisher.version

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *_: Any) -> None:
        if trainer.global_step:  # batches are gathered up to a step
            self._publisher.stepped(self._part(pl_module), trainer.global_step)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        self._publisher.ended(self._part(pl_module), trainer.global_step)
