#!/usr/bin/env bash
# Builds, tests and measures lockstep on a machine with an NVIDIA GPU, and writes a report (docs/gpu/README.md).
#
#   tests/gpu/run.sh [--dry] [--out FOLDER] [--build FOLDER] [--limit SECONDS] [stage...]
#
#   stage    build, check, fault or bench; without any: all of them, in this order
#   --dry    everything but the GPU, which is hidden: shows that this script and what it starts work
#   --out    for the report, logs and test results (build/gpu_run). The stages of one run, also one by one, share it
#   --build  a build folder (build/gpu). One that is configured is used as it is, and only completed
#   --limit  of each stage (480 s)
#
# Exit status, the highest that applies:
#   0  everything passed
#   1  something failed; the report names it
#   2  wrong usage, or the folder of --out cannot be used
#   3  something is missing: a GPU, a program, a package, a complete build
#   4  a stage was stopped at its limit
set -euo pipefail
start=$PWD
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
source=$PWD

say() { printf 'gpu run: %s\n' "$*" >&2; }
refuse() {
  say "$*"
  exit 2
}
from_start() { (cd "$start" && realpath -m -- "$1"); }

dry='' out=$source/build/gpu_run build=$source/build/gpu limit=480 stages=()
while [ $# -gt 0 ]; do
  case $1 in
  --dry) dry=yes ;;
  --out | --build | --limit)
    [ -n "${2:-}" ] || refuse "$1 needs a value"
    case $1 in
    --out) out=$(from_start "$2") ;;
    --build) build=$(from_start "$2") ;;
    --limit) limit=$2 ;;
    esac
    shift
    ;;
  build | check | fault | bench) stages+=("$1") ;;
  *) refuse "unknown stage or option \"$1\"; usage: run.sh [--dry] [--out FOLDER] [--build FOLDER] [--limit SECONDS]" \
    "[build] [check] [fault] [bench]" ;;
  esac
  shift
done
[ ${#stages[@]} -gt 0 ] || stages=(build check fault bench)
[[ $limit =~ ^[1-9][0-9]{0,5}$ ]] || refuse "--limit is \"$limit\", expected a number of seconds"

worst=0
at_least() { (($1 <= worst)) || worst=$1; }

# ---- What this machine is: written once per --out, so that a report is about one machine and never half a dry run.

fact() { sed -n "s/^$1\t//p" "$out/run.tsv"; }
nvidia() { nvidia-smi --query-gpu="$1" --format=csv,noheader 2>/dev/null | sed -n 1p; }

{ mkdir -p "$out" && : >>"$out/run.tsv"; } 2>/dev/null || refuse "cannot write to $out; name another folder with --out"
if [ -n "$dry" ]; then
  device="dry run"
else
  device=$(nvidia name) || device=''
  if [ -z "$device" ]; then
    [ -s "$out/run.tsv" ] || rm -f "$out/run.tsv"
    say "no GPU was found: nvidia-smi is not there or lists none. Without a GPU only --dry is possible"
    exit 3
  fi
fi
if [ ! -s "$out/run.tsv" ]; then
  {
    printf 'device\t%s\ndate\t%s\n' "$device" "$(date +%F)"
    if [ -z "$dry" ]; then
      printf 'GPUs\t%s\nmemory\t%s\ndriver\t%s\n' "$(nvidia-smi --list-gpus | wc -l)" "$(nvidia memory.total)" "$(nvidia driver_version)"
      printf 'CUDA of the driver\t%s\n' "$(nvidia-smi | sed -n 's/.*CUDA Version: *\([0-9.]*\).*/\1/p')"
    fi
    printf 'cores\t%s\nkernel\t%s\n' "$(env -u OMP_NUM_THREADS nproc)" "$(uname -sr)"
    printf 'commit\t%s\n' "$(git describe --always --dirty 2>/dev/null || echo unknown)"
  } >"$out/run.tsv"
elif [ "$(fact device)" != "$device" ]; then
  refuse "$out holds a report about \"$(fact device)\", and this would be one about \"$device\"; name another folder with --out"
fi

# ---- Steps: commands with a log, a time limit and a line in the report. All they start carries $mark in its environment, so that it is
# found also in another session.

mark=GPU_RUN_ID=$$-$RANDOM-$(date +%s)
running() { grep -lszxF "$mark" /proc/[0-9]*/environ | cut -d/ -f3 || true; }
end_running() {
  local pids
  pids=$(running)
  [ -z "$pids" ] || kill -KILL $pids 2>/dev/null || true
}
trap end_running EXIT
trap 'exit 130' INT TERM

# add NAME RESULT SECONDS NOTE: a line of the stage's table.
add() {
  printf '%s\t%s\t%s\t%s\n' "$1" "$2" "$3" "$(tr '\t\n' '  ' <<<"$4")" >>"$folder/steps.tsv"
  say "$stage: $1: $2${4:+ ($4)}"
  case $2 in
  failed) at_least 1 ;;
  missing) at_least 3 ;;
  "time limit") at_least 4 ;;
  esac
}

