"""`python -m dist_spec`, as launchers start it; the same as `dist-spec`."""

from dist_spec.cli import main

main()
