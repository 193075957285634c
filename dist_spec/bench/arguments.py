"""What the measuring commands read from their arguments, refused before anything starts. It knows none of them."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from dist_spec.errors import ConfigError


def at_least_1(text: str) -> int:
    """A number of at least 1 (for `argparse`)."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number of at least 1, got {text!r}")
    return int(text)


def numbers(text: str) -> list[int]:
    """Numbers of at least 0 with commas between them (for `argparse`)."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() for part in parts):
        raise argparse.ArgumentTypeError(f"must be whole numbers with commas between them, as in 0,4,16; got {text!r}")
    return [int(part) for part in parts]


def check_output(file: Path | None) -> None:
    """ConfigError when the figures could not be written there: before the work, not after it."""
    if file is not None and (file.is_dir() or not os.access(file.parent, os.W_OK)):
        raise ConfigError(f"--json: {file} cannot be written", fix="name a file in a folder that is there")
