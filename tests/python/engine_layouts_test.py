"""deltawire.engine with loaders that clone, join and compute: what is followed, what is refused.

Small modules do what engines' loaders do (gpt-oss: experts transposed and cloned; Llama 4: q and k
permuted through a clone; Mamba: A = -exp(A_log); padded vocabularies). Daemons and files are real.
"""

from __future__ import annotations

import concurrent.futures
import types
import unittest
import unittest.mock

import support

support.use_trainer_python()
torch = support.need("torch")
support.need("deltawire")

from deltawire.engine import EngineClient, _codes  # noqa: E402
from engine_rig import EngineRig, state  # noqa: E402

HIDDEN, HEADS, HEAD, EXPERTS, VOCAB = 24, 4, 8, 3, 20
ROWS = HEADS * HEAD


def draw(seed: int, shapes: dict, dtype=torch.bfloat16) -> dict:
    generator = torch.Generator().manual_seed(seed)
    return {n: torch.randn(*s, generator=generator).to(dtype) for n, s in shapes.items()}


def change(weights: dict, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for tensor in weights.values():
        hit = torch.rand(tensor.shape, generator=generator) < 0.2
        tensor += (hit * 0.5).to(tensor.dtype)


class Module(torch.nn.Module):
    """Parameters that hold 7 until they are loaded, and a loader that is given to it."""

    def __init__(self, load, **shapes):
        super().__init__()
        self._load = load
        for name, (*shape, dtype) in shapes.items():
            value = torch.full(shape, 7, dtype=dtype)
            self.register_parameter(name, torch.nn.Parameter(value, requires_grad=False))

    def load_weights(self, pairs):
        self._load(self, pairs)


def each(load_one):
    """A loader of one tensor at a time."""
    def load(model, pairs):
        for name, value in pairs:
            load_one(model, name, value)
    return load


def permuted(value):
    """Llama 4's: halves of each head become neighbours; the reshape clones."""
    return value.view(HEADS, 2, HEAD // 2, HIDDEN).transpose(1, 2).reshape(ROWS, HIDDEN)


class Layouts(EngineRig):
    def attached(self, weights, module, **options):
        directory = self.start(weights)
        model = module()
        model.load_weights(weights.items())
        before = state(model)
        client = EngineClient(directory)
        outcome = client.attach(model, model.load_weights, **options)
        for name, value in before.items():
            self.assertTrue(torch.equal(value, state(model)[name]), f"{name} after the attach")
        return model, client, outcome

    def follows(self, weights, module, model, client, versions=3):
        """Three versions, each compared with a fresh load; then back by one, and on again."""
        for n in range(versions):
            old = state(model)
            change(weights, 100 + n)
            self.publish(weights)
            prepared = client.prepare()
            self.assertTrue(prepared, prepared.reason)
            self.assert_state(model, old)
            applied = client.apply()
            self.assertTrue(applied, applied.reason)
            fresh = module()
            fresh.load_weights(weights.items())
            self.assert_state(model, state(fresh))
            checked = client.check()
            self.assertTrue(checked, checked.reason)
        new = state(model)
        self.assertTrue(client.rollback())
        self.assert_state(model, old)
        self.assertEqual(client.held.version, self.version - 1)
        self.assertTrue(client.prepare() and client.apply())
        self.assert_state(model, new)

    def assert_state(self, model, wanted):
        for name, value in wanted.items():
            same = torch.equal(value.view(torch.uint8), state(model)[name].view(torch.uint8))
            self.assertTrue(same, name)


class MovedTest(Layouts):
    """Loaders that only move elements."""

    def moved(self, shapes, load, parameters, by_numbers=(), dtype=torch.bfloat16):
        weights = draw(1, shapes, dtype)

        def module():
            return Module(load, **parameters)

        model, client, outcome = self.attached(weights, module)
        self.assertTrue(outcome, outcome.reason)
        self.assertEqual(sorted(outcome.by_numbers), sorted(by_numbers))
        self.assertEqual(outcome.by_loader, [])
        self.follows(weights, module, model, client)
        return outcome

    def test_experts_that_are_transposed_and_cloned(self):
        def load_one(model, name, value):
            expert = int(name.split(".")[1])
            turned = value.view(ROWS, HIDDEN).t().contiguous()
            model.experts.data[expert].copy_(turned.view(-1).view(HIDDEN, ROWS))

        shapes = {f"expert.{e}": (ROWS, HIDDEN) for e in range(EXPERTS)}
        outcome = self.moved(shapes, each(load_one),
                             {"experts": (EXPERTS, HIDDEN, ROWS, torch.bfloat16)})
        self.assertEqual(outcome.boxes, EXPERTS)

    def test_a_stack_of_experts_that_is_cloned_whole(self):
        def load_one(model, name, value):
            del name
            model.experts.data.copy_(value.permute(0, 2, 1).contiguous())

        outcome = self.moved({"experts": (EXPERTS, ROWS, HIDDEN)}, each(load_one),
                             {"experts": (EXPERTS, HIDDEN, ROWS, torch.bfloat16)})
        self.assertEqual(outcome.boxes, 1)

    def test_the_map_of_one_layer_is_that_of_the_layers_that_are_loaded_alike(self):
        swapped, turned = torch.arange(ROWS) ^ 1, torch.arange(ROWS).roll(2)

        def load_one(model, name, value):
            layer, part = int(name[1:]), getattr(model, name).data
            # Of two more layers the one has another constant, and the other another mere copy.
            half, quarter = HIDDEN // 2, HIDDEN // 4
            part[:, :half].copy_(value[turned if layer == 3 else swapped][:, :half])
            for at in (half, half + quarter):
                of = 2 * half + half - quarter - at if layer == 4 else at
                part[:, at:at + quarter].copy_(value[:, of:of + quarter])

        shapes = {f"w{i}": (ROWS, HIDDEN) for i in range(5)}
        with unittest.mock.patch.object(_codes, "follow", wraps=_codes.follow) as follow:
            self.moved(shapes, each(load_one),
                       {name: (*shape, torch.bfloat16) for name, shape in shapes.items()},
                       by_numbers=shapes)
        self.assertEqual([call.args[4].tensors for call in follow.call_args_list],
                         [(0,), (3,), (4,)])

    def test_q_and_k_permuted_through_a_clone(self):
        def load_one(model, name, value):
            at = {"q": 0, "k": 1, "v": 2}[name]
            value = value if name == "v" else permuted(value)
            model.qkv.data.narrow(0, at * ROWS, ROWS).copy_(value)

        outcome = self.moved({n: (ROWS, HIDDEN) for n in "qkv"}, each(load_one),
                             {"qkv": (3 * ROWS, HIDDEN, torch.bfloat16)})
        self.assertEqual(outcome.boxes, 3)

    def test_heads_that_are_repeated(self):
        def load_one(model, name, value):
            del name
            heads = value.view(HEADS, 1, HEAD, HIDDEN).expand(HEADS, 3, HEAD, HIDDEN)
            model.k.data.copy_(heads.reshape(3 * ROWS, HIDDEN))

        outcome = self.moved({"k": (ROWS, HIDDEN)}, each(load_one),
                             {"k": (3 * ROWS, HIDDEN, torch.bfloat16)})
        self.assertEqual(outcome.boxes, 3)

    def test_a_vocabulary_padded_in_the_loaders_own_memory(self):
        def load_one(model, name, value):
            del name
            padded = torch.zeros(32, HIDDEN, dtype=value.dtype)
            padded[:VOCAB] = value
            model.embed.data.copy_(padded)

        outcome = self.moved({"embed": (VOCAB, HIDDEN)}, each(load_one),
                             {"embed": (32, HIDDEN, torch.bfloat16)}, ["embed"])
        self.assertEqual(outcome.boxes, 1)
        self.assertEqual(outcome.unmapped, [("embed", (32 - VOCAB) * HIDDEN * 2)])

    def test_tensors_that_are_joined_and_cut_again(self):
        """Columns of gate and up one by one; the second half is this rank's. 32 bits an element."""
        def load(model, pairs):
            both = dict(pairs)
            joined = torch.stack([both["gate"], both["up"]], dim=-1).flatten(1)
            model.gate_up.data.copy_(joined.chunk(2, dim=1)[1])

        outcome = self.moved({n: (ROWS, HIDDEN) for n in ("gate", "up")}, load,
                             {"gate_up": (ROWS, HIDDEN, torch.float32)}, ["gate", "up"],
                             torch.float32)
        self.assertEqual(outcome.boxes, 2)

    def test_a_loader_that_writes_from_threads_is_refused_before_one_of_them_writes(self):
        """Past every mode of torch it would write numbers over the live weights."""
        def load(model, pairs):
            both = dict(pairs)
            joined = torch.stack([both["gate"], both["up"]])
            if joined.device.type == "meta":
                model.gate_up.data.copy_(joined)
                return
            with concurrent.futures.ThreadPoolExecutor() as pool:
                pool.submit(model.gate_up.data.copy_, joined).result()

        weights = draw(4, {n: (ROWS, HIDDEN) for n in ("gate", "up")})
        model, client, outcome = self.attached(  # which compares the memory before and after
            weights, lambda: Module(load, gate_up=(2, ROWS, HIDDEN, torch.bfloat16)))
        self.assertIn("cannot be followed", outcome.reason)
        before = state(model)
        outcome = client.attach(model, model.load_weights, loader_tensors=True)
        self.assertIn("the loader starts threads", outcome.reason)
        self.assert_state(model, before)
        with concurrent.futures.ThreadPoolExecutor() as pool:
            self.assertTrue(pool.submit(bool, 1).result(), "threads are free again")

    def test_rows_in_an_order_of_the_engines_own(self):
        order = torch.tensor([(7 * i) % ROWS for i in range(ROWS)])

        def load_one(model, name, value):
            del name
            model.w.data.copy_(value[order])

        self.moved({"w": (ROWS, HIDDEN)}, each(load_one), {"w": (ROWS, HIDDEN, torch.bfloat16)},
                   ["w"])

    def test_single_bytes(self):
        def load_one(model, name, value):
            del name
            model.w.data.copy_(torch.cat([value[1:], value[:1]]))

        weights = {"w": torch.arange(ROWS * HIDDEN, dtype=torch.int64).to(torch.uint8)
                   .view(ROWS, HIDDEN)}

        def module():
            return Module(each(load_one), w=(ROWS, HIDDEN, torch.uint8))

        model, client, outcome = self.attached(weights, module)
        self.assertTrue(outcome, outcome.reason)
        self.assertEqual(outcome.by_numbers, ["w"])
        weights["w"] += 3
        self.publish(weights)
        self.assertTrue(client.prepare() and client.apply())
        fresh = module()
        fresh.load_weights(weights.items())
        self.assert_state(model, state(fresh))


class ComputedTest(Layouts):
    """Loaders that compute. The weights are such that the memory alone would not show it."""

    def refused(self, weights, load_one, shape=(ROWS, HIDDEN), dtype=torch.bfloat16, **options):
        def module():
            return Module(each(load_one), w=(*shape, dtype))

        model, client, outcome = self.attached(weights, module, **options)
        self.assertFalse(outcome)
        self.assertFalse(client.held)
        self.assertFalse(client.prepare())
        return outcome.reason

    def test_what_changes_no_value_today_is_not_taken_for_a_move(self):
        """abs of what is positive, the greater of two equal ones, twice zero: equal, for now."""
        ways = {
            "abs": lambda w: torch.cat([w.abs()]),
            "clamp": lambda w: w.clamp(min=0),
            "max": lambda w: torch.maximum(w, w.flip(0)),
            "mean": lambda w: (w + w.flip(0)) / 2,
            "twice": lambda w: w * 1.5,
            "plus": lambda w: torch.where(w > 100, w + 1, w),
            "sort": lambda w: w.sort(dim=0).values,
            "round": lambda w: w.float().to(torch.float8_e5m2).to(torch.bfloat16),
        }
        weights = {n: torch.ones(ROWS, HIDDEN, dtype=torch.bfloat16) for n in ways}
        weights["twice"].zero_()

        def load_one(model, name, value):
            list(ways).index(name)
            model.get_parameter(name).data.copy_(ways[name](value))

        def module():
            return Module(each(load_one), **{n: (ROWS, HIDDEN, torch.bfloat16) for n in ways})

        model, _, outcome = self.attached(weights, module)
        self.assertFalse(outcome)
        self.assertIn("abs: aten.abs.default computes", outcome.reason)
        # All of them, not only the first: with the loader's help each is left to the loader.
        again = EngineClient(self.receiver.directory).attach(
            model, model.load_weights, loader_tensors=True)
        self.assertTrue(again, again.reason)
        self.assertEqual(sorted(again.by_loader), sorted(ways))
        self.assertEqual(again.mapped_bytes, 0)

    def test_a_loader_that_wants_all_tensors_at_once(self):
        """Alone, the joined ones are loaded in another way: what that shows is not their layout."""
        def load(model, pairs):
            values = dict(pairs)
            for name in set(values) & {"a", "b"}:
                value = torch.cat([values[name][1:], values[name][:1]])
                at = model.ab.data.narrow(0, ROWS * (name == "b"), ROWS)
                if "c" in values:
                    at.copy_(value)
                else:
                    at[:3].copy_(value[:3])
            if "c" in values:
                model.c.data.copy_(values["c"])

        weights = draw(6, {n: (ROWS, HIDDEN) for n in "abc"})

        def module():
            return Module(load, ab=(2 * ROWS, HIDDEN, torch.bfloat16),
                          c=(ROWS, HIDDEN, torch.bfloat16))

        model, _, outcome = self.attached(weights, module)
        self.assertFalse(outcome)
        self.assertIn("a: aten.cat.default computes", outcome.reason)
        again = EngineClient(self.receiver.directory).attach(
            model, model.load_weights, loader_tensors=True)
        self.assertFalse(again)
        self.assertIn("with values it is loaded elsewhere than without", again.reason)

    def test_bits_that_are_taken_as_another_type(self):
        """Two bytes of an element are no two elements; the loader updates such a tensor itself."""
        def load_one(model, name, value):
            halves = value.view(torch.uint8)
            model.get_parameter(name).data.copy_(halves.clone() if name == "cloned" else halves)

        weights = draw(7, {"viewed": (ROWS, HIDDEN), "cloned": (ROWS, HIDDEN)})

        def module():
            return Module(each(load_one), viewed=(ROWS, 2 * HIDDEN, torch.uint8),
                          cloned=(ROWS, 2 * HIDDEN, torch.uint8))

        model, _, outcome = self.attached(weights, module)
        self.assertFalse(outcome)
        self.assertIn("its bits are taken as torch.uint8", outcome.reason)
        client = EngineClient(self.receiver.directory)
        again = client.attach(model, model.load_weights, loader_tensors=True)
        self.assertTrue(again, again.reason)
        self.assertEqual(sorted(again.by_loader), ["cloned", "viewed"])
        self.follows(weights, module, model, client, versions=1)

    def test_memory_that_is_no_parameter(self):
        weights = draw(2, {"w": (ROWS, HIDDEN)})
        kept = torch.zeros(ROWS, HIDDEN, dtype=torch.bfloat16)

        def outside(model, name, value):
            model.get_parameter(name).data.copy_(value)
            kept.copy_(value)

        self.assertIn("memory that is not the model's", self.refused(weights, outside))

    def test_a_tensor_that_is_kept_as_an_attribute(self):
        weights = draw(3, {"w": (ROWS, HIDDEN)})

        def keeps(model, name, value):
            model.get_parameter(name).data.copy_(value)
            model.turned = value.t().contiguous()

        self.assertIn("keeps a tensor beside the parameters: turned", self.refused(weights, keeps))

    def kept(self, weights, keeper):
        """The reason of a refusal, and the model: its loader also calls `keeper(model, value)`."""
        def load_one(model, name, value):
            model.get_parameter(name).data.copy_(value)
            keeper(model, value)

        def module():
            model = Module(each(load_one), w=(ROWS, HIDDEN, torch.bfloat16))
            model.cache, model.pieces = {"rows": ROWS}, []
            model.own = types.SimpleNamespace()
            return model

        model, client, outcome = self.attached(weights, module)
        self.assertFalse(outcome)
        self.assertFalse(client.held)
        return outcome.reason, model

    def test_a_tensor_that_is_kept_in_a_dict_or_a_list(self):
        weights = draw(8, {"w": (ROWS, HIDDEN)})

        def keeper(model, value):
            model.cache["w"] = value
            model.cache.pop("rows", None)
            model.pieces.append(value.t())

        reason, model = self.kept(weights, keeper)
        self.assertIn("keeps a tensor beside the parameters: cache.w", reason)
        self.assertIn("beside the parameters: pieces", reason)
        # What the engine's own load has left there is there again.
        self.assertEqual(list(model.cache), ["w"])
        self.assertTrue(torch.equal(model.cache["w"], weights["w"]))
        self.assertEqual(len(model.pieces), 1)
        self.assertTrue(torch.equal(model.pieces[0], weights["w"].t()))

    def test_a_tensor_that_is_kept_where_nobody_can_see_it(self):
        def keeper(model, value):
            model.own.tensor = value

        reason, _ = self.kept(draw(9, {"w": (ROWS, HIDDEN)}), keeper)
        self.assertIn("keeps weights in memory that is not the model's: w", reason)

    def test_what_is_computed_of_a_tensor_and_kept_where_nobody_can_see_it(self):
        def keeper(model, value):
            model.own.tensors = [[value.float() * 2]]

        reason, _ = self.kept(draw(9, {"w": (ROWS, HIDDEN)}), keeper)
        self.assertIn("keeps weights in memory that is not the model's: w", reason)

    def test_a_dict_that_is_empty_again_is_nobodys_business(self):
        """As a loader does that waits for the second half of a pair."""
        waiting = {}

        def load_one(model, name, value):
            waiting[name] = value
            if len(waiting) == 2:
                for i, half in enumerate("ab"):
                    model.w.data.narrow(0, ROWS * i, ROWS).copy_(waiting.pop(half))

        def module():
            return Module(each(load_one), w=(2 * ROWS, HIDDEN, torch.bfloat16))

        weights = draw(10, {n: (ROWS, HIDDEN) for n in "ab"})
        model, client, outcome = self.attached(weights, module)
        self.assertTrue(outcome, outcome.reason)
        self.follows(weights, module, model, client, versions=1)

    def test_a_parameter_that_is_replaced(self):
        weights = draw(4, {"w": (ROWS, HIDDEN)})

        def replaces(model, name, value):
            model.register_parameter(name, torch.nn.Parameter(value.clone(), requires_grad=False))

        self.assertIn("replaced a parameter's memory", self.refused(weights, replaces))

    def test_parameters_that_no_update_can_reach(self):
        weights = draw(12, {"w": (ROWS, HIDDEN)})

        def module():
            return Module(lambda model, pairs: [model.w.data.copy_(v) for _, v in pairs],
                          w=(ROWS, HIDDEN, torch.bfloat16))

        directory = self.start(weights)
        model = module().to("meta")
        outcome = EngineClient(directory).attach(model, model.load_weights)
        self.assertIn("no update can reach: w on meta", outcome.reason)

    def test_a_constant_over_what_was_loaded(self):
        weights = draw(5, {"w": (ROWS, HIDDEN)})
        weights["w"][3] = 0

        def over(model, name, value):
            model.get_parameter(name).data.copy_(value)
            model.get_parameter(name).data[3].fill_(0)

        self.assertIn("a constant is written over a part", self.refused(weights, over))

    def test_a_constant_in_bytes_over_what_was_loaded_in_elements(self):
        weights = draw(11, {"w": (ROWS, HIDDEN)})
        weights["w"].view(-1)[-8:] = 0

        def over(model, name, value):
            flat = model.get_parameter(name).data.view(-1)
            flat[ROWS:].copy_(value.view(-1)[ROWS:])
            flat[:ROWS].copy_(value.view(-1)[:ROWS])
            flat.view(torch.uint8)[-8:].fill_(0)

        self.assertIn("a constant is written over a part", self.refused(weights, over))


if __name__ == "__main__":
    unittest.main()
