#!/usr/bin/env bash
# Makes a real image for the demo: Debian with python3 and git, as an OCI layout of three layers that
# have hard links, whiteouts and a replaced directory. Usage: make_image.sh LAYOUT (made once, kept).
set -euo pipefail

layout=$1
[ -e "$layout/index.json" ] && exit 0
parent=$(dirname "$layout")
mkdir -p "$parent"
work=$(mktemp -d "$parent/make-image-XXXXXX")
trap 'rm -rf "$work"' EXIT
say() { printf '   %s\n' "$*" >&2; }

# The mirror that this machine's apt uses; mmdebstrap's own default where apt names none.
suite=bookworm
mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' "Codename: $suite" 2>/dev/null | head -n 1)

say "layer 1: Debian minbase (mmdebstrap)"
mmdebstrap --quiet --mode=root --variant=minbase --format=tar $suite "$work/base.tar" ${mirror:+"$mirror"}
umoci init --layout "$work/oci"
umoci new --image "$work/oci:1"
umoci raw add-layer --image "$work/oci:1" "$work/base.tar"
rm "$work/base.tar"
umoci unpack --image "$work/oci:1" "$work/bundle"
root=$work/bundle/rootfs

say "layer 2: python3 and git (apt in a chroot)"
unshare --mount bash -euo pipefail -c '
  mount -t proc proc "$1/proc"
  cp /etc/resolv.conf "$1/etc/resolv.conf" 2>/dev/null || true
  export DEBIAN_FRONTEND=noninteractive DEBCONF_NOWARNINGS=yes
  chroot "$1" apt-get update -qq
  chroot "$1" apt-get install -y -qq -o Dpkg::Use-Pty=0 --no-install-recommends python3 git >/dev/null
  chroot "$1" apt-get clean
  rm -rf "$1"/var/lib/apt/lists/*
  : >"$1/etc/resolv.conf"
' install "$root"
umoci repack --refresh-bundle --image "$work/oci:1" "$work/bundle"

say "layer 3: whiteouts, a replaced directory, hard links, an unusual name"
rm -rf "$root/usr/share/doc" "$root/usr/share/man"        # whiteouts
mkdir -p "$root/usr/share/doc/esker" "$root/workspace"    # a directory in place of a deleted one
echo 'a replaced directory' >"$root/usr/share/doc/esker/README"
for i in 1 2 3 4 5; do ln "$root/usr/share/doc/esker/README" "$root/workspace/link-$i"; done
printf 'bytes' >"$root/workspace/$(printf 'not-utf8-\xff')"
chmod 04755 "$root/workspace/link-1"
umoci repack --image "$work/oci:1" "$work/bundle"
umoci config --image "$work/oci:1" --config.workingdir /workspace --config.env LANG=C.UTF-8
umoci gc --layout "$work/oci"
mv "$work/oci" "$layout"
