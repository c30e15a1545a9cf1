"""vLLM's weight-transfer backend `deltawire`: applies what a receiver committed, in place.

Start the server with `--weight-transfer-config '{"backend": "deltawire"}'` and, once, post
`{"init_info": {"directory": "/dev/shm/deltawire/MODEL"}}` to `/init_weight_transfer_engine`. Then
for each version: `/start_weight_update` (prepares and checks; requests go on), `/pause`,
`/update_weights {"update_info": {}}` (writes), `/finish_weight_update {"weight_version": ...}`,
`/resume`. Each worker does its own share. vLLM finds the backend by the entry point
`vllm.general_plugins`; nothing of vLLM is changed. The draft model of speculative decoding is a
model of its own: `{"init_info": {"draft_directory": ...}}` once, and `/start_draft_weight_update`
in the place of `/start_weight_update`.

Tried with vLLM 0.32, and one and two workers. Each step is taken by all workers or by none: they agree over
vLLM's own group. Errors are raised: vLLM answers them with a code of 500, and the parameters are
then what they were. A rollback that fails on one worker is the exception (`UpdateInfo`), and an
update that one cannot take back, which says so: that worker must then be attached anew.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import vllm
from vllm.distributed import parallel_state
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.model_executor.layers.attention import is_deferred_attention_layer

from deltawire.engine import Attached, EngineClient, Identity, PlanCache
from deltawire.engine._attach import proven, set_proven
from deltawire.engine._outcome import ANEW, some
from deltawire.engine._ranks import CHECK_EVERY, Held, Refused, Rounds, refuse_drift, together
from deltawire.engine._second import Instance
from deltawire.engine._vllm_engine import second_instance

logger = logging.getLogger("vllm.deltawire")  # vLLM shows what its own loggers say

BACKEND = "deltawire"


#: What a receiver looks for in the server's /metrics before it makes a call, since a worker without
#: `deltawire_call` raises. The value is the calls' version.
METRIC, CALLS = "deltawire_plugin_calls", 1


def register() -> None:
    """The plug-in's entry point; vLLM calls it in every process, more than once."""
    # pylint: disable=import-outside-toplevel
    from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory
    from vllm.v1.worker.worker_base import WorkerBase

    WorkerBase.deltawire_call = deltawire_call
    _tell_metrics()
    # pylint: disable-next=protected-access  # there is no public way to ask
    if BACKEND not in WeightTransferEngineFactory._registry:
        WeightTransferEngineFactory.register_engine(
            BACKEND, "deltawire.engine.vllm", "DeltawireEngine")


def deltawire_call(worker: Any, call: str = "", nonce: str = "", **options: Any) -> dict[str, Any]:
    """A method of vLLM's workers, for `/collective_rpc`. Never raises: vLLM would not read the other
    ranks' answers, and take them for those of later calls."""
    try:
        # pylint: disable-next=import-outside-toplevel  # the HTTP process needs neither
        from deltawire.engine._vllm_engine import Engine
        from deltawire.engine._vllm_follower import Follower

        follower = vars(worker).get("_deltawire_follower")
        if follower is None:
            follower = worker._deltawire_follower = Follower(Engine(worker))
        return follower.answer(call, nonce, options)
    except Exception as error:  # pylint: disable=broad-except
        logger.exception("deltawire: unexpected")
        return {"nonce": nonce, "rank": worker.rank, "ok": False,
                "ranks": worker.parallel_config.world_size, "replicas": 1, "engine": "",
                "reason": str(error) or repr(error), "drifted": False, "anew": False,
                "corrupts": False, "held": None, "untaken": []}


def _tell_metrics() -> None:
    from prometheus_client import Gauge  # pylint: disable=import-outside-toplevel  # vLLM's own

    try:
        Gauge(METRIC, "The version of the calls that deltawire's plug-in answers").set(CALLS)
    except ValueError:
        pass  # it is there already


