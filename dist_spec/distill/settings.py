"""How a head or a student is trained. Knows nothing of tensors, so that the command line may use it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainSettings:
    """All that the weights depend on, besides the data.

    Attributes:
        positions: places at which a chain started, all passes counted, after which training is over.
        minutes: or that much time, if it is over earlier (the weights then depend on the machine).
        num_steps: steps of its own that every chain takes; step j counts `step_weight` ** j.
        batch_size: sequences per update, over all ranks; `num_chains` places of each are trained, `deep_chains` of them for
            more than one step.
        learning_rate: after `warmup` updates; it falls to 0 over the last `decay_share` of the training.
        evaluate_every: positions between two evaluations; a checkpoint is kept each time.
        scale_features: bring every channel of the features to one size first (a head; see `unroll.Unrolled`).
        ema: decay of the moving average of the weights, which is what is evaluated and kept.
    """

    positions: int = 4_000_000
    minutes: float | None = None
    num_steps: int = 4
    step_weight: float = 0.8
    batch_size: int = 8
    num_chains: int = 64
    deep_chains: int = 32
    learning_rate: float = 1e-3
    warmup: int = 100
    decay_share: float = 0.3
    weight_decay: float = 0.01
    clip: float = 1.0
    scale_features: bool = True
    ema: float = 0.998
    evaluate_every: int = 25_000
    seed: int = 0

    def rate(self, *, update: int, progress: float) -> float:
        """The learning rate of an update: warm-up, plateau, linear fall. `progress` is the share of the training that is
        over; extending a training only lengthens the plateau if the fall has not begun."""
        rise = min(1.0, (update + 1) / max(1, self.warmup))
        fall = min(1.0, max(0.0, 1.0 - progress) / self.decay_share) if self.decay_share > 0 else 1.0
        return self.learning_rate * rise * fall
