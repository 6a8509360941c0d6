# What the scripts of this folder share; they source it.
set -euo pipefail

# Takes the place of this shell with run.py: its exit code is the script's, and a signal reaches it.
# PYTHON is the interpreter of everything; without it, run.py takes `python` and the commands the text's.
run_tipc() {
  exec "${PYTHON:-python}" "$(dirname "${BASH_SOURCE[0]}")/run.py" "$@"
}
