#!/bin/sh
set -e
seq 1000 >numbers.txt
