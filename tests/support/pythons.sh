# shellcheck shell=bash
# Python environments, for `./run` and the scripts in deploy/; sourced, in the tree's root. Each is
# made once, from a list of pinned packages, beside the tree's root, and its Python is exported under
# the name that CMake and tests look for. A caller who names one gets that one. Tests that lack one
# are skipped, and counted so. Also what these scripts say: `say` and `die`.

readonly root=$PWD

say() { printf '== %s\n' "$*"; }
die() {
  printf '%s: %s\n' "$(basename "$0" .sh)" "$*" >&2
  exit 1
}

readonly pip_limit_s=120
readonly trainer_limit_s=480 # some 600 MB from a package index, for each of two

# find_venv NAME LIMIT LIST PROBE...: finds or makes .venv-NAME with what LIST pins, within LIMIT
# seconds (0: without limit), and exports its Python as DELTAWIRE_NAME_PYTHON. Its Python runs with
# the PROBE.
find_venv() {
  local name=$1 limit=$2 list=$3 named=DELTAWIRE_${1^^}_PYTHON log=build/$1-python.log started=$SECONDS
  shift 3
  [[ -z ${!named:-} ]] || return 0
  if [[ -z ${DELTAWIRE_NO_INSTALL:-} ]]; then
    mkdir -p build
    if ! timeout "$limit" tests/support/make_venv.sh "$list" "$root/.venv-$name" "$@" >"$log" 2>&1 </dev/null; then
      say "no Python with what $list lists; $log says why"
      return 0
    fi
    ((SECONDS - started < 3)) || say "made .venv-$name in $((SECONDS - started)) s"
  fi
  [[ ! -f .venv-$name/ready ]] || export "$named=$root/.venv-$name/bin/python3"
}

# need NAME FIND...: runs FIND, and ends the script if there is no Python NAME afterwards.
need() {
  local named=DELTAWIRE_${1^^}_PYTHON
  "${@:2}"
  [[ -n ${!named:-} ]] || die "there is no .venv-$1, and $named names no Python"
}

find_docs_python() {
  find_venv docs "$pip_limit_s" deploy/site/requirements.txt -c 'import google.protobuf, material, mkdocs, pymdownx'
}
find_wheel_python() {
  find_venv wheel "$pip_limit_s" deploy/wheel/requirements.txt -c 'import auditwheel, spdx_tools, wheel'
}
need_docs_python() { need docs find_docs_python; }
need_wheel_python() { need wheel find_wheel_python; }
need_tidy_python() { need tidy find_venv tidy "$pip_limit_s" cmake/tidy/requirements.txt -c 'import clang_tidy'; }
find_trainer_python() { find_venv trainer "$trainer_limit_s" tests/trainer/requirements.txt tests/trainer/check_venv.py; }
# find_megatron_python: the same with today's megatron-core, whose releases after 0.16 want Python 3.12.
find_megatron_python() {
  local candidate
  for candidate in python3.12 "${PYENV_ROOT:-$HOME/.pyenv}"/versions/3.12.*/bin/python3; do
    "$candidate" -c 'import ensurepip, venv' 2>/dev/null || continue
    VENV_PYTHON=$candidate find_venv megatron "$trainer_limit_s" tests/trainer/requirements-megatron.txt \
      tests/trainer/check_venv.py
    return
  done
  [[ -n ${DELTAWIRE_MEGATRON_PYTHON:-} ]] ||
    say "no Python 3.12 here: of megatron-core only $(sed -n 's/^megatron-core==//p' tests/trainer/requirements.txt) is tested"
}
find_trainer_pythons() {
  # Both wait for the package index, so they are made at the same time.
  (find_megatron_python) &
  find_trainer_python
  wait $!
  [[ -n ${DELTAWIRE_MEGATRON_PYTHON:-} || ! -f .venv-megatron/ready ]] ||
    export DELTAWIRE_MEGATRON_PYTHON=$root/.venv-megatron/bin/python3
}
find_deploy_pythons() {
  find_venv deploy "$pip_limit_s" tests/deploy/requirements.txt -c 'import kubernetes_validate, yaml'
  find_wheel_python
}
need_engine_pythons() {
  local engine
  for engine in vllm sglang; do
    need "$engine" find_venv "$engine" 0 "tests/engines/requirements-$engine.txt" -c "import torch, $engine"
  done
}

# use_made_pythons: exports what earlier runs have made, and makes nothing.
use_made_pythons() {
  local name
  for name in trainer megatron vllm sglang; do
    [[ ! -f .venv-$name/ready ]] || DELTAWIRE_NO_INSTALL=1 find_venv "$name" 0 none
  done
}

# find_python: finds or makes a Python with a second reader of our files (safetensors, with zstandard
# and xxhash for chains on a disk), and with jsonschema for the tool's outputs.
find_python() {
  [[ -z ${DELTAWIRE_PYTHON:-} ]] || return 0
  local all='import jsonschema, numpy, referencing, safetensors, xxhash, zstandard' candidate
  for candidate in "$root/.venv/bin/python3" python3; do
    if "$candidate" -c "$all" 2>/dev/null; then
      export DELTAWIRE_PYTHON=$candidate
      return 0
    fi
  done
  export DELTAWIRE_PYTHON=python3
  [[ -z ${DELTAWIRE_NO_INSTALL:-} ]] || return 0
  mkdir -p build
  if timeout "$pip_limit_s" bash -c 'python3 -m venv .venv &&
      .venv/bin/pip install -q --disable-pip-version-check --retries 1 --timeout 15 \
        jsonschema numpy safetensors xxhash zstandard' >build/python.log 2>&1 </dev/null; then
    DELTAWIRE_PYTHON=$root/.venv/bin/python3
  else
    say "no package index answers (build/python.log); tests with numpy and safetensors are skipped"
  fi
}
