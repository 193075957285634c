#!/bin/sh
# Several nodes with different numbers of processes, torchrun: run it on every node, with that node's role and processes.
#
#   RDZV=HOST:PORT NNODES=N launch/torchrun_unequal.sh target|drafter NPROC CONFIG [PROMPT...] [-- OPTION...]
#
#   node a  $ RDZV=node-a:29400 NNODES=2 launch/torchrun_unequal.sh target 4 configs/two_nodes.yaml "Once upon a time"
#   node b  $ RDZV=node-a:29400 NNODES=2 launch/torchrun_unequal.sh drafter 1 configs/two_nodes.yaml "Once upon a time"
#
# All nodes get the same arguments but for role and NPROC. Which node becomes rank 0 is not determined, so roles go by
# torchrun's --role. One job: if a drafter crashes, torchrun ends (or, with MAX_RESTARTS, restarts) the target too;
# two_jobs.sh keeps them apart. RUN_ID tells jobs at one endpoint apart; LOCAL_ADDR is this node's address, if torchrun
# takes the wrong one. Nodes of one network need transport.allow_plaintext: true in CONFIG.
set -eu
role=$1 nproc=$2
shift 2
exec "${TORCHRUN:-torchrun}" --nnodes "${NNODES:-2}" --nproc-per-node "$nproc" --role "$role" \
    --rdzv-backend c10d --rdzv-endpoint "$RDZV" --rdzv-id "${RUN_ID:-dist_spec}" --max-restarts "${MAX_RESTARTS:-0}" \
    ${LOCAL_ADDR:+--local-addr "$LOCAL_ADDR"} -m dist_spec launch "$@"
