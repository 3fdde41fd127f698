#!/bin/sh
# Makes the folder for models, and gives it to the user that serves: prepare.sh FOLDER USER
set -eu
mkdir -p "$1"
chown "$2" "$1"
