"""SGLang's plug-in `deltawire`: a server follows a receiver's commits, in place.

SGLang finds it by the entry point `sglang.srt.plugins`; every hook goes through its HookRegistry. A
path that begins with `deltawire:` is an order, `deltawire:DIRECTORY[?OPTION[&OPTION]...]`:

    POST /weights_checker          {"action": "deltawire:/dev/shm/deltawire/MODEL?prepare"}
    POST /pause_generation         {"mode": "retract"}
    POST /update_weights_from_disk {"model_path": "deltawire:/dev/shm/deltawire/MODEL?version=7"}
    POST /continue_generation      {}

The server's own pause, flush and version handling stay unchanged; each rank writes its share. Tried
with SGLang 0.5.23. A refusal is answered with 400 and its reason on all ranks or none, and the
parameters are then unchanged. One exception: a rollback that one rank cannot carry out stays done
on the others. All of it runs on the scheduler's thread.
"""

from __future__ import annotations

import logging
import re
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, quote

from deltawire import Error
from deltawire.engine import EngineClient, Identity, Outcome
from deltawire.engine._outcome import ANEW
from deltawire.engine._ranks import (
    CHECK_EVERY,
    Held,
    Refused,
    Rounds,
    everywhere,
    refuse_drift,
    together,
)

if TYPE_CHECKING:
    from deltawire.engine import PlanCache
    from deltawire.engine._core import UpdateInfo

logger = logging.getLogger(__name__)

SCHEME = "deltawire:"
_UPDATER = "sglang.srt.model_executor.model_runner_components.weight_updater.WeightUpdater"
_RUNNER = "sglang.srt.model_executor.model_runner.ModelRunner"
_SCHEDULER = ("sglang.srt.managers.scheduler_components.weight_updater."
              "SchedulerWeightUpdaterManager")
_TOKENIZER = "sglang.srt.managers.tokenizer_manager.TokenizerManager"
#: SGLang's method in which a model computes from its parameters. Its loader calls it, too.
_COMPUTES = "post_load_weights"
#: Tensors of a stream, whose memory is reused after their load: SGLang waits for each.
_IN_THIS_THREAD = "_sglang_runai_streamer_tensor"
#: Other ways of writing weights. After each of them the memory is unknown and is proven anew.
_OTHER_WRITERS = ("begin_weight_update", "load_weights_from_distributed",
                  "update_weights_from_tensor", "update_weights_from_ipc")


_ROOT = re.compile(r"[0-9a-f]{16}")


@dataclass(frozen=True)
class Order:
    """The parsed order of a path. `version`: the target; None: the committed version. `root`, of 16
    hexadecimal digits: its bytes, because a number may come again with others. `threads`, `plans`
    (a folder; "": the user's cache) and `loader_tensors` (SGLang's own loader updates the tensors
    that it computes with) apply to the attach. `check_every`: from now on each prepare compares a
    part of the memory with its digests, and this many prepares all of it; 0: none."""

    directory: str
    version: int | None = None
    root: str | None = None
    threads: int | None = None
    plans: str | None = None
    loader_tensors: bool = False
    check_every: int | None = None
    prepare: bool = False
    check: bool = False
    rollback: bool = False

    @staticmethod
    def parse(path: str) -> Order | None:
        """Returns None if the path is not one of deltawire's. Raises Refused if it cannot be
        parsed."""
        if not path.startswith(SCHEME):
            return None
        directory, _, text = path[len(SCHEME):].partition("?")
        options: dict[str, Any] = {}
        for name, value in parse_qsl(text, keep_blank_values=True):
            if name in ("version", "threads", "check_every") and value.isdecimal():
                options[name] = int(value)
            elif name == "root" and _ROOT.fullmatch(value):
                options[name] = value
            elif name in ("loader_tensors", "prepare", "check", "rollback") and not value:
                options[name] = True
            elif name == "plans" and (not value or value.startswith("/")):
                options[name] = value
            else:
                raise Refused(f"{path}: no option {name}={value}; there are version=N, root=HEX, "
                              "threads=N, check_every=N, plans, plans=FOLDER, loader_tensors, "
                              "prepare, check and rollback")
        if not directory.startswith("/"):
            raise Refused(f"{path}: {SCHEME} takes a receiver's directory, from / on")
        if options.get("rollback") and options.get("check"):
            # If the check fails on one rank, no rank could undo the rollback.
            raise Refused(f"{path}: a rollback and a check are two orders, one after the other")
        return Order(directory, **options)

    def path(self, version: int) -> str:
        """Returns the path of this order for `version`."""
        said = [f"version={version}"]
        if self.root is not None:
            said.append(f"root={self.root}")
        if self.threads is not None:
            said.append(f"threads={self.threads}")
        if self.check_every is not None:
            said.append(f"check_every={self.check_every}")
        if self.plans is not None:
            said.append(f"plans={quote(self.plans)}")
        said += [name for name in ("loader_tensors", "prepare", "check", "rollback")
                 if getattr(self, name)]
        return f"{SCHEME}{self.directory}?" + "&".join(said)

    def takes(self, identity: Identity) -> bool:
        """Returns whether this is the order's target."""
        return self.version in (None, identity.version) and (
            self.root in (None, f"{identity.root:016x}"))

    def wants(self) -> str:
        return f"version {self.version}" + ("" if self.root is None else f" of root {self.root}")


