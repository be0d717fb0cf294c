#!/bin/sh
set -e
cat "$(dirname "$0")/answer" >answer.txt
