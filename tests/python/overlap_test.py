"""Copies beside a generator: what runs when and where, what is held, whose errors are told."""

from __future__ import annotations

import threading
import unittest
import weakref
from unittest import mock

import support

support.use_trainer_python()
torch = support.need("torch")
deltawire = support.need("deltawire")

from deltawire import _stream  # noqa: E402

LIMIT_S = 60
NAMES = [f"t{i}" for i in range(6)]
SHAPE = (300, 700)


def value(name: str, version: int):
    return torch.full(SHAPE, int(name[1:]) + 100.0 * version)


class OverlapTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.cluster = cls.enterClassContext(support.Cluster())

    def manager(self, **options):
        self.model = self.id().rsplit(".", 1)[-1]
        manager = deltawire.WeightManager(self.cluster.endpoint, model=self.model,
                                          **{"overlap": True, **options})
        manager.register([(n, "F32", SHAPE) for n in NAMES])
        return manager

    def check(self, version: int):
        for name, (dtype, shape, data) in self.cluster.content(self.model).items():
            want = value(name, version)
            self.assertEqual((dtype, shape, data), ("F32", SHAPE, want.numpy().tobytes()), name)

    def watched(self, before=lambda: None, after=lambda: None):
        """Copies as ever, with calls around each."""
        copy = _stream.copy_settled

        def watching(*arguments):
            before()
            copied = copy(*arguments)
            after()
            return copied

        return mock.patch.object(_stream, "copy_settled", watching)

    def test_a_copy_runs_while_the_next_tensor_is_made(self):
        made = [threading.Event() for _ in NAMES]
        copied, threads, here = [], set(), threading.get_ident()

        def generator():
            for i, name in enumerate(NAMES):
                self.assertEqual(threading.get_ident(), here)
                made[i].set()
                yield name, value(name, 1)

        def before():  # a copy ends only when the generator has gone on to the next tensor
            i = len(copied)
            self.assertTrue(i + 1 == len(NAMES) or made[i + 1].wait(LIMIT_S), f"copy {i}")
            threads.add(threading.get_ident())

        with self.watched(before, lambda: copied.append(1)):
            done = self.manager().offload(generator, 1)
        self.assertNotIn(here, threads)
        self.assertEqual((done.tensors, done.bytes_written), (6, 6 * 4 * 300 * 700))
        done.wait()
        self.check(1)

    def test_each_copy_is_done_before_the_generator_goes_on_where_that_is_wanted_or_needed(self):
        def generator(make, copied):
            for i, name in enumerate(NAMES):
                self.assertEqual(len(copied), i)
                yield name, make(value(name, 1))

        for options, make in (({"overlap": False}, lambda t: t), ({}, torch.nn.Parameter),
                              ({}, lambda t: t.numpy())):
            copied = []
            with self.watched(after=lambda: copied.append(threading.get_ident())):
                manager = self.manager(**options)
                manager.register([(n, "F32", SHAPE) for n in NAMES], replace=True)
                version = manager.register([(n, "F32", SHAPE) for n in NAMES]) + 1
                manager.offload(generator(make, copied), version).wait()
            self.assertEqual(set(copied), {threading.get_ident()})
            self.check(1)
        with self.watched(after=lambda: self.assertEqual(threading.get_ident(), here)):
            here = threading.get_ident()
            manager.offload({n: value(n, 2) for n in NAMES}, version + 1).wait()  # no generator

    def test_no_more_than_two_tensors_are_held(self):
        alive = []

        def generator():
            for name in NAMES:
                self.assertLessEqual(sum(r() is not None for r in alive), 1)
                tensor = value(name, 1)
                alive.append(weakref.ref(tensor))
                pair = [(name, tensor)]
                del tensor
                yield pair.pop()

        self.manager().offload(generator(), 1).wait()
        self.check(1)

    def test_the_error_of_a_copy_is_raised_here_and_names_the_tensor(self):
        manager, copies, taken = self.manager(), [], []

        def fail():
            copies.append(1)
            if len(copies) == 3:
                raise deltawire.UnavailableError("the disk is on fire")

        def generator():
            for name in NAMES:
                taken.append(name)
                yield name, value(name, 1)

        with self.watched(before=fail), self.assertRaises(deltawire.UnavailableError) as raised:
            manager.offload(generator(), 1)
        self.assertEqual(raised.exception.__notes__, ['raised by the copy of "t2"'])
        self.assertEqual(taken, NAMES[:4])  # one was made beside the copy that failed
        with self.assertRaisesRegex(deltawire.AbandonedError, "the disk is on fire"):
            manager.wait_published(1)
        manager.offload(((n, value(n, 2)) for n in NAMES), 1).wait()
        self.check(2)

    def test_the_generators_error_waits_for_the_copy_and_tells_after_which_tensor(self):
        manager, going, copied = self.manager(), threading.Event(), []

        def generator():
            for name in NAMES[:2]:
                yield name, value(name, 1)
            going.set()
            raise ValueError("a rank is gone")

        with self.watched(lambda: len(copied) < 1 or going.wait(LIMIT_S), lambda: copied.append(1)):
            with self.assertRaisesRegex(ValueError, "a rank is gone") as raised:
                manager.offload(generator(), 1)
            self.assertEqual(len(copied), 2)  # none runs when the offload is given up
        self.assertEqual(
            raised.exception.__notes__, ['raised by the caller\'s generator after "t1"'])

    def test_a_generator_that_uses_its_memory_again_is_told(self):
        buffer = torch.empty(SHAPE)
        bucket = torch.empty(2, *SHAPE)

        def filled():  # torch counts changes in place
            for name in NAMES:
                buffer.copy_(value(name, 1))
                yield name, buffer

        def received():  # as by a collective, of which torch does not
            for name in NAMES:
                buffer.numpy()[:] = value(name, 1).numpy()
                yield name, buffer

        def bucketed():
            for i, name in enumerate(NAMES):
                bucket.numpy()[i % 2] = value(name, 1).numpy()
                yield name, bucket[i % 2]

        copied = threading.Event()

        def freed():
            for name in NAMES:
                tensor = value(name, 1)
                yield name, tensor
                copied.wait(LIMIT_S)
                tensor.untyped_storage().resize_(0)

        manager = self.manager()
        for generator, name, why in ((filled, "t0", "was changed or freed"), (received, "t1", "t0"),
                                     (bucketed, "t2", "t1"), (freed, "t0", "was changed or freed")):
            with self.watched(after=copied.set), self.assertRaisesRegex(
                    deltawire.TensorError, f'"{name}" .*{why}.*without overlap') as raised:
                manager.offload(generator, 1)
            self.assertEqual(raised.exception.tensor, name)
        in_turn = self.manager(overlap=False)
        for version, generator in enumerate((filled, received, bucketed), 1):
            in_turn.offload(generator, version).wait()
            self.check(1)

    def test_parts_of_a_fused_tensor_are_copied_beside_each_other(self):
        def generator():
            for first in range(0, len(NAMES), 3):
                parts = NAMES[first : first + 3]
                fused = torch.cat([value(n, 1) for n in parts], dim=1)
                yield from zip(parts, fused.split(SHAPE[1], dim=1))

        self.manager().offload(generator, 1).wait()
        self.check(1)


if __name__ == "__main__":
    unittest.main()
