#!/usr/bin/env bash
# Builds with a bundle of cmake/setup.sh where there is no internet and no Debian package of a library: in a network namespace without
# a route, and in a mount namespace that hides the packages.
# Usage: offline_test.sh WORK LIBTORCH [--hidden]     with LOCKSTEP_TEST_ROUNDS=100 it builds the library as well
set -euo pipefail
work=$1
libtorch=$2
source=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
bundle="$work/copied bundle"
log=$work/log

fail() {
  printf 'FAILED: %s\n' "$*"
  tail -n 30 "$log" 2>/dev/null
  exit 1
}
skip() {
  printf 'SKIPPED: %s\n' "$*"
  exit 0
}

make_bundle() {
  local made="$work/made here"
  rm -rf "$work"
  mkdir -p "$work/full"
  : >"$work/full/a file"
  if bash "$source/cmake/setup.sh" --bundle "$work/full" 2>"$log"; then fail "a folder with other files became a bundle"; fi
  grep -q 'is not empty and no bundle' "$log" || fail "no word about the other files"
  if bash "$source/cmake/setup.sh" --bundel "$made" 2>"$log"; then fail "a wrong flag was accepted"; fi

  # A full disk leaves nothing behind.
  mkdir "$work/small"
  mount -t tmpfs -o size=256k tmpfs "$work/small"
  if bash "$source/cmake/setup.sh" --bundle "$work/small/bundle" 2>"$log"; then fail "a bundle of 256 KiB was made"; fi
  grep -q 'no bundle was made' "$log" || fail "no word about the full disk"
  [ -z "$(ls -A "$work/small")" ] || fail "a part of a bundle was left: $(ls -A "$work/small")"

  bash "$source/cmake/setup.sh" --bundle "$made" 2>"$log" || fail "no bundle"
  bash "$source/cmake/setup.sh" --bundle "$made" 2>"$log" || fail "no bundle at the second call"
  grep -q 'is complete already' "$log" || fail "the second call made it again"
  mv "$made" "$bundle"  # it must work where it was not made
}

hide_packages() {
  local folder libraries
  libraries=/usr/lib/$(gcc -print-multiarch)
  mkdir -p "$work/empty"
  : >"$work/empty file"
  for folder in /usr/include/{fmt,nlohmann,toml++,gtest,gmock,benchmark} /usr/share/cmake/nlohmann_json \
    "$libraries"/cmake/{fmt,tomlplusplus,GTest,benchmark}; do
    [ ! -d "$folder" ] || mount --bind "$work/empty" "$folder"
  done
  for file in "$libraries"/lib{gtest,gtest_main,gmock,gmock_main}.a "$libraries"/lib{fmt,benchmark,tomlplusplus}.so \
    /var/lib/dpkg/status; do
    [ ! -e "$file" ] || mount --bind "$work/empty file" "$(realpath "$file")"
  done
  [ "$(wc -l </proc/net/route)" -le 1 ] || fail "the network namespace has a route"
}

configure() {
  cmake -G Ninja -S "$source" -B "$work/build" -D LOCKSTEP_UNITY=ON -D LOCKSTEP_BUILD_BENCHMARKS=ON -D CMAKE_BUILD_TYPE=Release \
    >"$log" 2>&1
}

# The control: without the bundle neither the set-up nor the configuration succeeds.
refused_without_bundle() {
  unset CMAKE_PREFIX_PATH
  if bash "$source/cmake/setup.sh" >"$log" 2>&1; then fail "setup.sh succeeds without a bundle: the packages are not hidden"; fi
  if configure; then fail "the configuration succeeds without a bundle: the packages are not hidden"; fi
  grep -q 'fmt' "$log" || fail "the configuration failed for another reason"
  rm -rf "$work/build"
}