@dataclass
class InitInfo(WeightTransferInitInfo):
    """`directory`: the receiver's, of the model that this server serves. `draft_directory`: of its
    draft model, which is attached to at its first update. One of them may be left out; that model's
    client then stays. `plans`: a folder in which layouts are kept from one start to the next, or
    true for the user's cache. `loader_tensors`: vLLM's own loader updates the tensors that it
    computes with, as `EngineClient.attach` has it. `second_instance`: where vLLM moves weights after
    its load, other instances of the served model show where to, which takes three loads and as much
    memory as three models, for the time of the attach. `check_every`: each prepare compares a part of
    the memory with its digests, and so many of them all of it; 0: none. `prove`: nothing is attached
    to; refuses unless all of the served model's memory is this version, by its digests. It needs no
    session, which vLLM ends with an update that fails."""

    directory: str = ""
    draft_directory: str = ""
    threads: int = 1
    plans: str | bool = False
    loader_tensors: bool = False
    second_instance: bool = False
    check_every: int = CHECK_EVERY
    prove: int | None = None


@dataclass
class UpdateInfo(WeightTransferUpdateInfo):
    """`version`: refuse when another one was prepared. `rollback`: undo the last update instead;
    where one worker cannot, the others have done so, and are not brought forth again. `check`:
    compare all of the memory with the version's digests after the write; where it finds something,
    the update is taken back. Not with `rollback`."""

    version: int | None = None
    rollback: bool = False
    check: bool = False


@dataclass
class Followed:
    """One model of a worker, and what is known of its memory."""

    client: EngineClient | None = None
    prepared: Identity | None = None
    before: Identity | None = None  # the last update's, to which a rollback leads
    rounds: Rounds = field(default_factory=lambda: Rounds(0))


