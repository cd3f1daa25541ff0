#!/usr/bin/env bash
# What tests/gpu/run.sh does in bad and in good cases: in a copy of it, with a build folder whose tests, example and benchmarks are a
# few lines of shell, and with an nvidia-smi that pretends a GPU.
# Usage: run_test.sh WORK
set -euo pipefail
source=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
rm -rf "$1"
mkdir -p "$1/a project/tests/gpu" "$1/a project/tests/benchmarks" "$1/a project/docs" "$1/gpu" "$1/no gpu"
work=$(cd "$1" && pwd)
project="$work/a project"
cp "$source"/tests/gpu/{run.sh,report.py} "$project/tests/gpu"
echo text >"$project/docs/a.md"
printf '#!/bin/sh\nexit 9\n' >"$work/no gpu/nvidia-smi"
cat >"$work/gpu/nvidia-smi" <<'NVIDIA'
#!/bin/sh
case $* in
*=name*) echo "NVIDIA Fake 80GB" ;;
*) echo "Driver Version: 1.2 CUDA Version: 13.0" ;;
esac
NVIDIA
chmod +x "$work"/*gpu/nvidia-smi

fail() {
  printf 'FAILED: %s\n' "$*"
  cat "$work/said"
  exit 1
}
# expect STATUS ARGUMENTS...: runs the script, without a GPU unless $with says so.
expect() {
  local expected=$1 status=0
  shift
  PATH="$work/${with:-no gpu}:$PATH" "$project/tests/gpu/run.sh" "$@" >"$work/said" 2>&1 || status=$?
  [ "$status" -eq "$expected" ] || fail "run.sh $* ended with $status, expected $expected"
}
said() { grep -qF -- "$1" "$work/said" || fail "the output has no \"$1\""; }
reported() { grep -qF -- "$1" "$report" || { cat "$report" >"$work/said"; fail "the report has no \"$1\""; }; }
only_report() {
  local found=("$1"/*.md)
  [ ${#found[@]} -eq 1 ] && [ -e "${found[0]}" ] || fail "expected one report in $1, found ${found[*]}"
  report=${found[0]}
}
gone() {
  local tries
  for tries in 1 2 3 4 5; do
    pgrep -f "^sleep $1\$" >/dev/null || return 0
    sleep 0.2
  done
  fail "a process of the stage ($tries tries) is still there: sleep $1"
}

# make_build FOLDER LOSSES [NAME SCRIPT]...: a build folder with these tests; example 06 reports these losses.
make_build() {
  local build=$1 losses=$2
  shift 2
  mkdir -p "$build/examples"
  echo "CMAKE_CXX_COMPILER:FILEPATH=$(command -v c++)" >"$build/CMakeCache.txt"
  printf '#!/bin/bash\nwhile [ $# -gt 0 ]; do [ "$1" != --run_dir ] || run=$2; shift; done\nmkdir -p "$run"\n' \
    >"$build/examples/06_char_gpt"
  printf 'for loss in %s; do echo "{\\"step\\":1,\\"loss\\":$loss,\\"lr\\":1}"; done >"$run/metrics.jsonl"\n' "$losses" \
    >>"$build/examples/06_char_gpt"
  chmod +x "$build/examples/06_char_gpt"
  : >"$build/CTestTestfile.cmake"
  while [ $# -gt 0 ]; do
    printf '#!/bin/bash\n%s\n' "$2" >"$build/$1.sh"
    printf 'add_test(%s bash "%s")\nset_tests_properties(%s PROPERTIES LABELS gpu SKIP_REGULAR_EXPRESSION "SKIPPED ]")\n' \
      "$1" "$build/$1.sh" "$1" >>"$build/CTestTestfile.cmake"
    shift 2
  done
}

# ---- Wrong usage
expect 2 chekc
said 'unknown stage or option "chekc"'
expect 2 --dyr
said 'unknown stage or option "--dyr"'
expect 2 --out
said '--out needs a value'
expect 2 --limit soon
said 'expected a number of seconds'
expect 2 --dry --out /dev/null/out build
said 'cannot write to /dev/null/out'

# ---- Nothing to run with
expect 3 --out "$work/none" check
said 'no GPU was found'
[ ! -e "$work/none/run.tsv" ] || fail "a run without a GPU wrote facts"
expect 3 --dry --out "$work/no build" --build "$work/no such build" check
said 'holds no complete build'

# ---- A dry run, stage by stage: one report, which is never one of a GPU
make_build "$work/good" "4.7 4.6" Good.PassesOnGpu 'exit 0' Good.SkipsOnGpu 'printf "x.cpp:1: Skipped\nGPUs: none|0\n[  SKIPPED ] x\n"' \
  GoodFaultsOnGpu.Ends 'echo fault'
expect 0 --dry --out "$work/dry" --build "$work/good" check
[ ! -e "$work/good/Testing" ] || fail "ctest wrote into the build folder"
only_report "$work/dry"
[[ $report == */dry_run_????-??-??.md ]] || fail "a dry run's report is $report"
reported '| tests | passed |'
reported '1 passed, 1 skipped'
reported '1 times: GPUs: none'
expect 0 --dry --out "$work/dry" --build "$work/good" fault
only_report "$work/dry"
reported 'dry run: no GPU was used'
reported 'loss 4.7000 before, 4.6000 after 3 steps'
reported '| faults | passed |'
reported '| bench | not run |  |'
with=gpu expect 2 --out "$work/dry" --build "$work/good" check
said 'holds a report about "dry run", and this would be one about "NVIDIA Fake 80GB"'

