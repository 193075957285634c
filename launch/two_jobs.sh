#!/bin/sh
# Two torchrun jobs that meet over ZeroMQ: a drafter that crashes is restarted alone, and the target goes on without it.
#
#   launch/two_jobs.sh TP_SIZE DRAFTERS ADDRESS CONFIG [PROMPT...] [-- OPTION OF dist-spec generate...]
#
#   launch/two_jobs.sh 2 1 tcp://127.0.0.1:5555 configs/tp2_plus_drafter.yaml "Once upon a time"
#
# On several machines run the two commands below by hand, one on each; ADDRESS is then one of the target's machine, and
# CONFIG needs transport.allow_plaintext: true. The target's end is the end of both; its exit code is the result (torchrun
# reports with a traceback that its drafters were ended by a signal).
set -eu
tp_size=$1 drafters=$2 address=$3 config=$4
shift 4
torchrun=${TORCHRUN:-torchrun}

"$torchrun" --standalone --nproc-per-node "$drafters" --max-restarts "${MAX_RESTARTS:-100}" \
    -m dist_spec launch "$config" --role drafter --connect "$address" &
drafting=$!
trap 'kill "$drafting" 2>/dev/null || true; wait "$drafting" || true' EXIT
trap 'kill "$target" 2>/dev/null || true' TERM INT

"$torchrun" --standalone --nproc-per-node "$tp_size" \
    -m dist_spec launch "$config" --role target --bind "$address" "$@" &
target=$!
code=0
wait "$target" || code=$?
while kill -0 "$target" 2>/dev/null; do wait "$target" || code=$?; done # a signal ends the first wait early
exit "$code"
