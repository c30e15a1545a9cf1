"""How a model is cut: sizes of every kind of parallelism, and which ones the tests use."""
import dataclasses


@dataclasses.dataclass(frozen=True)
class Layout:
    """`etp` None means: as `tp`. `first`, `last`: layers of the first and last pipeline stage."""

    tp: int = 1
    pp: int = 1
    vpp: int = 1
    ep: int = 1
    etp: int | None = None
    cp: int = 1
    dp: int = 1
    first: int | None = None
    last: int | None = None
    account_for_embedding: bool = False
    account_for_loss: bool = False
    stages: str | None = None  # pipeline_model_parallel_layout, without its shorthands

    @property
    def expert_tp(self):
        return self.tp if self.etp is None else self.etp

    @property
    def world(self):
        return self.tp * self.pp * self.cp * self.dp

    @property
    def name(self):
        parts = [f"tp{self.tp}", f"pp{self.pp}"]
        for field in ("vpp", "ep", "cp", "dp"):
            if getattr(self, field) > 1:
                parts.append(f"{field}{getattr(self, field)}")
        if self.etp is not None and self.etp != self.tp:
            parts.append(f"etp{self.etp}")
        for field in ("first", "last"):
            if getattr(self, field) is not None:
                parts.append(f"{field}{getattr(self, field)}")
        if self.account_for_embedding:
            parts.append("embedding-counts")
        if self.account_for_loss:
            parts.append("loss-counts")
        if self.stages is not None:
            parts.append(self.stages.replace("|", "_"))
        return "-".join(parts)

    def chunk_sizes(self, layers):
        """Decoder layers of every (virtual stage, stage), by the rules of Megatron's options."""
        if self.stages is not None:
            counts = [stage.count("t") for stage in self.stages.split("|")]
            return {divmod(i, self.pp): count for i, count in enumerate(counts)}
        if self.first is not None or self.last is not None:
            ends = {0: self.first, self.pp - 1: self.last}
            given = {p: n for p, n in ends.items() if n is not None}
            middle = self.pp - len(given)
            rest = (layers - sum(given.values())) // middle if middle else 0
            return {
                (v, p): given.get(p, rest) // self.vpp
                for v in range(self.vpp)
                for p in range(self.pp)
            }
        counted = layers + self.account_for_embedding + self.account_for_loss
        sizes = {
            (v, p): counted // self.pp // self.vpp for v in range(self.vpp) for p in range(self.pp)
        }
        sizes[0, 0] -= self.account_for_embedding
        sizes[self.vpp - 1, self.pp - 1] -= self.account_for_loss
        return sizes

    def layer_offset(self, layers, stage, chunk):
        """The model's number of the first decoder layer of a stage's chunk."""
        sizes = self.chunk_sizes(layers)
        return sum(n for (v, p), n in sizes.items() if (v, p) < (chunk, stage))


ONE = Layout()

# The layouts under which the long test runs every family; 8 processes at most.
DENSE = (
    ONE,
    Layout(tp=2),
    Layout(pp=2),
    Layout(tp=2, pp=2),
    Layout(tp=2, pp=2, vpp=2),
    Layout(pp=3, first=1, last=1),
    Layout(pp=2, vpp=2, first=2),
    Layout(pp=3, account_for_embedding=True, account_for_loss=True),
    Layout(pp=2, vpp=2, stages="Et|tt|t|L"),
    Layout(tp=2, cp=2),
    Layout(tp=2, dp=2),
    Layout(tp=4),
    Layout(tp=2, pp=4),
)
MOE = (
    ONE,
    Layout(tp=2),
    Layout(dp=2, ep=2),
    Layout(tp=2, ep=2, etp=1),
    Layout(tp=2, dp=2, ep=2),
    Layout(tp=1, dp=4, ep=2, etp=2),
    Layout(tp=2, pp=2, dp=2, ep=2),
    Layout(tp=2, pp=2, ep=2, etp=1),
    Layout(pp=2, vpp=2, dp=2, ep=2),
    Layout(tp=2, pp=3, ep=2, etp=1, first=1, last=1),
    Layout(tp=2, cp=2, ep=4, etp=1),
    Layout(tp=4, ep=2, etp=2),
)
