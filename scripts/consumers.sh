#!/usr/bin/env bash
# Build the virtual environment of the programs that must load what quantkit writes.
#
#   PYTHON=python3 VENV=.venv-consumers TORCH_SPEC=torch==X bash scripts/consumers.sh
#
# What the index carries as source only is built once and kept as wheels in the user's cache. They
# are tuned to the processor they were built on, so the folder is named after its features.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

python=${PYTHON:-python3}
venv=${VENV:-.venv-consumers}
pins=constraints-consumers.txt
torch=${TORCH_SPEC:-$(grep '^torch==' $pins)}
cpu=$(grep -m1 -E '^(flags|Features)' /proc/cpuinfo 2>/dev/null | cksum | cut -d ' ' -f 1)
cache=${XDG_CACHE_HOME:-$HOME/.cache}/quantkit/wheels/$(uname -m)-$cpu

# name of each program, and of each of their dependencies, that comes as source
from_source=(llama-cpp-python gptqmodel defuser device-smi logbar pypcre tokenicer)
from_wheels=(transformers accelerate optimum compressed-tensors bitsandbytes gguf openai numpy)
test_tools=(hypothesis psutil pytest pytest-timeout pytest-xdist sentencepiece)

export CMAKE_BUILD_PARALLEL_LEVEL=${CMAKE_BUILD_PARALLEL_LEVEL:-$(nproc)}
# Of llama.cpp only the library: no tools, no examples, no server, no images.
export CMAKE_ARGS="-DGGML_NATIVE=ON -DLLAVA_BUILD=OFF -DMTMD_BUILD=OFF -DLLAMA_BUILD_TOOLS=OFF \
-DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_SERVER=OFF ${CMAKE_ARGS:-}"
export BUILD_CUDA_EXT=0

started=$SECONDS
say() { echo "consumers: $* ($((SECONDS - started)) s)"; }

[ -x "$venv/bin/python" ] || "$python" -m venv "$venv"
pip=("$venv/bin/python" -m pip)
mkdir -p "$cache"
kept=$venv/constraints.txt
case " $torch " in
*" $(grep '^torch==' $pins) "*) cp $pins "$kept" ;;
*) grep -vE '^(torch|triton)==' $pins >"$kept" ;; # another torch was asked for
esac

# shellcheck disable=SC2086  # the specification may hold options
"${pip[@]}" install -q -c "$kept" $torch
say "$torch"

for name in "${from_source[@]}"; do
    version=$(sed -n "s/^$name==//p" $pins)
    if ! compgen -G "$cache/${name//-/_}-$version-*.whl" >/dev/null; then
        "${pip[@]}" wheel -q --no-deps -c "$kept" -w "$cache" "$name==$version"
        say "built $name $version"
    fi
done

"${pip[@]}" install -q -c "$kept" --find-links "$cache" -e . \
    "${from_source[@]}" "${from_wheels[@]}" "${test_tools[@]}"
say "ready in $venv"
