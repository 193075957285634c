"""Logging of our processes: one line a record, to standard error. Nothing else configures logging."""

from __future__ import annotations

import logging
import sys


def setup_logging(process: str, *, level: str) -> logging.Logger:
    """The logger of this process, configured once."""
    logger = logging.getLogger("dist_spec")
    logger.setLevel(level.upper())
    if not logger.handlers:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(logging.Formatter(f"%(asctime)s {process} %(levelname)s %(message)s"))
        logger.addHandler(handler)
        logger.propagate = False
    return logger