def loader_of(model: Any) -> Callable[[Any], Any]:
    """Returns the model's own loader, without the values that it computes from loaded parameters,
    such as latent attention's halves of kv_b_proj: `_inside_update` makes SGLang compute these
    after each write. The mark on the tensors keeps SGLang's loaders in this thread."""

    def marked(pairs: Any) -> Any:
        for name, tensor in pairs:
            setattr(tensor, _IN_THIS_THREAD, True)
            yield name, tensor

    def load(pairs: Any) -> Any:
        own = vars(model)
        if not hasattr(model, _COMPUTES) or _COMPUTES in own:
            return model.load_weights(marked(pairs))
        own[_COMPUTES] = lambda *_, **__: None
        try:
            return model.load_weights(marked(pairs))
        finally:
            del own[_COMPUTES]

    return load


class Follower:
    """One model of this process and the directory that it follows."""

    def __init__(self, runner: Any, order: Order):
        """Proves the model's layout. Raises Refused, or deltawire.Error for the directory."""
        self.directory = order.directory
        self.threads = 1 if order.threads is None else order.threads
        self.client = EngineClient(order.directory, self.threads)
        self.prepared: UpdateInfo | None = None
        self.before: Identity | None = None  # the last update's base, the target of a rollback
        self.rounds = Rounds(CHECK_EVERY)
        attached = self.client.attach(
            runner.model, loader_of(runner.model), plans=_plans(runner, order),
            loader_tensors=order.loader_tensors)
        if not attached:
            advice = ("" if ANEW in attached.reason else ". Where only the version is another, "
                      f"post model_path {order.directory} once")
            raise Refused(f"this model cannot be updated in place: {attached.reason}{advice}",
                          attached.held)
        self.news: Held | None = attached.held  # until all ranks have compared it
        logger.info("deltawire: attached to %s: %s", self.client.held, attached.described())

    def prepare(self, order: Order) -> UpdateInfo | None:
        """Prepares the update to the order's version; returns None if the memory holds it
        already."""
        committed = self.client.committed
        if self.prepared is None or self.prepared.to != committed and order.takes(committed):
            self.prepared = self.before = None
            outcome = self.client.prepare()
            if not outcome:
                raise Refused(outcome.reason)
            self.prepared = outcome.update
        if order.takes(self.prepared.to):
            return self.prepared
        if order.takes(self.client.held):
            if self.client.heals:
                raise Refused(f"{self.client.held} has drifted, and {self.prepared.to} is what it "
                              "can be put right with")
            return None
        raise Refused(f"{order.wants()} was asked for and {committed} is committed")


_followers: weakref.WeakKeyDictionary[Any, Follower] = weakref.WeakKeyDictionary()


def _plans(runner: Any, order: Order) -> PlanCache | None:
    """Returns the cache of layouts for this rank's place, if the order asks for one."""
    if order.plans is None:
        return None
    # pylint: disable=import-outside-toplevel  # the HTTP process needs neither
    import sglang
    from sglang.srt.runtime_context import get_parallel

    from deltawire.engine import PlanCache  # it imports torch

    parallel = get_parallel()
    layout = [f"{name} {getattr(parallel, f'{name}_rank')}/{getattr(parallel, f'{name}_size')}"
              for name in ("tp", "pp", "moe_ep", "attn_dp")]
    layout.append(f"quantization {runner.model_config.quantization}")
    return PlanCache("sglang", sglang.__version__, ", ".join(layout), order.plans or None)


