#!/usr/bin/env bash
# Installs what is missing, builds, and trains a small GPT on all GPUs of this machine, or without a GPU on two CPU
# ranks. Flags are passed to the program: examples/quickstart.sh --max-steps 50
set -euo pipefail
start=$PWD
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=cmake/setup.sh
source cmake/setup.sh

cmake --preset release
cmake --build --preset release --target 06_char_gpt lockstep_installed

program=$PWD/build/release/examples/06_char_gpt
case " $* " in
*" --nprocs"* | *" --devices"*) ;;
*) gpus=$(nvidia-smi --list-gpus 2>/dev/null) && [ -n "$gpus" ] || set -- --nprocs 2 "$@" ;;
esac
printf '\n$ %s\n' "$program $*"
cd "$start"
exec "$program" "$@"