# attempt NAME SECONDS COMMAND...: sets $status and $took. Of the command; 124: stopped at its limit, and all it started with it.
attempt() {
  local name=$1 most=$2 left=$((deadline - SECONDS)) begin=$SECONDS
  shift 2
  status=0 took=0
  ((most < left)) || most=$left
  if ((most <= 0)); then
    printf 'not started: the time of the stage was over\n' >"$folder/$name.log"
    status=124
    return
  fi
  timeout --foreground --kill-after=5 "$most" env "$mark" "$@" >"$folder/$name.log" 2>&1 </dev/null || status=$?
  took=$((SECONDS - begin))
  if ((status == 124 || status == 137)); then
    end_running
    status=124
  fi
}

last_line() { grep -v '^[[:space:]]*$' "$folder/$1.log" | tail -n 1 || true; }

# step NAME SECONDS COMMAND...: an attempt with its line; $note may hold a command that finds the note in the log.
step() {
  attempt "$@"
  local text
  text=$(cd "$folder" && eval "${note:-true}") || true
  case $status in
  0) add "$1" passed "$took" "$text" ;;
  124) add "$1" "time limit" "$took" "stopped after $took s; what it had started was killed" ;;
  *) add "$1" failed "$took" "${text:-exit status $status: $(last_line "$1")}; $1.log" ;;
  esac
  return "$status"
}

# tests NAME PERCENT CTEST-FLAGS...: tests of the label gpu, for that share of the stage. ctest stops them itself, and so writes results.
tests() {
  local name=$1 stop=$((SECONDS + (deadline - SECONDS) * $2 / 100))
  shift 2
  printf 'subdirs("%s")\n' "$build" >"$folder/CTestTestfile.cmake"  # ctest keeps its log there, not in that of a ctest that runs this script
  local flags=(--test-dir "$folder" -L '^gpu$' --no-tests=ignore --output-on-failure --output-junit "$folder/$name.xml")
  flags+=(--stop-time "$(date -d "+$((stop - SECONDS)) seconds" +%T)")
  attempt "$name" "$limit" env "${settings[@]}" ctest "${flags[@]}" "$@"
  local counts all
  counts=$(python3 tests/gpu/report.py --count "$folder/$name.xml") || counts='no results'
  if ((status == 124 || (status != 0 && SECONDS >= stop))); then
    all=$(sed -n 's|^ *[0-9]*/\([0-9]*\) Test.*|\1|p' "$folder/$name.log" | tail -n 1)
    add "$name" "time limit" "$took" "$counts of ${all:-?}; the tests were stopped after $took s"
  elif ((status != 0)); then
    add "$name" failed "$took" "$counts"
  elif [ "$counts" = "no tests" ]; then
    add "$name" "$([ -n "$dry" ] && echo skipped || echo failed)" "$took" "no test of this kind was found"
  else
    add "$name" passed "$took" "$counts"
  fi
}

