#!/usr/bin/env bash
# Checks of the CUDA path on one GPU, in under 4 minutes. Usage: tests/gpu/smoke.sh [python]
# Needs torch with CUDA, transformers, tokenizers, jinja2, numpy, pytest, hypothesis, pytest-timeout; no network and no
# model files (tiny random models). Without a GPU every test is skipped and the script says so and fails.
set -euo pipefail
cd "$(dirname "$0")/../.."
python=${1:-python3}
"$python" - <<'CHECK'
import sys, torch
if not torch.cuda.is_available():
    sys.exit("smoke.sh: no CUDA device here; nothing was checked")
print("device:", torch.cuda.get_device_name(0), "torch", torch.__version__)
CHECK
timeout 180 "$python" -m pytest -q -m gpu tests/gpu
timeout 60 "$python" -m dist_spec.bench.forward_cost "random:llama?layers=16&hidden=2048&heads=16&kv_heads=4&head_dim=128&ffn=5632&vocab=32000&max_len=4096" \
  --device cuda:0 --context 1024 --rounds 20
