#!/usr/bin/env bash
# Makes what a mode needs: bash test_tipc/prepare.sh TEXT MODE
. "$(dirname "${BASH_SOURCE[0]}")/common_func.sh"
run_tipc prepare "$@"