needs_build() {
  [ -e "$build/CTestTestfile.cmake" ] && [ -x "$build/examples/06_char_gpt" ] && return
  add build missing 0 "$build holds no complete build; run the stage build first"
  return 1
}

# ---- The stages

stage_build() {
  local note='last_line setup'
  if [ ! -e "$build/CMakeCache.txt" ]; then
    if ! step setup "$limit" bash cmake/setup.sh; then
      at_least 3
      return
    fi
    LOCKSTEP_LIBTORCH=$(tail -n 1 "$folder/setup.log")
    export LOCKSTEP_LIBTORCH
    note='grep -m 1 -A 3 "CMake Error" configure.log'
    if ! step configure "$limit" cmake -G Ninja -S "$source" -B "$build" -D CMAKE_BUILD_TYPE=Release -D LOCKSTEP_UNITY=ON \
      -D LOCKSTEP_BUILD_BENCHMARKS=ON; then
      rm -f "$build/CMakeCache.txt"  # so that the next call configures again
      at_least 3
      return
    fi
  fi
  note='grep -m 1 "error:\|^FAILED\|unknown target" build.log'
  step build "$limit" cmake --build "$build" --parallel "$(nproc)" --target gpu_run || return 0

  local compiler cuda=OFF nccl=OFF
  compiler=$(sed -n 's/^CMAKE_CXX_COMPILER:[A-Z]*=//p' "$build/CMakeCache.txt")
  if [ -e "$build/lib/liblockstep_cuda.so" ]; then
    cuda=ON
    ! grep -q 'libnccl\.so' "$build/lib/liblockstep_cuda.so" || nccl=ON
  fi
  if [ -n "$dry" ] || [ $cuda$nccl = ONON ]; then
    add "CUDA and NCCL" passed 0 "CUDA $cuda, NCCL $nccl, $("$compiler" --version | sed -n 1p)"
  else
    add "CUDA and NCCL" missing 0 "CUDA $cuda, NCCL $nccl: configure.log says why (\"lockstep: CUDA\")"
  fi
}

# train NAME SECONDS STEPS WRAPPER...: an attempt at example 06, which
# learns this project's documents, so that the data is the same on every machine.
train() {
  local name=$1 most=$2 steps=$3 setup=gpu
  shift 3
  [ -z "$dry" ] || setup=cpu
  cat docs/*.md >"$folder/text.txt"
  rm -rf "${folder:?}/$name"
  attempt "$name" "$most" env "${settings[@]}" "$@" "$build/examples/06_char_gpt" --text "$folder/text.txt" --run_dir "$folder/$name" \
    --compute_setup $setup --nprocs 1 --sample 0 --max_steps "$steps" --report.every_steps 1 --checkpoint.enabled false
}

stage_check() {
  needs_build || return 0
  if [ -z "$dry" ]; then
    note='grep -m 1 "Driver Version" nvidia-smi.log' step nvidia-smi 30 nvidia-smi || true
  fi
  tests tests 60 -E FaultsOnGpu --parallel 4

  local steps=300 first last
  [ -z "$dry" ] || steps=3
  train training 90 $steps
  read -r first last < <(sed -n 's/.*"loss":\([^,}]*\).*/\1/p' "$folder/training/metrics.jsonl" 2>/dev/null | sed -n '1p;$p' |
    xargs -r printf '%.4f %.4f') || true
  if ((status == 124)); then
    add training "time limit" "$took" "stopped after $took s; what it had started was killed"
  elif ((status != 0)) || [ -z "${last:-}" ]; then
    add training failed "$took" "exit status $status: $(last_line training); training.log"
  elif [ -z "$dry" ] && ! awk "BEGIN { exit !($last < 0.8 * $first) }"; then
    add training failed "$took" "loss $first before, $last after $steps steps: expected a fall by a fifth"
  else
    add training passed "$took" "loss $first before, $last after $steps steps"
  fi

  # Of the tools only memcheck: lockstep has no kernels of its own, and the others look into kernels.
  local sanitizer summary
  sanitizer=$(PATH=$PATH:/usr/local/cuda/bin command -v compute-sanitizer) || sanitizer=''
  if [ -n "$dry" ]; then
    add memcheck skipped 0 "dry run: no kernels"
  elif [ -z "$sanitizer" ]; then
    add memcheck skipped 0 "compute-sanitizer was not found"
  else
    # Without the cache every tensor is an allocation of its own, whose bounds the tool knows.
    train memcheck "$limit" 20 PYTORCH_NO_CUDA_MEMORY_CACHING=1 "$sanitizer" --tool memcheck --target-processes all --error-exitcode 9
    summary=$(sed -n 's/^=* *\(.*SUMMARY\)/\1/p' "$folder/memcheck.log" | tail -n 1)
    case $status in
    0) add memcheck passed "$took" "$summary" ;;
    124) add memcheck "time limit" "$took" "stopped after $took s" ;;
    *) add memcheck failed "$took" "exit status $status; ${summary:-no summary}; memcheck.log" ;;
    esac
  fi
}

