#!/bin/sh
set -e
head -c 2000000 /dev/zero >zeros.bin
