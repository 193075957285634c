"""The built-in prompts, all written for this project. Copying from the prompt pays in some of them, not in all. Knows no
models or tokens."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

DOMAINS = ("chat", "code", "mathematics", "extraction", "translation", "summary")


@dataclass(frozen=True, kw_only=True, slots=True)
class Prompt:
    """A prompt and the kind of task it stands for."""

    domain: str
    text: str


def builtin_prompts(per_domain: int | None = None) -> tuple[Prompt, ...]:
    """The prompts that measurements use: ten for each of `DOMAINS`, domain after domain.

    Args:
        per_domain: only the first so many of each (None: all).
    """
    texts = _texts()
    return tuple(Prompt(domain=domain, text=text) for domain in DOMAINS for text in texts[domain][:per_domain])


@cache
def _texts() -> dict[str, list[str]]:
    texts: dict[str, list[str]] = json.loads(files("dist_spec.bench").joinpath("prompts_data.json").read_text("utf-8"))
    return texts


DEMO_PROMPTS: tuple[Prompt, ...] = (
    Prompt(
        domain="code",
        text="""Rewrite this Python function so that it is called `read_table` and takes a `separator` argument \
(default ","). Reply with the complete code.

```python
def load_csv(path):
    rows = []
    with open(path) as handle:
        header = handle.readline().strip().split(",")
        for line in handle:
            values = line.strip().split(",")
            if len(values) != len(header):
                raise ValueError(f"{path}: expected {len(header)} values, got {len(values)}")
            rows.append(dict(zip(header, values)))
    return rows
```""",
    ),
    Prompt(
        domain="extraction",
        text="""Copy every line that mentions a refund from the log below, unchanged, one per line.

2031-04-02 09:14:07 order 48213 paid by card, 39.90 EUR, customer Ines Albrecht
2031-04-02 09:20:31 order 48213 refund requested by customer Ines Albrecht, reason: wrong size
2031-04-02 09:41:55 order 48220 paid by transfer, 112.00 EUR, customer Tomas Lind
2031-04-02 10:02:18 order 48213 refund approved by agent Mara, 39.90 EUR
2031-04-02 10:30:44 order 48231 shipped with parcel number 7731-5520-18
2031-04-02 11:05:09 order 48220 refund requested by customer Tomas Lind, reason: arrived late
2031-04-02 11:48:00 order 48220 refund declined by agent Mara, reason: outside the return period""",
    ),
    Prompt(
        domain="summary",
        text="""Summarise the following text in two sentences.

The harbour of Vessin was dug in 1871, when the salt works needed a way to load barges in winter. For forty years it \
handled nothing but salt and coal. After the railway came, the barges lost their trade, and the basin silted up until a \
group of boat builders leased it in 1938. They dredged the entrance, built three slipways, and began to repair fishing \
boats. Today the boat yard employs sixty people, the old salt store is a museum, and the harbour is best known for the \
regatta that starts there every June.""",
    ),
    Prompt(domain="chat", text="What should I think about before I adopt a dog? Give me a short list with reasons."),
)