stage_fault() {
  needs_build || return 0
  end_running
  tests faults 95 -R FaultsOnGpu
  local patience pids=''
  for patience in 1 1 1 1 1; do  # what is ending may end
    pids=$(running)
    [ -n "$pids" ] || break
    sleep "$patience"
  done
  if [ -z "$pids" ]; then
    add "nothing left running" passed 0 ""
  else
    add "nothing left running" failed 0 "$(ps -o pid=,args= -p "$(xargs <<<"$pids" | tr ' ' ,)" | cut -c1-100 | sed 's/^ *//' | paste -sd ';')"
    end_running
  fi
}

stage_bench() {
  needs_build || return 0
  local scripts=(tests/benchmarks/gpu_*.py) script name seconds=5 device=cuda i share libtorch
  [ -z "$dry" ] || seconds=1 device=cpu
  if [ ! -e "${scripts[0]}" ]; then
    add benchmarks skipped 0 "there is no tests/benchmarks/gpu_*.py"
    return
  fi
  if ! grep -qiE "^LOCKSTEP_BUILD_BENCHMARKS:BOOL=(ON|1|TRUE|YES)$" "$build/CMakeCache.txt"; then
    add benchmarks "$([ -n "$dry" ] && echo skipped || echo missing)" 0 "$build was configured without LOCKSTEP_BUILD_BENCHMARKS"
    return
  fi
  libtorch=$(sed -n 's/^LibTorch_FOLDER:INTERNAL=//p' "$build/CMakeCache.txt")  # the PyTorch to compare with is that of the build
  for ((i = 0; i < ${#scripts[@]}; ++i)); do
    script=${scripts[i]} name=$(basename "${scripts[i]}" .py)
    share=$(((deadline - SECONDS) / (${#scripts[@]} - i)))
    mkdir -p "$folder/$name"  # the report shows the .md that it writes there, or else its standard output
    # shellcheck disable=SC2016  # bash -c has its own arguments
    note="last_line $name" step "$name" "$share" env "${settings[@]}" LOCKSTEP_LIBTORCH="$libtorch" \
      bash -c 'exec "${@:2}" >"$1"' bash "$folder/$name.stdout" \
      python3 "$script" --build "$build" --out "$folder/$name" --device $device --seconds $seconds || true
  done
}

# Under --dry tests that need a GPU are skipped and counted; on a GPU only those may be skipped that need more than one GPU, or
# something else that not every machine has.
if [ -n "$dry" ]; then
  settings=(CUDA_VISIBLE_DEVICES= LOCKSTEP_FORBID_SKIPS=0)
else
  settings=(LOCKSTEP_FORBID_SKIPS=1)
fi
for stage in "${stages[@]}"; do
  folder=$out/$stage
  rm -rf "$folder"
  mkdir -p "$folder"
  deadline=$((SECONDS + limit))
  began=$SECONDS
  "stage_$stage"
  end_running
  printf '%s\n' $((SECONDS - began)) >"$folder/seconds"
  report=$(python3 tests/gpu/report.py "$out")
done
say "report: $report"
exit "$worst"
