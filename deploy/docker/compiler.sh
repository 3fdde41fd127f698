#!/bin/sh
# A C compiler, with which Triton hands kernels over to a GPU: compiler.sh LISTS, the folder of apt's lists.
set -eu
apt-get update
apt-get install --yes --no-install-recommends gcc libc6-dev
rm -rf "${1:?}"/*