def _refuse_what_cannot_follow(runner: Any) -> None:
    """Refuses servers that hold more state than the parameters of one model."""
    # pylint: disable=import-outside-toplevel  # none of SGLang is imported before a server is
    from sglang.srt.model_executor.model_runner_components import weight_updater
    from sglang.srt.runtime_context import get_model, get_parallel, get_spec

    if get_parallel().pp_size > 1:
        raise Refused("pipeline stages update one after another and cannot agree before they do")
    if not (runner.spec_algorithm.is_none() or runner.spec_algorithm.is_ngram()):
        draft = get_spec().speculative_draft_model_path
        if draft not in (None, get_model().model_path):
            # SGLang reads one directory into both models, and reports success if names and shapes
            # happen to fit. This text prevents a reload of this directory by the receiver.
            raise Refused(f"the draft model of {draft} is none of this directory, and every update "
                          f"of SGLang's goes into both models; {ANEW} without it")
        raise Refused("the draft model of speculative decoding is not followed; a reload of the "
                      "directory brings both models to it")
    if runner.eplb_manager is not None:
        raise Refused("EPLB moves experts' weights while the server runs")
    # SGLang's own reasons against any update: caches of what was computed from weights.
    # pylint: disable=protected-access  # its own update calls them, and nothing else does
    runner.weight_updater._assert_weight_cache_inactive("deltawire")
    reason = weight_updater._unsupported_derived_weight_cache_error(runner.model)
    if reason is not None:
        raise Refused(reason)


def _follower(runner: Any, order: Order) -> Follower:
    """Returns the model's follower, made at the first order, and anew when it is out of date."""
    found = _followers.get(runner.model)
    if found is not None and not found.client.is_at_home():
        # It no longer writes, so it must not claim the server's version either.
        found = None
        del _followers[runner.model]
    if found is not None and found.directory == order.directory and found.client.is_current():
        if order.threads not in (None, found.threads):
            raise Refused(f"threads={order.threads} was asked for, and the first order has "
                          f"attached with {found.threads}, which stays; leave the option out")
        return found
    from sglang.srt.model_loader.utils import (  # pylint: disable=import-outside-toplevel
        set_default_torch_dtype,
    )

    _refuse_what_cannot_follow(runner)
    # If this raises, the old follower stays: a missing directory may return.
    with set_default_torch_dtype(runner.model_config.dtype):  # as around SGLang's own loads
        _followers[runner.model] = Follower(runner, order)
    return _followers[runner.model]


def _together(step: Callable[[], Any], runner: Any = None) -> Any:
    """Runs `step` on every rank of tensor parallelism, like `together`. `runner`: the step may
    attach to its model."""
    # pylint: disable=import-outside-toplevel
    from sglang.srt.runtime_context import get_parallel

    from deltawire.engine._attach import proven, set_proven  # imports torch

    def held() -> Held | None:
        follower = _followers.get(runner.model) if runner is not None else None
        return follower.news if follower is not None else None

    before = proven(runner.model) if runner is not None else None
    try:
        result = together(step, get_parallel().tp_group, held)
    except Refused:
        if held() is not None:
            del _followers[runner.model]  # not all ranks have attached to it
            set_proven(runner.model, before)
        raise
    if held() is not None:
        _followers[runner.model].news = None
    return result


def _look_for_drift(runner: Any, order: Order) -> None:
    """Compares a part of the memory, before an update is prepared. Raises Refused."""

    def attach() -> Identity:
        return _follower(runner, order).client.held

    _together(attach, runner)
    follower = _followers[runner.model]
    if order.check_every is not None:
        follower.rounds.every = order.check_every
    _all_ranks(lambda group: follower.rounds.look(
        lambda: follower.client, group, skip=follower.prepared is not None))


def _all_ranks(step: Callable[[Any], Any]) -> Any:
    """Runs a step on all ranks of tensor parallelism, with their group as argument."""
    from sglang.srt.runtime_context import get_parallel  # pylint: disable=import-outside-toplevel

    return step(get_parallel().tp_group)


def _inside_update(runner: Any, write: Callable[[], Outcome]) -> Outcome:
    """Writes between SGLang's own hooks, by which a model recomputes what it derives from weights.
    If they raise around an order, that is a refusal, and the write is undone on all ranks. If they
    raise during the undo, the server ends: no model continues with half of an update."""
    runner.weight_updater.begin_weight_update()
    try:
        return write()
    finally:
        runner.weight_updater.end_weight_update(run_post_load=True)


def _write(runner: Any, follower: Follower, order: Order) -> None:
    """Writes this rank's share of the prepared update. Raises Refused."""

    def write() -> Outcome:
        # SGLang's hook may have moved the parameters; then the client refuses to write.
        return follower.client.rollback() if order.rollback else follower.client.apply()

    done = _inside_update(runner, write)
    if not done:
        raise Refused(done.reason)