set_up_installs_nothing() {
  [ "$(bash "$source/cmake/setup.sh" 2>"$log")" = "$(realpath "$libtorch")" ] || fail "setup.sh did not find LibTorch"
  [ ! -s "$log" ] || fail "setup.sh had something to do"
  # Neither does it fetch LibTorch.
  mkdir -p "$work/no torch"
  printf '#!/bin/sh\nexit 1\n' >"$work/no torch/python3"
  chmod +x "$work/no torch/python3"
  if (unset LOCKSTEP_LIBTORCH && HOME=$work/home XDG_CACHE_HOME='' PATH="$work/no torch:$PATH" \
    bash "$source/cmake/setup.sh" >"$log" 2>&1); then
    fail "setup.sh found a LibTorch where there is none"
  fi
  grep -q 'nothing is fetched' "$log" || fail "no word about the missing LibTorch"
}

# A project of its own finds and uses every package, on Debian's paths and on those of the other distributions.
packages_work() {
  local project=$work/packages architecture
  mkdir -p "$project"
  cat >"$project/CMakeLists.txt" <<'PROJECT'
cmake_minimum_required(VERSION 3.25)
project(packages LANGUAGES CXX)
if(NO_ARCHITECTURE)
  unset(CMAKE_LIBRARY_ARCHITECTURE)
endif()
foreach(package fmt nlohmann_json tomlplusplus GTest benchmark)
  find_package(${package} REQUIRED)
endforeach()
add_executable(all_packages main.cpp)
target_compile_features(all_packages PRIVATE cxx_std_20)
target_link_libraries(all_packages PRIVATE fmt::fmt nlohmann_json::nlohmann_json GTest::gmock_main benchmark::benchmark)
target_include_directories(all_packages PRIVATE $<TARGET_PROPERTY:tomlplusplus::tomlplusplus,INTERFACE_INCLUDE_DIRECTORIES>)
PROJECT
  cat >"$project/main.cpp" <<'PROJECT'
#include <benchmark/benchmark.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <nlohmann/json.hpp>
#include <toml++/toml.h>
TEST(Bundle, Works) {
  EXPECT_EQ(fmt::format("{}", nlohmann::json::parse("[1]").size()), "1");
  EXPECT_EQ(*toml::parse("a = 1")["a"].value<int>(), 1);
  EXPECT_THAT(benchmark::CPUInfo::Get().num_cpus, testing::Gt(0));
}
PROJECT
  for architecture in OFF ON; do
    cmake -G Ninja -S "$project" -B "$project/$architecture" -D NO_ARCHITECTURE=$architecture >"$log" 2>&1 || fail "packages: configure"
  done
  cmake --build "$project/ON" >"$log" 2>&1 || fail "packages: build"
  "$project/ON/all_packages" >"$log" 2>&1 || fail "packages: run"
  ldd "$project/ON/all_packages" >"$log"
  grep -q "libfmt.*$bundle" "$log" || fail "fmt does not come from the bundle"
}

if [ "${3:-}" = --hidden ]; then
  hide_packages
  export LOCKSTEP_LIBTORCH=$libtorch
  refused_without_bundle
  export CMAKE_PREFIX_PATH=$bundle
  set_up_installs_nothing
  packages_work
  configure || fail "lockstep: configure"
  targets=(structure_tests)
  if [ "${LOCKSTEP_TEST_ROUNDS:-1}" -ge 100 ]; then
    targets+=(lockstep_installed sampler_bench)
  fi
  cmake --build "$work/build" --parallel "$(nproc)" --target "${targets[@]}" >"$log" 2>&1 || fail "lockstep: build ${targets[*]}"
  "$work/build/tests/structure/structure_tests" --gtest_filter='IncludeDirection.*' >"$log" 2>&1 || fail "structure_tests"
  printf 'built without internet and without packages: %s\n' "${targets[*]}"
  exit
fi

[ "$(id -u)" -eq 0 ] || skip "hiding the packages needs root"
unshare -mn true 2>/dev/null || skip "no mount or network namespace can be made here"
command -v apt-get >/dev/null && command -v dpkg-deb >/dev/null || skip "a bundle is made on Debian or Ubuntu"
if [ -z "${IN_NAMESPACE:-}" ]; then
  # What is mounted ends with the namespace.
  IN_NAMESPACE=1 exec unshare -m bash "$0" "$@"
fi
make_bundle
exec unshare -mn bash "$0" "$work" "$libtorch" --hidden
