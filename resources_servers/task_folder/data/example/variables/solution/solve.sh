#!/bin/sh
set -e
greet >"$TARGET"
