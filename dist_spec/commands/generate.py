"""`dist-spec generate`: one job from prompts to text and report. Reads no files; knows nothing of processes or models."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from dist_spec.bench.generate import generate
from dist_spec.config import Config
from dist_spec.workers.supervisor import install_signal_handlers


def run_generate(
    config: Config,
    *,
    prompts: Sequence[str],
    chat: bool,
    stats: bool,
    compare_plain: bool,
    json_file: Path | None,
    quiet: bool,
    compare_hf: bool = False,
) -> None:
    """Runs the prompts (none: the built-in demonstration) and prints text and reports.

    Args:
        config: the settings.
        prompts: texts, decoded together.
        chat: put each into the model's chat template.
        stats: print what happened.
        compare_plain: run again with drafting off and report equality and speed ratios.
        json_file: where results go, if anywhere.
        quiet: do not stream the text.
        compare_hf: also run transformers' own generate, plain and with prompt lookup.
    """
    install_signal_handlers()
    generate(
        config,
        prompts=prompts,
        chat=chat,
        stats=stats,
        compare_plain=compare_plain,
        json_file=json_file,
        quiet=quiet,
        compare_hf=compare_hf,
    )