# ---- With a GPU; which tests may be skipped is the tests' business (LOCKSTEP_FORBID_SKIPS)
make_build "$work/forbids" "4.7 3.1" Good.OnGpu '[ "$LOCKSTEP_FORBID_SKIPS" = 1 ] && [ -z "${CUDA_VISIBLE_DEVICES+set}" ]'
with=gpu expect 0 --out "$work/with gpu" --build "$work/forbids" check
only_report "$work/with gpu"
[[ $report == */nvidia_fake_80gb_????-??-??.md ]] || fail "a GPU's report is $report"
reported '# NVIDIA Fake 80GB'
reported 'loss 4.7000 before, 3.1000 after 300 steps'
if ! PATH=$PATH:/usr/local/cuda/bin command -v compute-sanitizer >/dev/null; then
  reported 'compute-sanitizer was not found'
fi
! grep -q 'dry run' "$report" || fail "a report with a GPU speaks of a dry run"
expect 2 --dry --out "$work/with gpu" --build "$work/good" check
with=gpu expect 1 --out "$work/with gpu" --build "$work/good" check  # the loss does not fall
only_report "$work/with gpu"
reported 'expected a fall by a fifth'
with=gpu expect 1 --out "$work/no faults" --build "$work/forbids" fault
said 'no test of this kind was found'

# ---- If memcheck finds something, the stage fails
mkdir "$work/gpu and tools"
cp "$work/gpu/nvidia-smi" "$work/gpu and tools"
cat >"$work/gpu and tools/compute-sanitizer" <<'TOOL'
#!/bin/bash
[ "$1 $2 $3 $4 $5 $6 $PYTORCH_NO_CUDA_MEMORY_CACHING" = "--tool memcheck --target-processes all --error-exitcode 9 1" ] || exit 2
"${@:7}" || exit
[ ! -e "$(dirname "$0")/finds" ] || { echo "========= ERROR SUMMARY: 1 error"; exit 9; }
echo "========= ERROR SUMMARY: 0 errors"
TOOL
chmod +x "$work/gpu and tools/compute-sanitizer"
with="gpu and tools" expect 0 --out "$work/sanitized" --build "$work/forbids" check
only_report "$work/sanitized"
reported '| ERROR SUMMARY: 0 errors |'
touch "$work/gpu and tools/finds"
with="gpu and tools" expect 1 --out "$work/sanitized" --build "$work/forbids" check
only_report "$work/sanitized"
reported 'exit status 9; ERROR SUMMARY: 1 error; memcheck.log'

# ---- A failed test is named with its message, and the stage goes on
make_build "$work/failing" "4 3" Broken.TestOnGpu 'printf "x.cpp:7: Failure\nExpected: 1\n  Actual: 2\n"; exit 1' Good.OnGpu 'exit 0' \
  Ends.BadlyOnGpu 'kill -SEGV $$'
expect 1 --dry --out "$work/failed" --build "$work/failing" check
only_report "$work/failed"
reported '1 passed, 2 failed'
reported '`Broken.TestOnGpu` failed'
reported '  Actual: 2'
reported '`Ends.BadlyOnGpu` failed'
reported '| training | passed |'
reported '| check | failed |'

# ---- The limit ends a stage with all that it started, in sessions of their own as well; what was found is kept
make_build "$work/hanging" "4 3" Good.OnGpu 'exit 0' Hangs.OnGpu 'setsid sleep 7771 & sleep 7772' Later.OnGpu 'exit 0'
expect 4 --dry --limit 9 --out "$work/hung" --build "$work/hanging" check
only_report "$work/hung"
reported '2 passed, 1 failed of 3; the tests were stopped after'
reported '`Hangs.OnGpu` failed'
gone 7771
gone 7772

# ---- What a fault test leaves behind is reported and ended
make_build "$work/leaving" "4 3" LeavesFaultsOnGpu.ADaemon 'setsid sleep 7773 >/dev/null 2>&1 & sleep 0.1'
expect 1 --dry --out "$work/left" --build "$work/leaving" fault
only_report "$work/left"
reported '| nothing left running | failed |'
reported 'sleep 7773'
gone 7773

# ---- Benchmarks: each has its own time, and the table that it prints or writes is in the report
echo "LOCKSTEP_BUILD_BENCHMARKS:BOOL=ON" >>"$work/good/CMakeCache.txt"
cat >"$project/tests/benchmarks/gpu_a.py" <<'PYTHON'
import sys
print("| printed | " + " ".join(sys.argv[5:]) + " |")
print("no GPU", file=sys.stderr)
PYTHON
cat >"$project/tests/benchmarks/gpu_b.py" <<'PYTHON'
import sys
open(sys.argv[4] + "/any name.md", "w").write("# Title\n| written |\n")
print("| not shown |")
sys.exit("gpu_b: it fails")
PYTHON
printf 'import time\ntime.sleep(7774)\n' >"$project/tests/benchmarks/gpu_c.py"
expect 4 --dry --limit 9 --out "$work/bench" --build "$work/good" bench
only_report "$work/bench"
reported '| printed | --device cpu --seconds 1 |'
reported '| written |'
! grep -q 'not shown' "$report" || fail "a benchmark's table is there twice"
reported 'gpu_b: it fails'
reported '| gpu_c | time limit |'

# ---- A build that fails ends with its first error
cat >"$work/good/build.ninja" <<'NINJA'
rule fails
  command = echo "x.cpp:1: error: no such thing"; false
build gpu_run: fails
NINJA
printf 'CMAKE_PROJECT_NAME:STATIC=fake\nCMAKE_GENERATOR:INTERNAL=Ninja\n' >>"$work/good/CMakeCache.txt"
echo "CMAKE_MAKE_PROGRAM:FILEPATH=$(command -v ninja)" >>"$work/good/CMakeCache.txt"
expect 1 --dry --out "$work/build" --build "$work/good" build
only_report "$work/build"
reported '| build | failed |'
reported 'error: no such thing'
echo passed