def _carry_out(runner: Any, order: Order) -> str:
    """Carries out an order to write. Returns the result; raises Refused with all ranks
    unchanged."""
    begin = time.perf_counter()

    def prepare() -> Identity:
        follower = _follower(runner, order)
        if not order.rollback:
            update = follower.prepare(order)
            return update.to if update is not None else follower.client.held
        if follower.before is None or not order.takes(follower.before):
            raise Refused(f"a rollback leads to {follower.before or 'nothing'}, and "
                          f"{order.wants()} was asked for")
        return follower.before

    if not order.rollback:
        _look_for_drift(runner, order)
    target = _together(prepare, runner)
    follower = _followers[runner.model]
    client, update, held = follower.client, follower.prepared, follower.client.held
    ready = time.perf_counter()
    # Drift is repaired even if the version is the same.
    writes = held != target or _all_ranks(lambda group: any(everywhere(client.heals, group)))
    # SGLang's hook around a write removes the follower; it stays as long as its version is known.
    try:
        if writes:
            _together(lambda: _write(runner, follower, order))
        if order.check:
            _all_ranks(lambda group: refuse_drift(lambda: client, group))
    except Refused:
        # This rank may have written what another one could not.
        if client.held == target != held and not order.rollback:
            undone = _inside_update(runner, client.rollback)
            if not undone:
                raise RuntimeError(f"deltawire: half of an update stays: {undone.reason}") from None
        raise
    finally:
        follower.prepared = follower.before = None
        if client.held in (held, target):
            _followers[runner.model] = follower
    if held == target:
        return f"{target} already" + (", and what had drifted was put right" if writes else "")
    follower.before = None if order.rollback else held
    how = "taken back" if order.rollback else (
        f"{update.changes} elements of {update.deltas} deltas, {update.chunks_whole} chunks whole")
    return (f"{target} from {held}: {how}; prepared in {1e3 * (ready - begin):.1f} ms, written in "
            f"{1e3 * (time.perf_counter() - ready):.1f} ms")


def _update(original: Any, updater: Any, model_path: str, *args: Any, **kwargs: Any) -> Any:
    """Wraps WeightUpdater.update_weights_from_disk, which returns (success, message)."""
    try:
        order = Order.parse(model_path)
        if order is None:
            _followers.pop(updater.get_model(), None)
            return original(updater, model_path, *args, **kwargs)
        if order.prepare or kwargs.get("weight_name_filter") is not None:
            raise Refused("/update_weights_from_disk writes all weights; /weights_checker prepares")
        return True, "deltawire: " + _carry_out(updater.get_model_runner(), order)
    except Refused as refused:
        return False, f"deltawire: {refused}"


def _look_first(original: Any, manager: Any, request: Any) -> Any:
    """Wraps SchedulerWeightUpdaterManager.update_weights_from_disk. SGLang would write, and then
    fail because a cache with running requests cannot be flushed; an order asks before."""
    if not request.model_path.startswith(SCHEME):
        return original(manager, request)

    def step() -> None:
        scheduler = manager.scheduler
        # pylint: disable-next=protected-access  # as SGLang's own functions there ask
        paused = scheduler is not None and scheduler._engine_paused
        if request.flush_cache and not manager.is_fully_idle(ignore_waiting=paused):
            raise Refused("requests are running, with whose cache the new weights must not go on; "
                          'pause with "mode": "retract", or say "flush_cache": false')

    try:
        _together(step)
    except Refused as refused:
        from sglang.srt.managers.io_struct import (  # pylint: disable=import-outside-toplevel
            UpdateWeightFromDiskReqOutput,
        )

        logger.error("deltawire: %s", refused)
        return UpdateWeightFromDiskReqOutput(success=False, message=f"deltawire: {refused}")
    return original(manager, request)


def _check(original: Any, runner: Any, action: str, *args: Any, **kwargs: Any) -> Any:
    """Wraps ModelRunner.check_weights, which raises its findings: `prepare` and `check`."""
    order = Order.parse(action)
    if order is None:
        if action == "reset_tensors":
            _followers.pop(runner.model, None)
        return original(runner, action, *args, **kwargs)

    def step() -> Identity:
        follower = _follower(runner, order)
        if order.check:
            held = follower.client.held
            if not order.takes(held):
                raise Refused(f"the memory is {held}, and not {order.wants()}")
            return held
        update = follower.prepare(order)
        return update.to if update is not None else follower.client.held

    if order.rollback or order.prepare == order.check:
        raise Refused("deltawire: /weights_checker takes either prepare or check")
    try:
        if order.prepare:
            _look_for_drift(runner, order)
        _together(step, runner)
        if order.check:
            client = _followers[runner.model].client
            _all_ranks(lambda group: refuse_drift(lambda: client, group))
    except Refused as refused:
        raise Refused(f"deltawire: {refused}") from None  # SGLang logs it
    return None


