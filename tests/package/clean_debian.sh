#!/usr/bin/env bash
# The packages of a build, as the documents say, on Debian 12 systems that have nothing else: programs are built there, train with two
# ranks and resume. The systems are made by mmdebstrap below WORK, a new folder that is removed at the end; what is mounted ends with a
# mount namespace.
# clean_debian.sh BUILD LIBTORCH WORK             the TGZ, and the DEB installed by apt
# clean_debian.sh --devcontainer WORK             the commands of .devcontainer, in a clone: fetches LibTorch, takes an hour or two
# Needs root, the internet and mmdebstrap, and takes minutes: without LOCKSTEP_TEST_ROUNDS=100 it only says so.
set -euo pipefail
source=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
page=$source/docs/packaging.md

skip() {
  printf 'SKIPPED: %s\n' "$*"
  exit 0
}
fail() {
  printf 'FAILED: %s\n' "$*"
  exit 1
}
step() { printf '\n== %s (%s s)\n' "$*" "$SECONDS"; }

case "$#:${1:-}" in
  2:--devcontainer | 3:[!-]*) work=$(realpath -m -- "${*: -1}") ;;
  *) work= ;;
esac
[ -n "$work" ] || fail "the arguments are BUILD LIBTORCH WORK, or --devcontainer WORK"
made_here=$work/made_by_clean_debian

# A Debian 12 with what debian:12 has.
new_root() {
  mmdebstrap --quiet --mode=root --variant=minbase --dpkgopt=force-unsafe-io bookworm "$1"
  cp /etc/resolv.conf "$1/etc/resolv.conf"
  # Authorities that the administrator of this machine has added; the package ca-certificates takes them.
  mkdir -p "$1/usr/local/share/ca-certificates"
  find /usr/local/share/ca-certificates -name '*.crt' -exec cp {} "$1/usr/local/share/ca-certificates" \;
  mount --bind "$1" "$1"
  mount -t proc proc "$1/proc"
  mount -t sysfs -o ro sysfs "$1/sys"
  mount --rbind /dev "$1/dev"
  mount -t tmpfs tmpfs "$1/dev/shm"
}

# Runs its standard input as a script of bash in a root.
in_root() {
  chroot "$1" /usr/bin/env -i HOME=/root PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8 \
    DEBIAN_FRONTEND=noninteractive http_proxy="${http_proxy:-}" https_proxy="${https_proxy:-}" bash -euxo pipefail -c "$(cat)" </dev/null
}

# LibTorch from its wheel needs the packages beside it.
with_libtorch() {
  mkdir -p "$1/opt/python"
  mount --bind "$(dirname "$libtorch")" "$1/opt/python"
  mount -o remount,bind,ro "$1/opt/python"
  ln -s "python/$(basename "$libtorch")" "$1/opt/libtorch"
}

# The project of "Getting started". Arguments: root, folder of lockstep in it, flags for CMake.
train_and_resume() {
  in_root "$1" <<SCRIPT
cp -r $2/share/doc/lockstep/examples/consumer ~/first
cd ~/first
cmake -B build $3
cmake --build build
build/consumer --nprocs 2 2>&1 | tee first.log
build/consumer --nprocs 2 --max_epochs 6 2>&1 | tee second.log
$2/bin/lockstep verify runs/consumer
$2/bin/lockstep report runs/consumer
$2/bin/lockstep test --nprocs 2
$2/bin/lockstep doctor
SCRIPT
  local logs=$1/root/first
  grep -q 'finished at step .* (--max_epochs 3)' "$logs/first.log" || fail "the first run did not finish"
  grep -q 'resuming from step' "$logs/second.log" || fail "the second run did not resume"
  grep -q 'finished at step .* (--max_epochs 6)' "$logs/second.log" || fail "the second run did not finish"
  [ -s "$logs/runs/consumer/report.html" ] || fail "lockstep report wrote no page"
}

