#!/usr/bin/env bash
# Puts in place what building needs: Debian packages and LibTorch. Source it, and LOCKSTEP_LIBTORCH is set; run it, and it prints
# that folder. What is there already is left alone, so calling it again costs nothing.
#
# `cmake/setup.sh --bundle FOLDER` collects for a machine without internet what building needs besides a compiler, CMake, Ninja and
# LibTorch. There the folder is named in CMAKE_PREFIX_PATH; then this script installs and fetches nothing, and says what is missing.
#
# LibTorch is, first match wins: $LOCKSTEP_LIBTORCH (the folder of an unpacked LibTorch, or .../site-packages/torch), an entry of
# $CMAKE_PREFIX_PATH, the torch of `python3`, or an own copy under ${XDG_CACHE_HOME:-~/.cache}/lockstep, fetched when missing.

lockstep_libtorch_version=2.11
lockstep_wheel=2.11.0
lockstep_cuda_headers=('nvidia-cuda-crt==13.0.*' 'nvidia-cuda-cccl==13.0.*') # CUDA's own headers include these

lockstep_say() { printf 'setup: %s\n' "$*" >&2; }

lockstep_library_packages=(libfmt-dev nlohmann-json3-dev libtomlplusplus-dev libgtest-dev libgmock-dev libbenchmark-dev)
lockstep_bundle_stamp=lockstep-bundle.txt  # written last: a bundle is complete or none

# The folder of a bundle that CMAKE_PREFIX_PATH names.
lockstep_bundle() {
  local folder prefixes
  IFS=: read -r -a prefixes <<<"${CMAKE_PREFIX_PATH:-}"
  for folder in ${prefixes[@]+"${prefixes[@]}"}; do
    if [ -e "$folder/$lockstep_bundle_stamp" ]; then
      printf '%s\n' "$folder"
      return 0
    fi
  done
  return 1
}

lockstep_missing_tools() {
  local tool
  for tool in c++ cmake ninja python3; do
    command -v "$tool" >/dev/null || printf '%s\n' "$tool"
  done
}

