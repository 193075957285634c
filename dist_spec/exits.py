"""Turns the end of what was started from a shell into a message and an exit code, never a traceback. Knows no command."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

import typer

from dist_spec.errors import DistSpecError


def run(command: Callable[[], object]) -> int:
    """The exit code of `command` (what it returns, if that is a number); errors are reported on standard error."""
    try:
        code = command()
    except DistSpecError as error:
        typer.secho(f"error: {error.message}", fg="red", err=True)
        if error.fix is not None:
            typer.echo(f"  fix: {error.fix}", err=True)
        return _traceback_if_asked(error.exit_code)
    except SystemExit as exit_:
        return exit_.code if isinstance(exit_.code, int) else 0 if exit_.code is None else 1
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # Whoever read our output has gone; nothing more can be said to them.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except Exception as error:
        text = " ".join(str(error).split()) or "no message"
        typer.secho(f"error: unexpected {type(error).__name__}: {text}", fg="red", err=True)
        typer.echo("  this is a bug in dist_spec; set DIST_SPEC_DEBUG=1 to see where it happened", err=True)
        return _traceback_if_asked(1)
    return code if isinstance(code, int) else 0


def quiet_torch() -> None:
    """Call before torch is imported: of a rank that died it would print a trace of its own C++, before our message. Whoever
    sets TORCH_CPP_LOG_LEVEL gets what they ask for."""
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")


def _traceback_if_asked(code: int) -> int:
    if os.environ.get("DIST_SPEC_DEBUG") == "1":
        import traceback

        traceback.print_exc()
    return code
