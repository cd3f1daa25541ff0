#!/usr/bin/env bash
# Installs a DEB with apt in a copy of this system, starts its tools there, and removes it again. The copy is an overlay in a mount
# namespace: nothing is left of it. Needs root; without it says so.
# apt_install.sh DEB EMPTY_FOLDER
set -euo pipefail
deb=$1
folder=$2
mkdir -p "$folder"
if [ "${3:-}" != inside ]; then
  if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null || ! unshare --mount true 2>/dev/null; then
    echo "no root, apt-get or mount namespace here: the DEB was not installed by apt"
    exit 0
  fi
  exec unshare --mount "$0" "$deb" "$folder" inside
fi

mount -t tmpfs tmpfs "$folder"
root=$folder/root
mkdir "$folder/changes" "$folder/work" "$root"
if ! mount -t overlay overlay -o "lowerdir=/,upperdir=$folder/changes,workdir=$folder/work" "$root" 2>/dev/null; then
  echo "no overlay file system here: the DEB was not installed by apt"
  exit 0
fi
mount -t proc proc "$root/proc"
mount --rbind /dev "$root/dev"
mount -t tmpfs tmpfs "$root/tmp"
cp "$deb" "$root/tmp/lockstep.deb"
chmod 644 "$root/tmp/lockstep.deb"

inside() { chroot "$root" /usr/bin/env PATH=/usr/sbin:/usr/bin:/sbin:/bin DEBIAN_FRONTEND=noninteractive "$@"; }
fail() { echo "$1"; exit 1; }
[ ! -e "$root/usr/bin/lockstep" ] || fail "/usr/bin/lockstep is there before the installation"
inside apt-get install -q -y --no-install-recommends /tmp/lockstep.deb
[ -z "$(inside dpkg --verify lockstep)" ] || fail "dpkg --verify finds changed files"
grep -q 'liblockstep\.so\.' <<<"$(inside ldconfig -p)" || fail "ldconfig does not know the library: its trigger did not run"
inside lockstep --version
inside lockstep run --nproc-per-node 2 -- true
grep -q '"failures":' <<<"$(inside lockstep doctor --run-dir /tmp --json)" || fail "lockstep doctor does not work"
files=$(inside dpkg --listfiles lockstep | grep -v '/$')
inside apt-get remove -q -y lockstep
while read -r file; do
  [ -d "$root$file" ] || [ ! -e "$root$file" ] || fail "$file is left after the removal"
done <<<"$files"
echo "apt installed and removed it"