lockstep_install_packages() {
  local packages=(g++ cmake make ninja-build "${lockstep_library_packages[@]}" python3 python3-venv ca-certificates git)
  local missing=() package bundle
  if bundle=$(lockstep_bundle); then
    mapfile -t missing < <(lockstep_missing_tools)
    if [ ${#missing[@]} -eq 0 ]; then
      return 0
    fi
    lockstep_say "not found: ${missing[*]}. With the bundle $bundle in CMAKE_PREFIX_PATH nothing is installed: load these programs" \
      "(g++ 12 or newer, CMake 3.25 or newer, Ninja, Python 3), for example with \`module load\`"
    return 1
  fi
  if ! command -v apt-get >/dev/null || ! command -v dpkg-query >/dev/null; then
    mapfile -t missing < <(lockstep_missing_tools)
    if [ ${#missing[@]} -eq 0 ]; then
      return 0
    fi
    lockstep_say "not found: ${missing[*]}. This script installs packages on Debian and Ubuntu only; elsewhere install by hand:" \
      "g++ 12 or newer, CMake 3.25 or newer, Ninja, fmt, nlohmann-json, toml++, GoogleTest, Google Benchmark, Python 3 with venv" \
      "(the libraries can come in a bundle: \"On a cluster without internet\" in docs/getting_started.md)"
    return 1
  fi

  for package in "${packages[@]}"; do
    [ "$(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null)" = installed ] || missing+=("$package")
  done
  if [ ${#missing[@]} -eq 0 ]; then
    return 0
  fi
  local as_root=()
  if [ "$(id -u)" -ne 0 ]; then
    if command -v sudo >/dev/null && { sudo -n true 2>/dev/null || [ -t 0 ]; }; then
      as_root=(sudo)
    else
      lockstep_say "packages are missing, and only root can install them. Type this, then start again:"
      printf '  su -c "apt-get update && apt-get install -y %s"\n' "${missing[*]}" >&2
      return 1
    fi
  fi
  lockstep_say "installing Debian packages: ${missing[*]}"
  "${as_root[@]}" apt-get update -q >&2 &&
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends "${missing[@]}" >&2
}

# Packages that only some tests need, named by $lockstep_optional_packages. Where they cannot be installed those tests are skipped, and
# say so. Their services are not started: the tests start daemons of their own.
lockstep_install_optional() {
  local missing=() package policy=/usr/sbin/policy-rc.d own_policy=
  for package in ${lockstep_optional_packages:-}; do
    [ "$(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null)" = installed ] || missing+=("$package")
  done
  if [ ${#missing[@]} -eq 0 ]; then
    return 0
  fi
  if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null || lockstep_bundle >/dev/null; then
    lockstep_say "not installed, and some tests are skipped without: ${missing[*]}"
    return 0
  fi
  lockstep_say "installing for the tests: ${missing[*]}"
  if [ ! -e "$policy" ]; then
    own_policy=$policy
    printf '#!/bin/sh\nexit 101\n' >"$policy" && chmod +x "$policy"
  fi
  { apt-get update -q && DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends "${missing[@]}"; } >&2 ||
    lockstep_say "apt-get failed (above); some tests are skipped"
  if [ -n "$own_policy" ]; then
    rm -f "$own_policy"
  fi
}

# Whether the folder holds a LibTorch, of the version we build against.
lockstep_is_libtorch() {
  local folder=$1 header major minor
  [ -e "$folder/lib/libtorch_cpu.so" ] || return 1
  for header in torch/headeronly/version.h torch/csrc/api/include/torch/version.h torch/version.h; do
    header=$folder/include/$header
    if [ -e "$header" ]; then
      major=$(sed -n 's/^#define TORCH_VERSION_MAJOR *//p' "$header")
      minor=$(sed -n 's/^#define TORCH_VERSION_MINOR *//p' "$header")
      [ "$major.$minor" = "$lockstep_libtorch_version" ]
      return
    fi
  done
  return 1
}

# Asks without importing: that would take seconds.
lockstep_python_torch() {
  "$1" -c 'import importlib.util as u; print(u.find_spec("torch").submodule_search_locations[0])' 2>/dev/null
}

lockstep_pip() {
  "$1/bin/python" -m pip install --disable-pip-version-check --no-cache-dir "${@:2}" >&2
}

lockstep_has_cuda_headers() {
  compgen -G "$1/lib/python*/site-packages/nvidia/cu*/include/nv/target" >/dev/null ||
    [ -e "${CUDA_HOME:-/usr/local/cuda}/include/nv/target" ]
}

# Without them the part for GPUs is left out, and CMake says why.
lockstep_fetch_cuda_headers() {
  lockstep_has_cuda_headers "$1" || lockstep_pip "$1" "${lockstep_cuda_headers[@]}" ||
    lockstep_say "pip could not fetch ${lockstep_cuda_headers[*]}, so the part for GPUs cannot be built; start again to retry"
}

# pip into a folder that counts only once its stamp is written: what an interrupted run left is thrown away.
lockstep_fetch_libtorch() {
  local cache=$1 folder=$2 free_mib
  mkdir -p "$cache" || return 1
  exec 9>"$folder.lock" || return 1
  if ! flock -n 9; then
    lockstep_say "another set-up is fetching LibTorch; waiting for it"
    flock 9 || return 1
  fi
  if [ -e "$folder/complete" ]; then
    lockstep_fetch_cuda_headers "$folder"
    return 0
  fi
  free_mib=$(df -Pm "$cache" | awk 'NR == 2 { print $4 }')
  if [ "$free_mib" -lt 8000 ]; then
    lockstep_say "LibTorch needs 8 GB in $cache while it is unpacked, $free_mib MB are free; set XDG_CACHE_HOME to a folder with room"
    return 1
  fi
  lockstep_say "fetching LibTorch $lockstep_wheel into $folder: 1 to 2 minutes, 4.7 GB on disk"
  rm -rf "$folder"
  python3 -m venv "$folder" >&2 || return 1
  # The other two are small: the tests open our files with them.
  if ! lockstep_pip "$folder" "torch==$lockstep_wheel" numpy safetensors; then
    lockstep_say "pip could not fetch torch==$lockstep_wheel (above); start again to retry, or set LOCKSTEP_LIBTORCH to a LibTorch"
    return 1
  fi
  touch "$folder/complete"
  lockstep_fetch_cuda_headers "$folder"
}

lockstep_find_libtorch() {
  local folder prefixes
  if [ -n "${LOCKSTEP_LIBTORCH:-}" ]; then
    lockstep_is_libtorch "$LOCKSTEP_LIBTORCH" && return 0
    lockstep_say "LOCKSTEP_LIBTORCH=$LOCKSTEP_LIBTORCH is not the folder of a LibTorch $lockstep_libtorch_version" \
      "(its include/ and lib/libtorch_cpu.so); correct it, or unset it to have LibTorch found or fetched"
    return 1
  fi
  IFS=: read -r -a prefixes <<<"${CMAKE_PREFIX_PATH:-}"
  for folder in "${prefixes[@]%/share/cmake}" "$(lockstep_python_torch python3)"; do
    if [ -n "$folder" ] && lockstep_is_libtorch "$folder"; then
      LOCKSTEP_LIBTORCH=$folder
      return 0
    fi
  done

  local cache=${XDG_CACHE_HOME:-$HOME/.cache}/lockstep
  local own=$cache/libtorch-$lockstep_wheel bundle
  if [ ! -e "$own/complete" ] && bundle=$(lockstep_bundle); then
    lockstep_say "found no LibTorch $lockstep_libtorch_version. With the bundle $bundle in CMAKE_PREFIX_PATH nothing is fetched: set" \
      "LOCKSTEP_LIBTORCH to its folder, or make python3 the one that has torch $lockstep_wheel"
    return 1
  fi
  if [ ! -e "$own/complete" ] || ! lockstep_has_cuda_headers "$own"; then
    (lockstep_fetch_libtorch "$cache" "$own") || return 1
  fi
  LOCKSTEP_LIBTORCH=$(lockstep_python_torch "$own/bin/python")
  lockstep_is_libtorch "$LOCKSTEP_LIBTORCH" && return 0
  lockstep_say "$own holds no LibTorch $lockstep_libtorch_version; delete that folder and start again"
  return 1
}

# The files of a Debian package: copied where it is installed, downloaded otherwise. Prints the packages of the same source that it
# belongs to, such as the shared library.
lockstep_unpack() {
  local package=$1 folder=$2 depends debs
  if [ "$(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null)" = installed ]; then
    dpkg -L "$package" | sed -n '/^\/usr\/\(include\|lib\|share\/cmake\)\//s|^/||p' |
      (cd / && while IFS= read -r file; do [ -d "$file" ] && [ ! -L "$file" ] || printf '%s\0' "$file"; done |
        tar -c --null -T - -f - | tar -x -C "$folder" -f -) || return 1
    depends=$(dpkg-query -W -f='${Depends}' "$package")
  else
    mkdir -p "$folder/debs" && (cd "$folder/debs" && apt-get -q -o APT::Sandbox::User=root download "$package" >&2) || return 1
    debs=("$folder/debs/${package}_"*.deb)
    dpkg-deb -x "${debs[0]}" "$folder" && depends=$(dpkg-deb -f "${debs[0]}" Depends) || return 1
  fi
  tr ',' '\n' <<<"$depends" | sed -n 's/^ *\(lib[^ ]*\) (= .*/\1/p'
}

# FOLDER becomes a prefix for CMAKE_PREFIX_PATH. CMake looks into lib/x86_64-linux-gnu/cmake only on Debian and its relatives; elsewhere
# it finds the files through others in lib/cmake.
lockstep_fill_bundle() (
  set -euo pipefail
  folder=$1
  mkdir -p "$folder/unpacked"
  packages=("${lockstep_library_packages[@]}")
  for ((i = 0; i < ${#packages[@]}; ++i)); do
    more=$(lockstep_unpack "${packages[i]}" "$folder/unpacked")
    for package in $more; do
      [[ " ${packages[*]} " == *" $package "* ]] || packages+=("$package")
    done
  done
  for part in include lib share/cmake; do
    mkdir -p "$folder/$(dirname "$part")"
    mv "$folder/unpacked/usr/$part" "$folder/$part"
  done
  rm -rf "$folder/unpacked"
  for config in "$folder"/lib/*-linux-gnu*/cmake/*/*[cC]onfig*.cmake; do
    name=${config#"$folder/lib/"}
    forwarder=$folder/lib/cmake/${name#*/cmake/}
    mkdir -p "$(dirname "$forwarder")"
    printf 'include("${CMAKE_CURRENT_LIST_DIR}/../../%s")\n' "$name" >"$forwarder"
  done
  (cd "$folder" && ls -d include/{fmt,nlohmann,toml++,gtest,gmock,benchmark} \
    share/cmake/nlohmann_json lib/cmake/{fmt,tomlplusplus,GTest,benchmark}) >/dev/null
  { . /etc/os-release && printf '%s, %s\n' "$PRETTY_NAME" "$(uname -m)"; printf '%s\n' "${packages[@]}"; } \
    >"$folder/$lockstep_bundle_stamp"
)

lockstep_make_bundle() {
  local folder=$1 partial
  folder=$(realpath -m -- "$folder")
  partial=$folder.partial
  if [ -e "$folder/$lockstep_bundle_stamp" ]; then
    lockstep_say "$folder is complete already"
  elif [ -n "$(ls -A -- "$folder" 2>/dev/null)" ] || { [ -e "$folder" ] && [ ! -d "$folder" ]; }; then
    lockstep_say "$folder is not empty and no bundle; name a new folder"
    return 1
  elif ! command -v apt-get >/dev/null || ! command -v dpkg-deb >/dev/null; then
    lockstep_say "a bundle is made of Debian packages, and apt-get and dpkg-deb were not found: make it on Debian or Ubuntu"
    return 1
  else
    rm -rf -- "$partial"
    # Not as a condition: that would switch the subshell's `set -e` off.
    lockstep_fill_bundle "$partial"
    # shellcheck disable=SC2181
    if [ $? -ne 0 ]; then
      rm -rf -- "$partial"
      lockstep_say "no bundle was made (above): if a package cannot be located, run \`apt-get update\` as root first; if no space is" \
        "left, name a folder on another disk"
      return 1
    fi
    rmdir -- "$folder" 2>/dev/null
    mv -T -- "$partial" "$folder" || return 1
  fi
  lockstep_say "$(du -sh -- "$folder" | cut -f1) in $folder, of $(head -1 "$folder/$lockstep_bundle_stamp"). Copy it to the other" \
    "machine and name it there: export CMAKE_PREFIX_PATH=FOLDER"
}

# Sourced, the arguments are those of the calling script.
if [ "${BASH_SOURCE[0]}" = "$0" ] && [ $# -gt 0 ]; then
  if [ "$1" != --bundle ] || [ $# -ne 2 ] || [ -z "$2" ]; then
    lockstep_say "usage: cmake/setup.sh [--bundle FOLDER]"
    exit 2
  fi
  lockstep_make_bundle "$2"
  exit
fi
if ! lockstep_install_packages || ! lockstep_install_optional || ! lockstep_find_libtorch; then
  # shellcheck disable=SC2317  # sourced it returns, run it exits
  return 1 2>/dev/null || exit 1
fi
LOCKSTEP_LIBTORCH=$(realpath "$LOCKSTEP_LIBTORCH")
export LOCKSTEP_LIBTORCH
if [ "${BASH_SOURCE[0]}" = "$0" ]; then
  printf '%s\n' "$LOCKSTEP_LIBTORCH"
fi
