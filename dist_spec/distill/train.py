"""The training loop of a head or a student: deterministic for a seed, interruptible at any update, resumable. It knows
nothing of prompts, of text generation and of how the result is shown or shipped.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn

from dist_spec.distill.batches import Corpus, Order
from dist_spec.distill.checkpoint import CHECKPOINT, load_checkpoint, restore, save_checkpoint
from dist_spec.distill.evaluate import Evaluation, evaluate
from dist_spec.distill.learner import Learner
from dist_spec.distill.ranks import Ranks, share
from dist_spec.distill.settings import TrainSettings
from dist_spec.errors import ConfigError


@dataclass(kw_only=True, slots=True)
class Progress:
    """Where a training stands.

    Attributes:
        update, positions, seconds: done so far, resumed parts included.
        loss, agreement: moving means over recent updates; agreement per step.
        rate: the learning rate just used.
        history: (positions, seconds, evaluation) of every evaluation.
    """

    update: int = 0
    positions: int = 0
    seconds: float = 0.0
    loss: float = 0.0
    agreement: tuple[float, ...] = ()
    rate: float = 0.0
    history: list[dict[str, Any]] = field(default_factory=list)


class Training:
    """A drafter being trained.

    Args:
        learner: changed in place (its weights; what is kept is their moving average, `average`).
        corpus: may grow between updates (`refresh` is asked at every evaluation).
        held_out: for evaluation.
        folder: where the checkpoint is kept; made if missing.
        refresh: adds shards that appeared to the corpus.
    Raises:
        ConfigError: there are fewer sequences in an update than ranks.
    """

    def __init__(
        self,
        learner: Learner,
        *,
        corpus: Corpus,
        held_out: Corpus,
        settings: TrainSettings,
        folder: Path,
        ranks: Ranks,
        refresh: Callable[[], None] | None = None,
        evaluate_at_most: int = 64,
    ) -> None:
        self.settings, self.progress = settings, Progress()
        self.corpus, self._held_out, self._ranks, self._refresh = corpus, held_out, ranks, refresh
        self._file, self._limit = folder / CHECKPOINT, evaluate_at_most
        if settings.batch_size < ranks.size:
            raise ConfigError(
                f"--batch-size {settings.batch_size} leaves some of {ranks.size} ranks without a sequence",
                fix=f"give --batch-size {ranks.size} or more",
            )
        folder.mkdir(parents=True, exist_ok=True)
        self.learner = learner
        self._module = ranks.prepare(cast(nn.Module, learner))
        trained = {name: p for name, p in learner.trained.named_parameters() if p.requires_grad}
        self._names, self._parameters = list(trained), list(trained.values())
        self.average = {name: p.detach().clone() for name, p in trained.items()}
        self._optimiser = torch.optim.AdamW(
            self._parameters,
            lr=settings.learning_rate,
            betas=(0.9, 0.95),
            weight_decay=settings.weight_decay,
            fused=True,
        )
        self._order = Order(corpus, batch_size=settings.batch_size, seed=settings.seed)

    def resume(self) -> bool:
        """Go on from the checkpoint in the folder, if there is one.

        Raises:
            ModelError: it cannot be read, or is of a head of another shape.
            ConfigError: its chains took another number of steps.
        """
        if not self._file.exists():
            return False
        tensors, numbers = load_checkpoint(self._file)
        steps = len(numbers["progress"]["agreement"]) or self.settings.num_steps
        if steps != self.settings.num_steps:
            raise ConfigError(
                f"the training in {self._file.parent} is one of {steps} steps, asked for are {self.settings.num_steps}",
                fix=f"give --num-steps {steps} when resuming",
            )
        restore(
            tensors,
            module=self.learner.trained,
            average=self.average,
            optimiser=self._optimiser,
            names=self._names,
        )
        self._order.resume(numbers["order"])
        self.progress = Progress(**{**numbers["progress"], "agreement": tuple(numbers["progress"]["agreement"])})
        return True

    def run(self) -> Iterator[Progress]:
        """Train; yields after every update. Leave the iteration at any time and call `save`: nothing is lost.

        A checkpoint is kept at every evaluation and at the end.
        """
        progress, settings = self.progress, self.settings
        due = (progress.positions // settings.evaluate_every + 1) * settings.evaluate_every
        batches = iter(self._order)
        clock = time.monotonic()
        while self.share_done() < 1.0:
            places, generator = next(batches)
            self._update(share(places, self._ranks), generator)
            now = time.monotonic()
            progress.seconds = self._ranks.decide(progress.seconds + self._counted(now - clock))
            clock = now
            yield progress
            if progress.positions >= due or self.share_done() >= 1.0:
                due += settings.evaluate_every
                self.measure()
                clock = time.monotonic()  # what evaluation takes does not count
                self.save()
                if self._refresh is not None and self._ranks.size == 1:  # ranks must see the same shards
                    self._refresh()
                yield progress

    def _counted(self, seconds: float) -> float:
        """A pause (a stopped process, a sleeping machine) is no training time: an update counts ten usual ones at most."""
        usual = self.progress.seconds / self.progress.update if self.progress.update > 10 else 60.0
        return min(seconds, 10 * usual)

    def share_done(self) -> float:
        """The share of the training that is over, by positions or by time, whichever is further."""
        done = self.progress.positions / self.settings.positions
        if self.settings.minutes is not None:
            done = max(done, self.progress.seconds / (60 * self.settings.minutes))
        return done

    def _update(self, places: Any, generator: torch.Generator) -> None:
        settings, progress = self.settings, self.progress
        batch = self.corpus.batch(
            places, num_chains=settings.num_chains, num_steps=settings.num_steps, generator=generator
        ).to(self._ranks.device)
        with self._ranks.precision():
            outcome = self._module(batch)
        self._ranks.backward(outcome.loss)
        torch.nn.utils.clip_grad_norm_(self._parameters, settings.clip)
        progress.rate = settings.rate(update=progress.update, progress=self.share_done())
        for group in self._optimiser.param_groups:
            group["lr"] = progress.rate
        self._optimiser.step()
        self._optimiser.zero_grad(set_to_none=True)
        decay = min(settings.ema, (progress.update + 1) / (progress.update + 10))
        torch._foreach_lerp_(list(self.average.values()), [p.detach() for p in self._parameters], 1 - decay)
        self._note(outcome, batch)

    def _note(self, outcome: Any, batch: Any) -> None:
        progress = self.progress
        deep = outcome.agreed.flatten(1).sum(dim=1)
        asked = batch.valid.flatten(1).sum(dim=1).float()
        if self.settings.deep_chains < self.settings.num_chains:
            asked[1:] *= self.settings.deep_chains / self.settings.num_chains
        sums = self._ranks.total(torch.cat([deep.float(), asked, outcome.loss.detach().float()[None]]))
        steps = self.settings.num_steps
        agreement = (sums[:steps] / sums[steps : 2 * steps].clamp(min=1)).tolist()
        loss = float(sums[-1]) / self._ranks.size
        keep = min(0.98, progress.update / (progress.update + 1))
        before = progress.agreement or (0.0,) * steps
        progress.agreement = tuple(keep * b + (1 - keep) * a for a, b in zip(agreement, before, strict=True))
        progress.loss = keep * progress.loss + (1 - keep) * loss
        progress.positions += int(sums[steps])
        progress.update += 1

    def carry_out(self, *, tell: Callable[[Progress, float], None], stop: Callable[[], bool]) -> bool:
        """Train until it is over, or until `stop`, asked after every update, wants to end early: then all is kept, and the
        answer is True. `tell` is called after every update with the progress and the share that is done."""
        for progress in self.run():
            tell(progress, self.share_done())
            if self._ranks.decide(float(stop())):
                self.save()
                return True
        return False

    def measure(self, *, limit: int | None = None) -> Evaluation:
        """Evaluate the averaged weights on held-out text, and note the result in the history."""
        averaged = self.learner.with_weights(self.average)
        found = evaluate(averaged, self._held_out, ranks=self._ranks, limit=limit or self._limit)
        self.progress.history.append(
            {
                "update": self.progress.update,
                "positions": self.progress.positions,
                "seconds": round(self.progress.seconds, 1),
                "loss": round(self.progress.loss, 4),
                "train_agreement": [round(a, 4) for a in self.progress.agreement],
                "agreement": [round(a, 4) for a in found.agreement],
                "cross_entropy": [round(c, 4) for c in found.cross_entropy],
                "chain_length": found.chain_length,
                "rate": self.progress.rate,
                "shards": len(self.corpus.shards),
            }
        )
        return found

    def save(self) -> None:
        """Keep a checkpoint (rank 0)."""
        if self._ranks.rank:
            return
        progress = {name: getattr(self.progress, name) for name in self.progress.__dataclass_fields__}
        save_checkpoint(
            self._file,
            weights=self.learner.trained.state_dict(),
            average=self.average,
            optimiser=self._optimiser,
            names=self._names,
            numbers={"order": self._order.state, "progress": progress},
        )
