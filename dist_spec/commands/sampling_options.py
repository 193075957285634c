"""Options that say how tokens are chosen, and how they become settings. Knows nothing of what a command does with them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

if TYPE_CHECKING:
    from dist_spec.config import Override

TopKOption: TypeAlias = Annotated[
    int | None, typer.Option("--top-k", metavar="K", help="Sample among the K likeliest tokens.", show_default=False)
]
TopPOption: TypeAlias = Annotated[
    float | None,
    typer.Option("--top-p", metavar="P", help="Sample among the likeliest tokens that hold P.", show_default=False),
]
MinPOption: TypeAlias = Annotated[
    float | None,
    typer.Option("--min-p", metavar="P", help="Drop tokens below P times the likeliest one.", show_default=False),
]
RepetitionOption: TypeAlias = Annotated[
    float | None,
    typer.Option("--repetition-penalty", metavar="R", help="Above 1 against repeating any token.", show_default=False),
]
PresenceOption: TypeAlias = Annotated[
    float | None,
    typer.Option("--presence-penalty", metavar="X", help="Off the logit of tokens in the output.", show_default=False),
]
FrequencyOption: TypeAlias = Annotated[
    float | None,
    typer.Option("--frequency-penalty", metavar="X", help="The same, once per occurrence.", show_default=False),
]
MinTokensOption: TypeAlias = Annotated[
    int | None, typer.Option("--min-tokens", metavar="N", help="Tokens before an end may come.", show_default=False)
]
LogitBiasOption: TypeAlias = Annotated[
    list[str] | None,
    typer.Option("--logit-bias", metavar="ID=VALUE", help="Added to a token's logit; repeatable.", show_default=False),
]
BadWordOption: TypeAlias = Annotated[
    list[str] | None,
    typer.Option("--bad-word", metavar="TEXT", help="Never appears in the output; repeatable.", show_default=False),
]
LogprobsOption: TypeAlias = Annotated[
    int | None,
    typer.Option("--logprobs", metavar="N", help="Report N log probabilities a token (--json).", show_default=False),
]


def sampling_overrides(
    *,
    top_k: int | None = None,
    top_p: float | None = None,
    min_p: float | None = None,
    repetition_penalty: float | None = None,
    presence_penalty: float | None = None,
    frequency_penalty: float | None = None,
    min_tokens: int | None = None,
    logit_bias: Sequence[str] | None = None,
    bad_words: Sequence[str] | None = None,
    logprobs: int | None = None,
) -> list[Override]:
    """Options as (place, value) pairs; those not given are left out.

    Raises:
        ConfigError: a bias is not of the form ID=VALUE.
    """
    places: list[Override] = [
        ("sampling.top_k", top_k),
        ("sampling.top_p", top_p),
        ("sampling.min_p", min_p),
        ("sampling.repetition_penalty", repetition_penalty),
        ("sampling.presence_penalty", presence_penalty),
        ("sampling.frequency_penalty", frequency_penalty),
        ("sampling.min_tokens", min_tokens),
        ("sampling.logit_bias", dict(map(_bias, logit_bias)) if logit_bias else None),
        ("sampling.bad_words", list(bad_words) if bad_words else None),
        ("sampling.logprobs", logprobs),
    ]
    return [(place, value) for place, value in places if value is not None]


def _bias(text: str) -> tuple[int, float]:
    from dist_spec.errors import ConfigError

    token, _, value = text.partition("=")
    try:
        return int(token), float(value)
    except ValueError:
        raise ConfigError(f"--logit-bias {text!r} is not ID=VALUE", fix="for instance --logit-bias 50=-5") from None
