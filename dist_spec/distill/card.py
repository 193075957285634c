"""The model card of a draft head: how it was made and what was measured, as Markdown; and the sections that all cards share.
Measures nothing."""

from __future__ import annotations

from importlib.metadata import version

from dist_spec.distill.cache import Recipe
from dist_spec.distill.evaluate import Evaluation
from dist_spec.distill.make_head import Made
from dist_spec.distill.settings import TrainSettings


def head_card(
    made: Made, *, recipe: Recipe, settings: TrainSettings, command: str, tokens: int, file_bytes: int
) -> str:
    """The text of the card.

    Args:
        command: what was typed, to do it again.
        tokens: generated tokens that were there in the end.
        file_bytes: of the weights file.
    """
    config, found = made.head.config, made.evaluation
    layers = ", ".join(map(str, config.feature_layers))
    return f"""# Draft head for {recipe.target}

An EAGLE-3 head made by dist-spec {version("dist_spec")}. Of use for this target alone (vocabulary {recipe.vocabulary}).

    {command}

## Shape

One layer, hidden size {config.hidden_size}, {config.num_heads} heads ({config.num_kv_heads} of keys), \
MLP {config.intermediate_size}; {config.draft_vocab_size} of {config.vocab_size} ids, which cover {made.coverage:.2%} of \
what the target says. Features: outputs of layers {layers} of {config.target_layers}. \
{made.head.num_parameters / 1e6:.1f} million parameters, {file_bytes / 1e6:.1f} MB in 8 bits; the embedding is the \
target's own.

{data_text(recipe, tokens=tokens)}

{_training_text(made, settings)}

{measured_text(found, note="greedy text, the true features known at every start")}

What it is worth live: `dist-spec score`.
"""


def _training_text(made: Made, settings: TrainSettings) -> str:
    progress, early = made.training.progress, " (interrupted)" if made.interrupted else ""
    return f"""## Training

{progress.positions:,} positions in {progress.update:,} updates of {settings.batch_size} sequences, \
{progress.seconds / 60:.0f} minutes{early}. Every position takes {settings.num_steps} steps of the head's own \
({settings.deep_chains} of {settings.num_chains} beyond the first), step j weighing {settings.step_weight}^j. AdamW, \
learning rate {settings.learning_rate:g}, warm-up {settings.warmup} updates, falling to 0 over the last \
{settings.decay_share:.0%}; weights averaged over updates ({settings.ema}); \
seed {settings.seed}. The curve is in curve.csv."""


def data_text(recipe: Recipe, *, tokens: int) -> str:
    """The section on what was learned from."""
    temperatures = ", ".join(map(str, recipe.temperatures))
    return f"""## Data

{tokens:,} tokens that the target wrote itself, at one of the temperatures {temperatures}, at most \
{recipe.max_new_tokens} per prompt ({recipe.dtype}, seed {recipe.seed}; prompts {recipe.prompts}). The teacher's law is \
kept as its {recipe.top_k} likeliest ids. Evaluation is on prompts that training has not seen."""


def measured_text(found: Evaluation, *, note: str) -> str:
    """The section on what was measured; `note` says of what the chains are."""
    steps = len(found.agreement)
    chain = (
        ""
        if found.chain_length is None
        else f"Chain of {steps}: {found.chain_length:.2f} tokens per verification ({note})."
    )
    by_step = "\n".join(
        f"| {j + 1} | {a:.3f} | {c:.3f} |"
        for j, (a, c) in enumerate(zip(found.agreement, found.cross_entropy, strict=True))
    )
    by_domain = "\n".join(
        f"| {name} | {agreement:.3f} | {'' if length is None else f'{length:.2f}'} |"
        for name, (agreement, length) in found.domains.items()
    )
    return f"""## Measured on held-out text, teacher-forced ({found.positions:,} positions)

| step | agreement of first choices | cross entropy |
|---|---|---|
{by_step}

{chain}

| domain | agreement of the first step | tokens per verification |
|---|---|---|
{by_domain}"""
