"""deltawire behind the hooks of frameworks for reinforcement learning (docs/integrations.md).

| module | hook |
|---|---|
| `trl` | `AsyncGRPOTrainer(weight_transfer=...)` |
| `verl` | `CheckpointEngineRegistry`, backend `deltawire` |
| `slime` | `--custom-update-weight-post-write-path` |
| `transformers`, `lightning` | `Trainer(callbacks=[DeltawireCallback(every=N)])` |
| `nemo_rl` | `refit_transport: "module:Class"` |

Each imports without the framework; what needs it raises ImportError when it is used. `StepPublisher`
is for training loops of your own.
"""

from deltawire.integrations._steps import StepPublisher

__all__ = ["StepPublisher"]
