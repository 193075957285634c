#!/bin/sh
# accelerate launch, with a configuration file of its own for the shape of the start.
#
#   launch/accelerate.sh ACCELERATE_CONFIG CONFIG [OPTION...] [PROMPT...] [-- OPTION...]
#
#   launch/accelerate.sh configs/launchers/accelerate_cpu.yaml configs/tp2_plus_drafter.yaml "Once upon a time"
#   machine 0  $ ROLE=target MACHINE_RANK=0 NUM_PROCESSES=8 launch/accelerate.sh \
#                    configs/launchers/accelerate_multi_node.yaml configs/two_nodes.yaml "Once upon a time"
#   machine 1  $ ROLE=drafter MACHINE_RANK=1 NUM_PROCESSES=4 launch/accelerate.sh \
#                    configs/launchers/accelerate_multi_node.yaml configs/two_nodes.yaml "Once upon a time"
#
# On machines with different numbers of processes NUM_PROCESSES is this machine's number times the number of machines
# (accelerate divides), and ROLE says what they are. accelerate's --cpu starts one process without a rank: --multi_gpu
# starts them on a CPU as well.
set -eu
accelerate_config=$1
shift
exec "${ACCELERATE:-accelerate}" launch --config_file "$accelerate_config" --multi_gpu \
    ${ROLE:+--role "$ROLE"} ${MACHINE_RANK:+--machine_rank "$MACHINE_RANK"} \
    ${NUM_PROCESSES:+--num_processes "$NUM_PROCESSES"} ${MASTER_ADDR:+--main_process_ip "$MASTER_ADDR"} \
    ${MASTER_PORT:+--main_process_port "$MASTER_PORT"} -m dist_spec launch "$@"