class DeltawireEngine(WeightTransferEngine[InitInfo, UpdateInfo]):
    """A worker's weights, followed by an EngineClient; so are its draft model's, where vLLM has
    one. `self.model` is the model that the session under way is about."""

    init_info_cls = InitInfo
    update_info_cls = UpdateInfo
    supports_draft_weight_update = True

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self._main, self._draft = Followed(), Followed()
        self._draft_info: InitInfo | None = None

    @property
    def _followed(self) -> Followed:
        """Of the session's model."""
        return self._main if self.model is self._default_model else self._draft

    def init_transfer_engine(self, init_info: InitInfo) -> None:
        if init_info.prove is not None:
            self._prove(init_info.prove)
            return
        # The memory may be another one by now: a refusal must not leave an older client at work.
        if init_info.draft_directory:
            self._draft, self._draft_info = Followed(), init_info
        if init_info.directory:
            # A receiver attaches where a prepare was refused, which may be for a draft's session.
            _together(self._refuse_draft_session)
            self._main = Followed()
            self._main.client = self._attach(
                self._default_model, self._default_model_config, init_info.directory, init_info)
            self._main.rounds = Rounds(init_info.check_every)
        elif not init_info.draft_directory:
            _together(self._refuse_nothing)

    def _prove(self, version: int) -> None:
        """Raises RuntimeError unless the memory of all workers is wholly `version`."""

        def held() -> Identity:
            self._refuse_draft_session()
            now = self._require().held
            if now is None or now.version != version:
                raise Refused(f"the memory is {now or 'no version'}, and not version {version}")
            return now

        _together(held)
        _collective(lambda group: refuse_drift(self._require, group))

    def _refuse_draft_session(self) -> None:
        if self.model is not self._default_model:
            raise Refused("an update of the draft model is open; /finish_weight_update ends it")

    @staticmethod
    def _refuse_nothing() -> None:
        raise Refused("init_info has neither a directory nor a draft_directory")

    def _attach(self, model: torch.nn.Module, model_config: Any, directory: str, info: InitInfo
                ) -> EngineClient:
        """Raises RuntimeError on all workers where one of them cannot."""

        def attach() -> Identity:
            self._refuse_lost(model)
            client = EngineClient(directory, info.threads)
            attached = client.attach(
                model, model.load_weights, plans=self._plans(info.plans, model_config),
                loader_tensors=info.loader_tensors, is_served=model is self._default_model,
                second=self._second(model, info))
            if not attached:
                raise Refused(f"this model cannot be updated in place: {attached.reason}",
                              attached.held)
            logger.info("deltawire: attached to %s: %s", client.held, attached.described())
            found.append((client, attached))
            return client.held

        found: list[tuple[EngineClient, Attached]] = []
        before = proven(model)
        try:
            _together(attach, lambda: found[0][1].held if found else None)
        except RuntimeError:
            set_proven(model, before)  # not all ranks have attached
            raise
        return found[0][0]

    def _second(self, model: torch.nn.Module, info: InitInfo) -> Callable[[], Instance] | None:
        if not info.second_instance or model is not self._default_model:
            return None
        return second_instance(self.vllm_config, self.device)

    def _refuse_lost(self, model: torch.nn.Module) -> None:
        """After a load of vLLM's own that raised, its next one says that it is done, and leaves
        parameters without memory. The receiver knows the last words (`receiver/engine`)."""
        lost = [name for name, p in model.named_parameters()
                if p.device.type == "meta" != self.device.type]
        if lost:
            raise Refused(f"{ANEW}: {len(lost)} parameters have no memory since a "
                          f"reload of vLLM's own failed: {some(lost)}")

    def start_weight_update(self) -> None:
        followed = self._followed
        followed.prepared = followed.before = None
        if followed is self._draft and followed.client is None and self._draft_info is not None:
            followed.client = self._attach(self.model, self.model_config,
                                           self._draft_info.draft_directory, self._draft_info)
            followed.rounds = Rounds(self._draft_info.check_every)
        _collective(lambda group: followed.rounds.look(self._require, group))

        def prepare() -> Identity:
            outcome = self._require().prepare()
            if not outcome:
                raise Refused(outcome.reason)
            return outcome.update.to

        # Between two workers' steps the receiver may have committed: then they have prepared
        # different versions, and none of them may write.
        followed.prepared = _together(prepare)

    def update_weights(self, update_info: dict) -> None:
        # The base's also synchronises torch's accelerator, which a CPU has not.
        self.receive_weights(self.parse_update_info(update_info))
        if self.device.type != "cpu":
            torch.accelerator.synchronize()

    def receive_weights(self, update_info: UpdateInfo) -> None:
        target = _together(lambda: self._target(update_info))
        client, followed = self._require(), self._followed
        held = client.held
        followed.prepared = followed.before = None
        try:
            _together(lambda: self._write(client, update_info))
            if update_info.check:
                _collective(lambda group: refuse_drift(self._require, group))
        except RuntimeError as refused:
            # This worker may have written what another one could not.
            if client.held == target != held and not update_info.rollback:
                self._take_back(client, refused)
            raise
        followed.before = None if update_info.rollback else held

    def finish_weight_update(self) -> None:
        followed = self._followed
        followed.prepared = None
        if followed.client is not None:
            followed.client.discard()  # of an update that was given up

    def shutdown(self) -> None:
        self._main, self._draft, self._draft_info = Followed(), Followed(), None

    def _require(self) -> EngineClient:
        client = self._followed.client
        if client is None:
            raise Refused("/init_weight_transfer_engine comes first" + (
                ", with a draft_directory" if self._followed is self._draft else ""))
        return client

    def _target(self, update_info: UpdateInfo) -> Identity:
        """What the memory shall be. Raises Refused."""
        self._require()
        if update_info.rollback and update_info.check:
            raise Refused("a rollback is not checked: what it has undone could not be put back")
        followed = self._followed
        target = followed.before if update_info.rollback else followed.prepared
        if target is None:
            raise Refused("no update was applied that could be undone" if update_info.rollback else
                          "no update is prepared; /start_weight_update comes first")
        if update_info.version not in (None, target.version):
            raise Refused(f"version {update_info.version} was asked for, and {target} is "
                          f"{'before' if update_info.rollback else 'prepared'}")
        return target

    def _write(self, client: EngineClient, update_info: UpdateInfo) -> Identity:
        """Writes this worker's share. Raises Refused."""
        done = client.rollback() if update_info.rollback else client.apply()
        if done:
            self._compute_anew()
        if not done:
            raise Refused(done.reason)
        return client.held

    def _take_back(self, client: EngineClient, refused: RuntimeError) -> None:
        """Undoes this worker's share of an update that `refused` has ended. Where that fails, half
        of an update stays: until an attach has proven the memory anew, nothing is done with it."""
        try:
            undone = client.rollback()
            if not undone:
                raise Refused(undone.reason)
            self._compute_anew()
        except Exception as error:  # pylint: disable=broad-except  # vLLM's own functions, too
            self._followed.client = None
            why = (f"{refused}; and this worker could not take its share back: "
                   f"{str(error) or repr(error)}: half of an update stays; have the directory read, "
                   "and attach again")
            logger.error("%s", why)
            raise RuntimeError(why) from error

    @torch.no_grad()
    def _compute_anew(self) -> None:
        """What vLLM has computed from weights after its load, by vLLM's own functions: latent
        attention keeps both halves of kv_b_proj once more, in another order."""
        for module in self.model.modules():
            if is_deferred_attention_layer(module):
                module.process_weights_after_loading(self.model_config.dtype)
        if hasattr(self.model, "process_weights_after_loading"):
            self.model.process_weights_after_loading()

    def _plans(self, plans: str | bool, model_config: Any) -> PlanCache | None:
        if not plans:
            return None
        parallel = self.parallel_config
        tp, pp = parallel_state.get_tp_group(), parallel_state.get_pp_group()
        layout = ", ".join([
            f"tp {tp.rank_in_group}/{tp.world_size}", f"pp {pp.rank_in_group}/{pp.world_size}",
            f"ep {'on' if parallel.enable_expert_parallel else 'off'}",
            f"dp {parallel.data_parallel_rank}/{parallel.data_parallel_size}",
            f"quantization {model_config.quantization}"])
        return PlanCache("vllm", vllm.__version__, layout, None if plans is True else plans)


