"""The geometry of deltawire.engine's layouts, against torch's own views and clones of numbers."""

from __future__ import annotations

import random
import unittest

import support

support.use_trainer_python()
torch = support.need("torch")
support.need("deltawire")

from deltawire.engine import _geometry as geometry  # noqa: E402

SEED = 20261123


class Loader:
    """Draws a chain of views and clones of one tensor, as loaders make them."""

    def __init__(self, rng: random.Random):
        self.rng = rng
        shape = [rng.choice([1, 2, 3, 4, 6, 8]) for _ in range(rng.randint(1, 3))]
        self.base = torch.arange(torch.Size(shape).numel(), dtype=torch.int32).view(shape)
        self.moved = {self._key(self.base): geometry.whole(0, self.base.numel())}
        self.keep = [self.base]
        self.view = self.base
        for _ in range(rng.randint(1, 7)):
            self.view = rng.choice([self.permute, self.narrow, self.split, self.merge, self.step,
                                    self.repeat, self.clone])(self.view)

    @staticmethod
    def _key(tensor):
        return tensor.untyped_storage()._cdata

    def permute(self, x):
        return x.permute(self.rng.sample(range(x.dim()), x.dim()))

    def narrow(self, x):
        d = self.rng.randrange(x.dim())
        first = self.rng.randrange(x.shape[d])
        return x.narrow(d, first, self.rng.randint(1, x.shape[d] - first))

    def split(self, x):
        d = self.rng.randrange(x.dim())
        factors = [f for f in range(2, x.shape[d]) if x.shape[d] % f == 0]
        if not factors or x.dim() > 5:
            return x
        return x.unflatten(d, (self.rng.choice(factors), -1))

    def merge(self, x):
        if x.dim() < 2:
            return x
        try:
            return x.view(*x.shape[:-2], x.shape[-2] * x.shape[-1])
        except RuntimeError:
            return self.clone(x)

    def step(self, x):
        d = self.rng.randrange(x.dim())
        return x[(slice(None),) * d + (slice(None, None, self.rng.randint(1, 3)),)]

    def repeat(self, x):
        ones = [d for d in range(x.dim()) if x.shape[d] == 1]
        return x.expand([2 if d in ones[:1] else -1 for d in range(x.dim())])

    def clone(self, x):
        made = x.clone(memory_format=self.rng.choice(
            [torch.contiguous_format, torch.preserve_format]))
        known = self.moved[self._key(x)]
        self.moved[self._key(made)] = known.clone(x, made) if known else None
        self.keep.append(made)
        return made


class MovedTest(unittest.TestCase):
    def test_a_view_of_clones_is_what_torch_says(self):
        followed = lost = 0
        for n in range(6000):
            with self.subTest(seed=SEED + n):
                loader = Loader(random.Random(SEED + n))
                view, moved = loader.view, loader.moved[loader._key(loader.view)]
                place = torch.empty_like(view, memory_format=torch.contiguous_format).copy_(view)
                found = moved and moved.steps(
                    view.storage_offset(), zip(view.shape, view.stride(), place.stride()))
                places = found and geometry.unrolled(found[1])
                if not places:
                    lost += 1
                    continue
                followed += 1
                covered = 0
                for at, dims in places:
                    counts, src, dst = geometry.collapse(*(zip(*dims) if dims else ((), (), ())))
                    want = loader.base.flatten().as_strided(counts, src, found[0])
                    self.assertTrue(torch.equal(want, place.flatten().as_strided(counts, dst, at)))
                    covered += torch.Size(counts).numel()
                self.assertEqual(covered, view.numel())
        # What it gives up is rare: steps that carry from one dimension into the next.
        self.assertGreater(followed, 15 * lost)


class BoxesTest(unittest.TestCase):
    def boxes(self, src, dst, limit=1 << 20):
        """The boxes, after a check that they put every element where it belongs, and once."""
        boxes = geometry.boxes_of(src, dst, limit)
        if boxes is None:
            return None
        out = torch.full((int(dst.max()) + 1,), -1)
        numbers = torch.arange(int(src.max()) + 1)
        for counts, src_offset, src_strides, dst_offset, dst_strides in boxes:
            self.assertLessEqual(len(counts), geometry.MAX_DIMS)
            to = out.as_strided(counts, dst_strides, dst_offset)
            self.assertTrue(bool((to == -1).all()))
            to.copy_(numbers.as_strided(counts, src_strides, src_offset))
            if torch.Size(counts).numel() > 1:
                # What receiver/engine_client/layout_program.cc wants of a box.
                span = 1
                for count, step in sorted(zip(counts, src_strides), key=lambda d: d[1]):
                    self.assertTrue(count == 1 or step >= span)
                    span += (count - 1) * step
        self.assertTrue(torch.equal(out[dst], src))
        self.assertEqual(int((out >= 0).sum()), len(dst))
        return boxes

    def test_any_order_of_elements(self):
        for n in range(1500):
            with self.subTest(seed=SEED + n):
                rng = random.Random(SEED + n)
                generator = torch.Generator().manual_seed(SEED + n)
                shape = [rng.randint(1, 7) for _ in range(rng.randint(1, 4))]
                src = torch.arange(torch.Size(shape).numel()).view(shape)
                src = src.permute(rng.sample(range(len(shape)), len(shape))).flatten()
                kind = rng.randrange(3)
                if kind == 1:
                    src = src[torch.randperm(len(src), generator=generator)]
                elif kind == 2:
                    src = src.roll(rng.randint(0, len(src)))
                self.boxes(src, torch.arange(len(src)) * rng.randint(1, 3) + rng.randint(0, 4))

    def test_regular_orders_are_few_boxes(self):
        order = torch.arange(64 * 48)
        for name, src, most in (
                ("as it is", order, 1), ("transposed", order.view(64, 48).t().flatten(), 1),
                ("halves interleaved", order.view(2, -1).t().flatten(), 1),
                ("permuted heads", order.view(8, 2, 4, 48).transpose(1, 2).flatten(), 1),
                ("rows turned round", order.view(64, 48).flip(0).flatten(), 64),
                ("rolled", order.roll(5), 2)):
            with self.subTest(name):
                self.assertLessEqual(len(self.boxes(src, order)), most)

    def test_a_shuffle_is_given_up(self):
        src = torch.randperm(4096, generator=torch.Generator().manual_seed(SEED))
        self.assertIsNone(self.boxes(src, torch.arange(4096), limit=256))


class RegionTest(unittest.TestCase):
    def test_overlap_is_that_of_the_elements(self):
        for n in range(2000):
            with self.subTest(seed=SEED + n):
                rng = random.Random(SEED + n)
                memory = [torch.zeros(256, dtype=torch.uint8) for _ in range(2)]
                regions = []
                for mine in memory:
                    width = rng.choice([1, 2, 4])
                    counts = rng.randint(1, 3), rng.randint(1, 4)
                    region = geometry.Region(0, rng.randint(0, 8), counts,
                                             (rng.randint(1, 9), rng.randint(1, 5)), width)
                    regions.append(region)
                    region.bits(mine.untyped_storage()).fill_(-1)
                both = bool(((memory[0] != 0) & (memory[1] != 0)).any())
                self.assertEqual(geometry.overlap(*regions), both)


if __name__ == "__main__":
    unittest.main()
