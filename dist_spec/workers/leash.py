"""Becomes the given command, tied to its parent's life and to its cores; run as a script, it imports nothing of ours.

    python -I -S leash.py PARENT_PID CORES COMMAND [ARGUMENT ...]        CORES: "0,1", or "-" for all

When the parent dies, however it dies, the kernel kills this process (Linux; elsewhere only an orderly stop does). Done
here and not between fork and exec of the parent, where only async-signal-safe code may run while other threads hold locks.
"""

from __future__ import annotations

import os
import sys

_PR_SET_PDEATHSIG = 1
_SIGKILL = 9
_NOT_FOUND = 127


def main(arguments: list[str]) -> int:
    """Does not return when all goes well."""
    parent, cores, *command = arguments
    if sys.platform == "linux":
        import ctypes

        libc = ctypes.CDLL(None, use_errno=True)
        if libc.prctl(_PR_SET_PDEATHSIG, _SIGKILL, 0, 0, 0) != 0:
            print("cannot tie this process to its parent's life", file=sys.stderr)
            return 1
        if os.getppid() != int(parent):
            return 1  # the parent died before the tie was made
        if cores != "-":
            try:
                os.sched_setaffinity(0, {int(core) for core in cores.split(",")})
            except OSError as error:
                print(f"cannot pin to cores {cores}: {error.strerror}", file=sys.stderr)
                return 1
    try:
        os.execvp(command[0], command)
    except OSError as error:
        print(f"cannot start {command[0]}: {error.strerror}", file=sys.stderr)
        return _NOT_FOUND


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