class WorkerExtension:
    """For `--worker-extension-cls deltawire.engine.vllm.WorkerExtension`: what `/collective_rpc`
    may ask of every worker, between two steps and without an update. Changes nothing."""

    weight_transfer_engine: Any  # of vLLM's worker, which has this class among its bases

    def deltawire_held(self) -> str:
        """The version that this worker's memory is; "" where it is not known."""
        client = self._deltawire_client()
        return str(client.held) if client is not None and client.held else ""

    def deltawire_check(self) -> str:
        """Compares all memory of all workers with the digests of what they hold. What is wrong, or
        "". Every worker must be asked: of what they have parts of they judge together."""

        def client() -> EngineClient:
            found = self._deltawire_client()
            if found is None:
                raise Refused("/init_weight_transfer_engine comes first")
            return found

        try:
            _collective(lambda group: refuse_drift(client, group))
        except RuntimeError as refused:
            return str(refused)
        return ""

    def _deltawire_client(self) -> EngineClient | None:
        engine = self.weight_transfer_engine
        # pylint: disable-next=protected-access  # a part of this module
        return engine._main.client if isinstance(engine, DeltawireEngine) else None


def _collective(step: Callable[[Any], Any]) -> Any:
    """A step that all workers of the engine take over their group, which it is given. Raises what
    vLLM's workers can hand on to the server."""
    try:
        return step(parallel_state.get_world_group())
    except Refused as refused:
        logger.error("deltawire: %s", refused)  # one line beside vLLM's many of where it was raised
        raise RuntimeError(f"deltawire: {refused}") from None


def _together(step: Callable[[], Any], held: Callable[[], Held | None] = lambda: None) -> Any:
    return _collective(lambda group: together(step, group, held))
