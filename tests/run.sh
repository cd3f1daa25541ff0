#!/usr/bin/env bash
# One command: installs what is missing, builds, runs every test. Arguments go to the last ctest: tests/run.sh -L unit
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# The launchers that tests/integration/launchers_test.cpp starts, what tests/structure checks layout and scripts with, the decoders of
# image_folder(), what packs and checks in tests/package, what makes the manual, a browser that draws pages, and a shell that completes.
lockstep_optional_packages="openmpi-bin mpich slurm-wlm munge iproute2 clang-format-14 shellcheck libspng-dev libturbojpeg0-dev dpkg-dev lintian pkgconf groff-base mkdocs mkdocs-material chromium zsh"
# shellcheck source=cmake/setup.sh
source cmake/setup.sh

# The torch-free half under sanitizers, and every header of it alone.
cmake --workflow --preset core

cmake --preset ci
cmake --build --preset ci

# Why a test was skipped stands between ctest's list and its summary.
log=$(mktemp)
trap 'rm -f "$log"' EXIT
status=0
# The background of a script ignores the first two, nohup the third, and tests send them.
env --default-signal=INT,QUIT,HUP ctest --preset ci "$@" | tee "$log" | sed '/^[0-9]*% tests passed/,$d' || status=$?
# A test that starts ctest in this folder would have written another log.
ran=$(sed -n 's/^.* tests failed out of \([0-9]*\)$/\1/p' "$log" | tail -n 1)
if [ "$(grep -ac '^[0-9]*/[0-9]* Testing: ' build/ci/Testing/Temporary/LastTest.log)" -lt "${ran:-1}" ]; then
  echo "LastTest.log has not all of the $ran tests"
  status=1
fi
sed -n -e '/: Skipped$/,/^\[  SKIPPED \]/p' -e '/^SKIPPED: /p' build/ci/Testing/Temporary/LastTest.log
sed -n '/^[0-9]*% tests passed/,$p' "$log"
# ctest takes the tests of a suite that cannot be set up for skipped ones.
if grep '^\[  FAILED  \].*SetUpTestSuite' build/ci/Testing/Temporary/LastTest.log; then
  status=1
fi
exit "$status"