packages() {
  local libraries root told
  mkdir "$work/packages"
  cpack --config "$build/CPackConfig.cmake" -G 'TGZ;DEB' -B "$work/packages" >/dev/null

  step "the TGZ, with the packages that docs/packaging.md names"
  # shellcheck disable=SC2016  # Markdown's
  libraries=$(sed -n 's/.*`apt install \([^`]*\)`.*/\1/p' "$page")
  [ -n "$libraries" ] || fail "docs/packaging.md does not say what the TGZ needs"
  root=$work/tgz
  new_root "$root"
  with_libtorch "$root"
  tar -xzf "$work"/packages/lockstep-*.tar.gz -C "$root/root"
  local prefix
  prefix=$(cd "$root" && echo root/lockstep-*)
  # The control: they are needed.
  if told=$(in_root "$root" <<<"/$prefix/bin/lockstep --version" 2>&1); then fail "the tool starts without $libraries"; fi
  grep -q 'error while loading shared libraries' <<<"$told" || fail "without $libraries the tool ends for another reason: $told"
  in_root "$root" <<<"apt-get update -q && apt-get install -q -y --no-install-recommends $libraries g++ cmake make"
  train_and_resume "$root" "/$prefix" "-D CMAKE_PREFIX_PATH=/$prefix"

  step "the DEB, installed by apt with what it recommends"
  root=$work/deb
  new_root "$root"
  with_libtorch "$root"
  cp "$work"/packages/lockstep_*.deb "$root/tmp"
  in_root "$root" <<<"apt-get update -q && apt-get install -q -y /tmp/lockstep_*.deb"
  train_and_resume "$root" /usr ""
  step "both packages work on a new Debian 12"
}

# What a devcontainer does, without its image: reads the commands, and runs them in a clone.
devcontainer() {
  local root=$work/devcontainer command
  new_root "$root"
  mkdir -p "$root/workspaces"
  git clone --quiet --no-hardlinks "$source" "$root/workspaces/lockstep"
  chown -R 1000:1000 "$root/workspaces/lockstep"  # a user's, as where Docker mounts it
  python3 - "$source/.devcontainer/devcontainer.json" >"$work/commands" <<'SCRIPT'
import json, sys
settings = json.load(open(sys.argv[1]))
assert settings["image"] == "debian:12" and settings["remoteUser"] == "root", settings
print(*(settings[key] for key in ("onCreateCommand", "updateContentCommand", "postCreateCommand") if key in settings), sep="\n")
SCRIPT
  while read -r command <&3; do
    step "$command"
    in_root "$root" <<<"cd /workspaces/lockstep; $command"
  done 3<"$work/commands"
  step "the commands of .devcontainer work on a new Debian 12"
}

if [ "${IN_NAMESPACE:-}" = "$work" ]; then
  if [ "$1" = --devcontainer ]; then
    devcontainer
  else
    build=$1
    libtorch=$2
    packages
  fi
  exit
fi

[ "${LOCKSTEP_TEST_ROUNDS:-1}" -ge 100 ] || skip "making Debian systems takes minutes: set LOCKSTEP_TEST_ROUNDS=100"
[ "$(id -u)" -eq 0 ] || skip "making a Debian system needs root"
unshare --mount --pid --fork true 2>/dev/null || skip "no mount or process namespace can be made here"
command -v mmdebstrap >/dev/null || skip "not found: mmdebstrap, which makes a Debian system"
python3 -c 'import urllib.request as u; u.urlopen("http://deb.debian.org/debian/dists/bookworm/InRelease", timeout=20)' 2>/dev/null ||
  skip "Debian's packages cannot be reached"
if [ -e "$work" ] && [ ! -e "$made_here" ]; then fail "$work exists, and another program made it: name a folder that does not exist"; fi
# Outside of the namespace nothing is mounted below it.
trap 'rm -rf --one-file-system -- "$work"' EXIT
rm -rf --one-file-system -- "$work"
mkdir -p "$work"
touch "$made_here"
IN_NAMESPACE=$work unshare --mount --pid --fork --kill-child "$0" "$@"