async def _name_version(original: Any, manager: Any, obj: Any, request: Any = None) -> Any:
    """Wraps TokenizerManager.update_weights_from_disk, where a request arrives. From here on all
    ranks go to one version, and the server reports it unless it was given another name."""
    try:
        order = Order.parse(obj.model_path)
        if order is not None:
            version = order.version
            if version is None and order.rollback:
                raise Refused("a rollback needs version=N, of the version that it leads to")
            if version is None:
                committed = EngineClient(order.directory).committed
                if not committed:
                    raise Refused(f"{order.directory}: no version is committed now")
                version = committed.version
            obj.model_path = order.path(version)
            if obj.weight_version is None:
                obj.weight_version = str(version)
    except (Refused, Error) as refused:
        logger.error("deltawire: %s", refused)
        return False, f"deltawire: {refused}", 0
    return await original(manager, obj, request)


def _keep_names(original: Any, manager: Any, model_path: str, *args: Any, **kwargs: Any) -> Any:
    """Wraps TokenizerManager._update_model_path_info: an order is not a name for the model."""
    if not model_path.startswith(SCHEME):
        original(manager, model_path, *args, **kwargs)


def _forget(updater: Any, *_: Any, **__: Any) -> None:
    """Removes the follower before another way of writing weights."""
    _followers.pop(updater.get_model(), None)


def _forget_all(*_: Any, **__: Any) -> None:
    """Removes all followers before released memory returns with unknown content."""
    _followers.clear()


#: SGLang's first version whose updates begin and end with hooks that recompute derived state.
_FIRST = (0, 5, 21)


def _too_old() -> str:
    """Returns why this SGLang can only reload; "" if it can be updated in place."""
    from sglang import __version__ as version  # pylint: disable=import-outside-toplevel

    numbers = tuple(int(n) for n in re.findall(r"\d+", version)[:3])
    if not numbers or numbers >= _FIRST:
        return ""
    return (f"SGLang {version} cannot be updated in place; take {'.'.join(map(str, _FIRST))} or a "
            "later one, or have the receiver reload it (sglang-reload)")


async def _refuse_order(original: Any, manager: Any, obj: Any, request: Any = None) -> Any:
    """Wraps TokenizerManager.update_weights_from_disk of a version that is too old."""
    if obj.model_path.startswith(SCHEME):
        return False, f"deltawire: {_too_old()}", 0
    return await original(manager, obj, request)


def _refuse_check(original: Any, runner: Any, action: str, *args: Any, **kwargs: Any) -> Any:
    """Wraps ModelRunner.check_weights of a version that is too old."""
    if action.startswith(SCHEME):
        raise Refused(f"deltawire: {_too_old()}")
    return original(runner, action, *args, **kwargs)


def register() -> None:
    """Registers the hooks. The plug-in's entry point, which SGLang calls once in every process."""
    from sglang.srt.plugins.hook_registry import (  # pylint: disable=import-outside-toplevel
        HookRegistry,
        HookType,
    )

    if why := _too_old():
        logger.warning("deltawire: %s", why)
        HookRegistry.register(f"{_TOKENIZER}.update_weights_from_disk", _refuse_order, HookType.AROUND)
        HookRegistry.register(f"{_RUNNER}.check_weights", _refuse_check, HookType.AROUND)
        return
    HookRegistry.register(f"{_UPDATER}.update_weights_from_disk", _update, HookType.AROUND)
    HookRegistry.register(f"{_SCHEDULER}.update_weights_from_disk", _look_first, HookType.AROUND)
    HookRegistry.register(f"{_RUNNER}.check_weights", _check, HookType.AROUND)
    HookRegistry.register(f"{_TOKENIZER}.update_weights_from_disk", _name_version, HookType.AROUND)
    HookRegistry.register(f"{_TOKENIZER}._update_model_path_info", _keep_names, HookType.AROUND)
    for writer in _OTHER_WRITERS:
        HookRegistry.register(f"{_UPDATER}.{writer}", _forget, HookType.BEFORE)
    HookRegistry.register(f"{_SCHEDULER}.resume_memory_occupation", _forget_all, HookType.BEFORE)
