#!/usr/bin/env bash
# Checks of a target over two GPUs (NCCL), in under 4 minutes. Usage: tests/gpu/parallel_smoke.sh [python]
# Needs what smoke.sh needs, psutil, and two GPUs; without them the script says so and fails.
set -euo pipefail
cd "$(dirname "$0")/../.."
python=${1:-python3}
"$python" - <<'CHECK'
import sys, torch
if torch.cuda.device_count() < 2:
    sys.exit(f"parallel_smoke.sh: {torch.cuda.device_count()} GPU(s) here, two are needed; nothing was checked")
print("devices:", torch.cuda.get_device_name(0), torch.cuda.get_device_name(1), "torch", torch.__version__)
CHECK
timeout 220 "$python" -m pytest -q -m gpu tests/gpu/test_cuda_parallel.py
