#!/bin/sh
# The DeepSpeed launcher: one machine, or several named in a hostfile (over ssh, or without).
#
#   launch/deepspeed.sh NPROC CONFIG [PROMPT...] [-- OPTION...]
#
# All machines of a hostfile (by ssh), or on every machine by hand with its own NODE_RANK:
#
#   HOSTFILE=configs/launchers/deepspeed_hostfile launch/deepspeed.sh all CONFIG [PROMPT...]
#   HOSTFILE=... NO_SSH=1 NODE_RANK=0 MASTER_ADDR=node-a launch/deepspeed.sh all CONFIG [PROMPT...]
#
# Ranks follow the hostfile: name the target's machines first, as rank 0 is to be the target's (--layout says otherwise).
# DeepSpeed's own --local_rank argument is switched off: dist-spec reads the environment. How the target is sharded does not
# depend on the launcher (parallel.backend).
set -eu
nproc=$1
shift
set -- --no_local_rank --master_port "${MASTER_PORT:-29500}" --module dist_spec launch "$@"
if [ -n "${MASTER_ADDR:-}" ]; then set -- --master_addr "$MASTER_ADDR" "$@"; fi
if [ -n "${NO_SSH:-}" ]; then set -- --no_ssh --node_rank "$NODE_RANK" "$@"; fi
if [ -n "${HOSTFILE:-}" ]; then set -- --hostfile "$HOSTFILE" "$@"; fi
if [ "$nproc" != all ]; then set -- --num_gpus "$nproc" "$@"; fi
exec "${DEEPSPEED:-deepspeed}" "$@"
