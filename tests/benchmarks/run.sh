#!/usr/bin/env bash
# Measures lockstep beside its peers on the CPUs of this machine, and writes a report for each question:
#
#   tests/benchmarks/run.sh all                     # every question; about two hours
#   tests/benchmarks/run.sh step exchange           # only these
#   tests/benchmarks/run.sh --rounds 2 launch       # to see that it works; the figures mean little
#
# Questions: overhead, step, exchange, reduction, launch, failure, loader, sampler, checkpoint, resume, scaling. Reports: build/benchmarks/NAME_cpu_DATE.md, or below --out FOLDER.
# Sets up what is missing: the build, and a Python environment with the peers (Lightning, Accelerate, torchdata, safetensors; matplotlib draws) in build/benchmarks.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

known=(overhead step exchange reduction launch failure loader sampler checkpoint resume scaling)
out=build/benchmarks
rounds=()
questions=()
usage() {
  sed -n '2,/^set/{s/^# \{0,1\}//;/^set/d;p}' "${BASH_SOURCE[0]}" >&2
  exit 64
}
while [ $# -gt 0 ]; do
  case $1 in
    --rounds | --out)
      [ $# -ge 2 ] || usage
      if [ "$1" = --rounds ]; then rounds=(--rounds "$2"); else out=$2; fi
      shift
      ;;
    all) questions=("${known[@]}") ;;
    *)
      [[ " ${known[*]} " == *" $1 "* ]] || usage
      questions+=("$1")
      ;;
  esac
  shift
done
[ ${#questions[@]} -gt 0 ] || usage

# shellcheck source=../../cmake/setup.sh
source cmake/setup.sh
cmake --workflow --preset bench
mkdir -p build/benchmarks "$out"

# An environment of its own, so that LibTorch's folder stays as it is; it sees the torch of that folder.
venv=build/benchmarks/venv
if [ ! -e "$venv/complete" ]; then
  python=python3
  if [ -x "$LOCKSTEP_LIBTORCH/../../../../bin/python" ]; then
    python=$LOCKSTEP_LIBTORCH/../../../../bin/python
  fi
  "$python" -m venv "$venv"
  site_packages=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
  dirname "$(readlink -f "$LOCKSTEP_LIBTORCH")" >"$site_packages/torch_of_lockstep.pth"
  "$venv/bin/pip" install --quiet numpy matplotlib lightning accelerate torchdata safetensors
  touch "$venv/complete"
fi

programs=build/bench/tests/benchmarks
measure() {
  local question=$1 program=$2
  shift 2
  printf '== %s\n' "$question"
  "$venv/bin/python" "tests/benchmarks/${question}_bench.py" --program "$programs/$program" \
    --report "$out/${question}_cpu_$(date +%F).md" ${rounds[@]+"${rounds[@]}"} "$@"
}
peers=(--python "$venv/bin/python")
for question in "${questions[@]}"; do
  case $question in
    overhead) "$programs/step_overhead" | tee "$out/step_overhead_cpu_$(date +%F).txt" ;; # chooses its rounds itself
    step | exchange) measure "$question" exchange_program "${peers[@]}" ;;
    reduction) "$programs/reduction_program" --nprocs 2 2>&1 | tee "$out/reduction_cpu_$(date +%F).txt" ;;
    failure) measure failure failing_program "${peers[@]}" ;;
    loader | sampler) measure "$question" "${question}_bench" "${peers[@]}" ;;
    checkpoint) measure checkpoint checkpoint_program --folder "$out" "${peers[@]}" ;;
    launch | resume) measure "$question" "${question}_program" "${peers[@]}" ;;
    scaling) measure scaling scaling_program ;; # has no peers
  esac
done
