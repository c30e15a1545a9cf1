"""Makes one of SGLang's ranks fail in its write while the others succeed.

While the file that DELTAWIRE_TEST_FAULT names is there, the second rank says that it could not
write. This plug-in of the tests is no part of deltawire.
"""

import os
import pathlib


def apply(original, client):
    from deltawire.engine import Outcome
    from sglang.srt.runtime_context import get_parallel

    fault = pathlib.Path(os.environ["DELTAWIRE_TEST_FAULT"])
    if get_parallel().tp_rank == 1 and fault.exists():
        return Outcome(False, "a planted fault")
    return original(client)


def register():
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    HookRegistry.register("deltawire.engine.EngineClient.apply", apply, HookType.AROUND)
