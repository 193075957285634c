"""Prompts for making training text, composed from self-written templates. Knows no models or tokens, and none of the
prompts that measurements use.

A template is text with slots: `{{town}}` is replaced by one of the list `town` (which may have slots itself), `{{Town}}`
likewise with a capital first letter, `{{int 2 90}}` by a whole number of that range. Within one prompt no list repeats an
entry while it has others left; `{{town#a}}` is the same town wherever it stands.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files

import yaml

from dist_spec.errors import ConfigError

DOMAINS = ("chat", "code", "mathematics", "extraction", "translation", "summary")

_SLOT = re.compile(r"(\b[Aa] )?\{\{(\w+)(?:#(\w+))?(?: (\d+) (\d+))?\}\}")
_SYSTEM_SHARE = 0.1
_PATIENCE = 200
"""Draws without a new prompt after which a domain counts as used up."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingPrompt:
    """What a user would ask, the kind of task it stands for, and (seldom) a system prompt of its own."""

    domain: str
    text: str
    system: str | None = None


def training_prompts(count: int, *, seed: int) -> list[TrainingPrompt]:
    """`count` different prompts, domain after domain in turn; the same for the same seed. A longer list begins with a
    shorter one of the same seed.

    Raises:
        ConfigError: the templates do not give so many different prompts.
    """
    return _compose("training", count=count, seed=seed)


def held_out_prompts(count: int, *, seed: int) -> list[TrainingPrompt]:
    """As `training_prompts`, from templates, topics and names of which training uses none: for evaluation while training.

    Raises:
        ConfigError: the templates do not give so many different prompts.
    """
    return _compose("held_out", count=count, seed=seed)


Grammar = Mapping[str, list[str]]


@cache
def grammars(part: str) -> dict[str, Grammar]:
    """The lists of one part (`training`, `held_out`) for each of `DOMAINS`; `prompts` are the templates."""
    shared = _read(f"prompts_{part}_shared.yaml")
    return {domain: {**shared, **_read(f"prompts_{part}_{domain}.yaml")} for domain in DOMAINS}


def _read(name: str) -> Grammar:
    lists: Grammar = yaml.safe_load(files("dist_spec.distill").joinpath(name).read_text("utf-8"))
    return lists


def _compose(part: str, *, count: int, seed: int) -> list[TrainingPrompt]:
    streams = [
        _stream(domain, grammar, random.Random(f"{part} {domain} {seed}")) for domain, grammar in grammars(part).items()
    ]
    prompts: list[TrainingPrompt] = []
    for index in range(count):
        prompt = next(streams[index % len(streams)], None)
        if prompt is None:
            raise ConfigError(
                f"the built-in templates give only {len(prompts)} different prompts",
                fix="ask for fewer prompts, or give your own ones as a JSONL file",
            )
        prompts.append(prompt)
    return prompts


def _stream(domain: str, grammar: Grammar, generator: random.Random) -> Iterator[TrainingPrompt]:
    seen: set[str] = set()
    misses = 0
    while misses < _PATIENCE:
        draw = _Draw(grammar=grammar, generator=generator)
        text = draw.fill(draw.entry("prompts")).replace(".m..", ".m.").strip()
        system = draw.entry("system") if domain == "chat" and generator.random() < _SYSTEM_SHARE else None
        if text in seen:
            misses += 1
            continue
        seen.add(text)
        misses = 0
        yield TrainingPrompt(domain=domain, text=text, system=system)


@dataclass(kw_only=True)
class _Draw:
    """The choices made for one prompt."""

    grammar: Grammar
    generator: random.Random
    used: dict[str, set[int]] = field(default_factory=dict)
    named: dict[tuple[str, str], str] = field(default_factory=dict)

    def entry(self, name: str) -> str:
        """One of a list, not one that this prompt already has while there are others."""
        entries = self.grammar[name]
        used = self.used.setdefault(name, set())
        if len(used) == len(entries):
            used.clear()
        index = self.generator.choice([i for i in range(len(entries)) if i not in used])
        used.add(index)
        return entries[index]

    def fill(self, template: str) -> str:
        """The template with all slots replaced, those of the replacements too."""
        return _SLOT.sub(self._replace, template)

    def _replace(self, match: re.Match[str]) -> str:
        article, word, tag, low, high = match.groups()
        name = word[0].lower() + word[1:]
        if tag is not None and (name, tag) in self.named:
            text = self.named[name, tag]
        else:
            text = str(self.generator.randint(int(low), int(high))) if name == "int" else self.fill(self.entry(name))
            if tag is not None:
                self.named[name, tag] = text
        if article:
            article = article.replace(" ", "n ") if text[0] in "aeio" else article
        return (article or "") + (text if word == name else text[0].upper() + text[1:])
