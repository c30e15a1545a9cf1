"""The client of one engine rank: attach once, then prepare and apply for each version."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from deltawire import DeadlineError, Error, RefusedError, UnavailableError
from deltawire.engine import _core
from deltawire.engine._outcome import DRIFTED, Attached, Outcome, some
from deltawire.engine._served import Record

if TYPE_CHECKING:
    from deltawire.engine._attach import Attachment
    from deltawire.engine._plans import PlanCache
    from deltawire.engine._second import Instance

#: (chunk, bytes, digest, places) of a chunk that is spread over several ranks' memory.
Share = tuple[int, int, int, int]


class EngineClient:
    """One rank's weights and the receiver's directory that they follow. Not thread-safe."""

    def __init__(self, directory: str, threads: int = 1):
        """Opens `directory`, of one model, written by a receiver on this machine that has committed
        a version. `threads`: for comparing, decoding and writing; 0: one per core. Raises
        `deltawire.Error` if the directory is not a receiver's."""
        self._weights = _core.EngineWeights(str(directory), threads)
        self._attachment: Attachment | None = None
        self._model: Any = None  # the attached model
        self._addresses: list[int] = []  # its parameters', at the attach
        self._pairs: dict | None = None  # tensors for the loader; None: nothing is prepared
        self._loaded = False  # the loader took part in the last `apply`
        self._undone_drift = False  # and the previous drift
        self._record: Record | None = None  # this rank's record for the server's HTTP process
        self._update: _core.UpdateInfo | None = None  # the prepared update
        self._computed_drifted = False  # the next update reloads all of the loader's tensors

    @property
    def held(self) -> _core.Identity:
        """The version in the engine's memory; false while it is unknown."""
        return self._weights.held

    @property
    def committed(self) -> _core.Identity:
        """The receiver's committed version; false if there is none."""
        return self._weights.committed

    @property
    def tensors(self) -> list[str]:
        """The names of the version's tensors."""
        return [name for name, *_ in self._weights.tensors]

    def wait(self, known: _core.Identity, seconds: float) -> _core.Identity:
        """Returns the committed version once it is not `known`. Raises
        `deltawire.DeadlineError`."""
        return self._weights.wait_for_other(known, seconds)

    def attach(self, model: Any, load: Callable[[Iterable], Any], *, loader_tensors: bool = False,
               plans: PlanCache | None = None, is_served: bool = True,
               second: Callable[[], Instance] | None = None,
               beside: tuple[Any, Callable[[Iterable], Any]] | None = None) -> Attached:
        """Finds where `model` keeps each element, and proves it.

        `load` is the engine's own loader: it takes (name, tensor) pairs. It runs over tensors
        without data, under a watch that prevents all writes. Tensors whose path shapes do not show
        are followed by their elements' numbers. Then the map is read backwards: the committed
        buffer must equal the live parameters bit by bit, or the model is refused.

        `loader_tensors`: the loader itself updates tensors that it computes with
        (`Attached.by_loader`), within `apply`. Then `apply` also runs the engine's code, costs
        whole tensors, and can fail; without the option such a model is refused. `plans`: a cache of
        earlier results, which are proven in the same way. `is_served`: False for a model beside the
        answering one, such as the draft of speculative decoding; the server does not name its
        version in responses. `second`: makes another instance of the model, which nothing else
        uses. If the engine moves weights after its load, instances are loaded with the elements'
        numbers and post-processed in the same way. That costs three loads, and the memory of three
        models of this size, during the attach. `beside`: if `model` is two that load one
        checkpoint, the answering one and its loader. Only that loader writes their shared memory.
        """
        from deltawire.engine._attach import Attachment  # pylint: disable=import-outside-toplevel

        if self._record is not None:
            self._record.close()  # no claim about the memory until it is proven again
            self._record = None
        self._attachment, self._loaded, self._pairs, self._model = None, False, None, None
        self._computed_drifted = False
        attachment = Attachment(self._weights, model, load, loader_tensors, second, beside)
        result = attachment.attach(plans)
        if result:
            self._attachment = attachment
            self._model, self._addresses = model, _addresses(model)
            if is_served:
                self._tell()
        return result

    def is_at_home(self) -> bool:
        """Returns whether the model's parameters are where `attach` found them. If the engine has
        moved them, it computes with other memory than this client writes: then every step is
        refused."""
        return self._model is None or self._addresses == _addresses(self._model)

    def is_current(self) -> bool:
        """Returns whether the receiver still writes to the opened files; it may have begun anew."""
        try:
            self.wait(self.held, 0)
        except DeadlineError:
            pass
        except RefusedError:
            return False
        return True

    def prepare(self) -> Outcome:
        """Prepares the update from `held` to the committed version, and checks all of it. Writes
        nothing. An update to the held version is valid, and has no changes."""
        self.discard()
        outcome = self._do(self._prepare)
        self._update = outcome.update
        return outcome

    def discard(self) -> None:
        """Discards the prepared update, and frees its memory. An applied update stays, and can
        still be rolled back."""
        self._update = self._pairs = None
        self._weights.discard()

    def apply(self) -> Outcome:
        """Writes the prepared update. The engine must not compute meanwhile. Prepare the next
        update anew in any case."""
        try:
            return self._change(self._apply, self._update.to if self._update else None)
        finally:
            self.discard()

    def rollback(self) -> Outcome:
        """Restores the memory to its state before the last `apply`."""
        return self._change(self._rollback, None)

    def check(self) -> Outcome:
        """Compares the digests of the engine's memory with those of `held`. Reads every byte;
        chunks that other ranks have parts of are judged only by `refuse_drift`, over all ranks. The
        loader's tensors are computed again, beside the memory, while the receiver still has the
        version for it. The next `prepare` restores drifted bytes from the receiver's buffer."""
        begin = time.perf_counter()
        try:
            drifted, _ = self.look()
        except Error as error:
            return Outcome(False, str(error), time.perf_counter() - begin)
        if drifted:
            return Outcome(False, DRIFTED + drifted, time.perf_counter() - begin)
        return Outcome(True, "", time.perf_counter() - begin)

    def look(self, part: int = 0, of: int = 1) -> tuple[str, list[Share]]:
        """Does the same for one of `of` parts of the memory, and for the loader's tensors only if
        it is the only part. Returns the drifted tensors, and this rank's shares of the chunks that
        other ranks have parts of. Raises `deltawire.Error`."""
        self._require_home()
        chunks = self._weights.chunks
        first, end = chunks * part // of, chunks * (part + 1) // of
        found, shares = self._weights.check(first, end - first)
        computed = self._check_loaded() if of == 1 else ""
        self._computed_drifted |= bool(computed)
        return some(found.different) or computed, shares

    @property
    def heals(self) -> bool:
        """Returns whether the prepared update also repairs drift."""
        return self._update is not None and (
            self._update.chunks_healed > 0 or self._computed_drifted)

    def judge(self, shares: list[Share]) -> str:
        """Returns the drifted tensors in these chunks, from all ranks' shares of them. Raises
        `deltawire.Error`."""
        return some(self._weights.judge(shares).different)

    def _by_loader(self) -> Any:
        return self._attachment.by_loader if self._attachment is not None else None

    def _require_home(self) -> None:
        if self.is_at_home():
            return
        if self._record is not None:
            self._record.close()  # the content of the engine's memory is unknown
            self._record = None
        raise Error("the engine has moved its parameters since the attach; attach again")

    def _prepare(self) -> _core.UpdateInfo:
        self._require_home()
        self._forget_loaded()  # not earlier: after a refusal the last update can be undone
        update = self._weights.prepare()
        by_loader = self._by_loader()
        if by_loader is not None:
            tensors = (by_loader.all() if self._computed_drifted
                       else by_loader.concerned(self._weights.changed))
            self._pairs = by_loader.read(tensors, self._attachment.read(True))
        else:
            self._pairs = {}
        return update

    def _apply(self) -> None:
        """Runs the loader first: it can fail, and be undone, before anything else is written."""
        pairs, self._pairs = self._pairs, None
        if pairs is None:
            raise Error("no update is prepared")
        if pairs:
            why = self._by_loader().apply(pairs)
            if why:
                raise Error(why)
        try:
            self._weights.apply()
        except BaseException:
            if pairs:
                self._by_loader().put_back()
            raise
        self._loaded = bool(pairs)
        self._undone_drift = self._computed_drifted
        self._computed_drifted = False

    def _rollback(self) -> None:
        self._weights.rollback()
        if self._loaded:
            self._by_loader().put_back()
            self._loaded = False
            self._computed_drifted |= self._undone_drift

    def _forget_loaded(self) -> None:
        if self._loaded:
            self._by_loader().forget()
            self._loaded = False

    def _check_loaded(self) -> str:
        by_loader = self._by_loader()
        if by_loader is None or self.committed != self.held:
            return ""
        try:
            return by_loader.repeats(self._attachment.read(False))
        except UnavailableError:
            return ""  # the receiver has another version by now

    def _tell(self) -> None:
        """Begins the record of what this rank holds; without one, the server claims no version."""
        try:
            self._record = Record()
        except OSError as error:
            warnings.warn(f"the server cannot say which version it serves: {error}", stacklevel=3)
            return
        self._record.holds(self.held)

    def _change(self, call: Callable[[], Any], after: _core.Identity | None) -> Outcome:
        """Runs a write to the memory. Meanwhile the record does not name a single version."""
        home = self._do(self._require_home)
        if not home:
            return home
        if self._record is None:
            return self._do(call)
        self._record.changing(self.held, after)
        try:
            return self._do(call)
        finally:
            self._record.holds(self.held)

    @staticmethod
    def _do(call: Callable[[], Any]) -> Outcome:
        begin = time.perf_counter()
        try:
            update = call()
        except Error as error:
            return Outcome(False, str(error), time.perf_counter() - begin)
        return Outcome(True, "", time.perf_counter() - begin, update)


def _addresses(model: Any) -> list[int]:
    return [parameter.data_ptr() for parameter in model.parameters()]
