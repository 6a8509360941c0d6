#!/usr/bin/env bash
# Trains, evaluates, exports and predicts: bash test_tipc/test_train_inference_python.sh TEXT MODE
. "$(dirname "${BASH_SOURCE[0]}")/common_func.sh"
run_tipc train_infer "$@"
