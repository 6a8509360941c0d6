#!/usr/bin/env bash
# Times a training: bash test_tipc/benchmark_train.sh TEXT benchmark_train [CASE]
. "$(dirname "${BASH_SOURCE[0]}")/common_func.sh"
run_tipc benchmark "$@"
