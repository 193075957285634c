"""The model card of a student: how it was made and what was measured, as Markdown. Measures nothing."""

from __future__ import annotations

from importlib.metadata import version

from dist_spec.distill.cache import Recipe
from dist_spec.distill.card import data_text, measured_text
from dist_spec.distill.make_student import MadeStudent
from dist_spec.distill.settings import TrainSettings


def student_card(made: MadeStudent, *, recipe: Recipe, settings: TrainSettings, command: str, tokens: int) -> str:
    """The text of the card.

    Args:
        command: what was typed, to do it again.
        tokens: generated tokens that were there in the end.
    """
    student, progress = made.student, made.training.progress
    trained = sum(p.numel() for p in made.training.learner.trained.parameters())
    whole = sum(p.numel() for p in student.parameters())
    return f"""# Student of {recipe.target}

A model of {len(made.layers)} layers made by dist-spec {version("dist_spec")}, to draft for {recipe.target} (`kind: model`).

    {command}

## Shape

Layers {", ".join(map(str, made.layers))} of the target as a start, its embedding, norm and head: {whole / 1e6:.1f} million \
parameters, of which {trained / 1e6:.1f} million were trained; embedding and head are the target's own.

{data_text(recipe, tokens=tokens)}

## Training

{progress.positions:,} positions in {progress.update:,} updates of {settings.batch_size} sequences, \
{progress.seconds / 60:.0f} minutes{" (interrupted)" if made.interrupted else ""}. Cross entropy to the teacher's law at \
every generated position. AdamW, learning rate {settings.learning_rate:g}, warm-up {settings.warmup} updates, falling to 0 \
over the last {settings.decay_share:.0%}; weights averaged over updates ({settings.ema}); seed {settings.seed}. The curve \
is in curve.csv.

{measured_text(made.evaluation, note="greedy text; a student reads tokens alone, so it takes no steps of its own")}

What it is worth live: `dist-spec score`.
"""
