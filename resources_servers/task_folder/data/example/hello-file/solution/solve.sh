#!/bin/sh
set -e
echo hello >hello.txt
