#!/bin/sh
# One machine, torchrun: the target's ranks first, then one process for each drafter of the file.
#
#   launch/torchrun.sh NPROC CONFIG [OPTION...] [PROMPT...] [-- OPTION OF dist-spec generate...]
#
#   launch/torchrun.sh 3 configs/tp2_plus_drafter.yaml                                  # serve until SIGTERM
#   launch/torchrun.sh 3 configs/tp2_plus_drafter.yaml "Once upon a time" -- --max-tokens 40
#
# NPROC = parallel.tp_size + drafters with a process of their own; --layout says otherwise (docs/operating.md, "Launchers").
set -eu
nproc=$1
shift
exec "${TORCHRUN:-torchrun}" --standalone --nproc-per-node "$nproc" -m dist_spec launch "$@"
