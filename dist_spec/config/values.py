"""Kinds of values that several settings share. Knows no setting."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

from pydantic import Discriminator, Field, Tag

Dtype: TypeAlias = Literal["float32", "bfloat16", "float16"]
Device: TypeAlias = Annotated[str, Field(pattern=r"^(cpu|cuda:\d+)$")]
Name: TypeAlias = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$")]
Cores: TypeAlias = Annotated[tuple[Annotated[int, Field(ge=0)], ...], Field(strict=False, min_length=1)]
Count: TypeAlias = Annotated[int, Field(ge=1)]
DeviceMap: TypeAlias = Annotated[
    Annotated[Literal["auto", "balanced", "sequential"], Tag("word")]
    | Annotated[
        dict[str, Annotated[str, Field(pattern=r"^(cpu|disk|cuda:\d+)$")]], Field(min_length=1), Tag("mapping")
    ],
    Discriminator(lambda value: "mapping" if isinstance(value, dict) else "word"),
]
"""Who lies where: chosen by accelerate, or module -> place."""
MaxMemory: TypeAlias = Annotated[
    dict[
        Annotated[str, Field(pattern=r"^(cpu|cuda:\d+)$")],
        Annotated[str, Field(pattern=r"^\d+(\.\d+)?(GiB|MiB|KiB|GB|MB|KB)$")],
    ],
    Field(min_length=1),
]
Seconds: TypeAlias = Annotated[float, Field(ge=0, allow_inf_nan=False)]


def _word_or_number(value: Any) -> str:
    return "word" if value in ("all", "auto") else "number"


# With a discriminator a wrong value is told in one sentence and not as two alternatives.
Budget: TypeAlias = Annotated[
    Annotated[Literal["auto"], Tag("word")] | Annotated[int, Field(ge=0, le=1024), Tag("number")],
    Discriminator(_word_or_number),
]
PerRequest: TypeAlias = Annotated[
    Annotated[Literal["all", "auto"], Tag("word")] | Annotated[int, Field(ge=1), Tag("number")],
    Discriminator(_word_or_number),
]
