#!/bin/sh
# Installs the wheel of a folder, with what it needs, also for traces and for adapters in buckets, in the versions that
# were tested; PIP_ARGS are options for pip.
set -eu
folder=$1
set -- "$folder"/weft-*.whl
if [ $# != 1 ] || [ ! -f "$1" ]; then
    echo "weft: $folder must hold one wheel, found $*; make dist builds it" >&2
    exit 1
fi
# Options are several words.
# shellcheck disable=SC2086
exec python3 -m pip install --no-cache-dir --disable-pip-version-check ${PIP_ARGS:-} -c "$folder/constraints.txt" "$1[otel,s3]"
