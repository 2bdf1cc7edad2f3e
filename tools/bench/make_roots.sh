#!/usr/bin/env bash
# Makes real root file systems for the image benchmarks: plain tars of Debian with some packages.
# Usage: make_roots.sh DIRECTORY (each is made once, and kept).
set -euo pipefail

out=$1
mkdir -p "$out"
suite=bookworm
# The mirror that this machine's apt uses; mmdebstrap's own default where apt names none.
mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' "Codename: $suite" 2>/dev/null | head -n 1)
# The same time in all, so that a file of one package is the same entry in each.
export SOURCE_DATE_EPOCH=1700000000

root() { # root NAME PACKAGES
  [ -e "$out/$1.tar" ] && return
  printf '   a root with %s\n' "${2:-nothing more}" >&2
  mmdebstrap --quiet --mode=root --variant=minbase --format=tar ${2:+"--include=$2"} \
    $suite "$out/$1.tar.new" ${mirror:+"$mirror"}
  mv "$out/$1.tar.new" "$out/$1.tar"
}

trap 'rm -f "$out"/*.tar.new' EXIT
root base ""
root cpp python3,git,gcc,g++
root node python3,git,nodejs
root ruby python3,git,ruby
