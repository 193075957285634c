"""The target as a model: one packed forward, the verification rule over its logits, the accepted K/V kept in place.

It knows nothing of messages or drafters; plans come in, outcomes go out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from dist_spec.core.noise import NoiseKey, NoiseRing, request_key, uniform
from dist_spec.core.plan import Plan, PlanRow
from dist_spec.core.sampling.pipelines import Pipelines
from dist_spec.core.target_session import Outcome
from dist_spec.core.types import ForwardRow, HalfArray, Verdict
from dist_spec.core.verification.base import NoiseRow, VerificationRule
from dist_spec.core.verification.build import build_rule
from dist_spec.core.verification.chosen import Chosen, verdict_of
from dist_spec.core.verification.rejection import Rejections
from dist_spec.core.verification.weigh import Draws, Uniforms
from dist_spec.errors import RequestError
from dist_spec.models.parallel.order import Wish
from dist_spec.telemetry.timeline import Timeline

if TYPE_CHECKING:
    import torch

    from dist_spec.models.parallel.runner import ParallelForward, ParallelRunner
    from dist_spec.models.runner import ModelRunner, PendingForward

_RULES = 64


@runtime_checkable
class Choosing(Protocol):
    """A runner whose ranks find the best tokens themselves, each in its part of the vocabulary."""

    def launch_choosing(
        self, rows: Sequence[ForwardRow], wishes: Sequence[Wish | None], *, with_margin: bool = False
    ) -> ParallelForward: ...


@runtime_checkable
class Chooses(Protocol):
    """A forward on such a runner."""

    def chosen(self, row: int) -> Chosen: ...


class ModelBackend:
    """Runs plans on a `ModelRunner`, or on one that is spread over ranks.

    Attributes:
        inspect: shown every row's logits before its verdict (the decisions file); None: nobody looks.
        features_stay: features for draft heads remain on the device, as tensors: the transport takes them from there.

    Args:
        rule: name of the verification rule (`verification.rule`).
        with_margin: report margins, for the numeric-equality rule.
        eos_ids: the model's end-of-sequence ids (`min_tokens` bans them for a while).
        timeline: told what the process is doing: `forward`, `noise`, `verdict`.
        noise_maker: one thread that makes noise rows while the forward runs (on another core than a forward on a CPU);
            without it they are made between the start of a forward and the wait for its end, which hides them behind a
            device of its own only.
    """

    def __init__(
        self,
        runner: ModelRunner | ParallelRunner,
        *,
        vocab_size: int,
        rule: str,
        noise_rows: int,
        with_margin: bool,
        timeline: Timeline,
        eos_ids: Sequence[int] = (),
        noise_maker: Executor | None = None,
    ) -> None:
        self.runner = runner
        self.timeline = timeline
        self.rejections = Rejections()
        self.ring = NoiseRing(vocab_size, noise_rows)
        self._vocab_size = vocab_size
        self._rule_name = rule
        self._with_margin = with_margin
        self._pipelines = Pipelines(eos_ids=eos_ids)
        self._rules: dict[float, VerificationRule] = {}
        self._keys: dict[tuple[int, int], NoiseKey] = {}
        self.inspect: Callable[[PlanRow, torch.Tensor], None] | None = None
        self._forward: PendingForward | ParallelForward | None = None
        self._wishes: list[Wish | None] = []
        self._window = 0
        self.features_stay = False
        self._noise_maker = noise_maker
        self._noise_made: Future[None] | None = None

    def launch(self, plan: Plan) -> None:
        """Start the forward; noise of the positions it may reach is made while a device of its own computes."""
        self.timeline.step(count=plan.step > 1)
        self.timeline.enter("forward")
        rows = [row.forward for row in plan.rows]
        chooses = isinstance(self.runner, Choosing)
        self._wishes = [self._wish(row) if chooses else None for row in plan.rows]
        sampled = [
            row
            for row, wish in zip(plan.rows, self._wishes, strict=True)
            if wish is None and row.final and row.sampling.temperature > 0
        ]
        if self._noise_maker is not None and sampled:
            self._noise_made = self._noise_maker.submit(self._make_noise, sampled)
        if isinstance(self.runner, Choosing):
            self._forward = self.runner.launch_choosing(rows, self._wishes, with_margin=self._with_margin)
        else:
            self._forward = self.runner.launch(rows)
        if self._noise_maker is None and sampled:
            self.timeline.enter("noise")
            self._make_noise(sampled)

    def _wish(self, row: PlanRow) -> Wish | None:
        """How this row's tokens are chosen, where that is an argmax of plain scores and nobody wants to see the logits."""
        sampling = row.sampling
        plain = not sampling.is_processed and sampling.logprobs < 0
        if not row.final or not plain or self.inspect is not None:
            return None
        try:
            rule = self._rule(sampling.temperature)
        except RequestError:
            return None  # told of when its verdict is due
        if rule.needs_draws:
            return None
        return Wish(temperature=sampling.temperature, key=self._key(row), index=row.noise_index)

    def _make_noise(self, rows: Sequence[PlanRow]) -> None:
        """Rows of the positions that this step may reach; those beyond the accepted ones serve the next step."""
        weighs = self._rule_name == "rejection"  # drafted tokens are weighed then: only a bonus needs such a row
        for row in rows:
            for depth in range(row.ready_depth if weighs else 0, row.ready_depth + 1):
                self.ring.prepare(self._key(row), row.noise_index + depth)

    def collect(self, plan: Plan) -> Sequence[Outcome]:
        if self._forward is None:
            raise RuntimeError("collect without launch")
        self.timeline.enter("forward")
        logits = self._forward.wait()
        if self._noise_made is not None:
            self.timeline.enter("noise")
            self._noise_made.result()
            self._noise_made = None
        self.timeline.enter("verdict")
        if logits.device.type != "cpu":
            logits = logits.cpu()
        self._pipelines.keep(plan.rows)
        outcomes: list[Outcome] = []
        start = 0
        for number, (row, wish) in enumerate(zip(plan.rows, self._wishes, strict=True)):
            if wish is not None:
                outcomes.append(self._follow_choices(row, number))
                continue
            stop = start + row.forward.num_logits
            outcomes.append(self._verify(row, logits[start:stop]) if row.final else None)
            start = stop
        self._keep_accepted(plan, outcomes)
        return outcomes

    def capture(self, layers: Sequence[int], *, window: int) -> None:
        """See `workers.target.Featuring`."""
        self.runner.capture(layers)
        self._window = window

    def features(self, plan: Plan, outcomes: Sequence[Outcome]) -> list[HalfArray]:
        """See `workers.target.Featuring`."""
        assert self._forward is not None
        found: list[HalfArray] = []
        first = 0
        for row, outcome in zip(plan.rows, outcomes, strict=True):
            pending = range(first, first + row.forward.num_pending)[-self._window :]
            nodes = outcome.path if isinstance(outcome, Verdict) else ()
            kept = [*pending, *(pending.stop + node for node in nodes)]
            found.append(self._forward.features(kept, stay=self.features_stay))
            first += len(row.forward.tokens)
        return found

    def _verify(self, row: PlanRow, logits: torch.Tensor) -> Verdict | RequestError:
        try:
            if self.inspect is not None:
                self.inspect(row, logits[:, : self._vocab_size])
            rule = self._rule(row.sampling.temperature)
            return rule.verify(
                tokens=row.forward.tokens[row.forward.num_pending :],
                parents=row.forward.parents,
                logits=logits[:, : self._vocab_size],
                noise_row=self._noise(row) if rule.needs_noise else None,
                pipeline=self._pipelines.of(row),
                draws=Draws(laws=row.laws, uniforms=self._uniforms(row)) if rule.needs_draws else None,
            )
        except RequestError as error:
            return error

    def _follow_choices(self, row: PlanRow, number: int) -> Verdict | RequestError:
        """The verdict of a row whose tokens the ranks have chosen."""
        assert isinstance(self._forward, Chooses)
        try:
            return verdict_of(
                self._forward.chosen(number),
                tokens=row.forward.tokens[row.forward.num_pending :],
                parents=row.forward.parents,
                with_margin=self._with_margin,
            )
        except RequestError as error:
            return error

    def tick(self) -> None:
        """Nothing was verified for a while, perhaps: ranks that wait hear that all is well."""
        self.runner.tick()

    def _keep_accepted(self, plan: Plan, outcomes: Sequence[Outcome]) -> None:
        paths = [outcome.path if isinstance(outcome, Verdict) else () for outcome in outcomes]
        self.runner.compact([row.forward for row in plan.rows], paths)

    def _rule(self, temperature: float) -> VerificationRule:
        rule = self._rules.get(temperature)
        if rule is None:
            if len(self._rules) >= _RULES:
                self._rules.clear()
            rule = build_rule(
                self._rule_name,
                temperature=temperature,
                with_margin=self._with_margin,
                rejections=self.rejections,
            )
            self._rules[temperature] = rule
        return rule

    def _key(self, row: PlanRow) -> NoiseKey:
        name = (row.sampling.seed, row.sampling.sample_index)
        key = self._keys.get(name)
        if key is None:
            if len(self._keys) >= 4096:
                self._keys.clear()
            key = self._keys[name] = request_key(*name)
        return key

    def _uniforms(self, row: PlanRow) -> Uniforms:
        """Fresh ones for every verification (docs/adr/0009-rejection-randomness.md)."""
        key, start = self._key(row), row.noise_index
        return lambda domain, depth: uniform(key, domain=domain, index=start + depth, epoch=start)

    def _noise(self, row: PlanRow) -> NoiseRow:
        key = self._key(row)
        return lambda depth: self.ring.row(key, row.noise_index + depth)
