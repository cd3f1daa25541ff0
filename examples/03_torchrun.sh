#!/usr/bin/env bash
# 02_multi_device.cpp under torchrun, unchanged. torchrun starts the ranks, and restarts all of them up to three times
# if one fails; they then resume from the newest checkpoint.
#
#   examples/03_torchrun.sh PROGRAM RANKS [FLAGS]
#   examples/03_torchrun.sh build/release/examples/02_multi_device 2 10 2      two ranks
#   examples/03_torchrun.sh build/release/examples/02_multi_device gpu 10 2    one rank per GPU
set -euo pipefail
program=$1
ranks=$2
shift 2
exec torchrun --standalone --no-python --nproc-per-node "$ranks" --max-restarts 3 "$program" "$@"
