#!/usr/bin/env bash
# Build the virtual environment of the programs that must load what quantkit writes.
#
#   PYTHON=python3 VENV=.venv-consumers TORCH_SPEC=torch==X bash scripts/consumers.sh
#
# What the index carries as source only is built once and kept as wheels in the user's cache.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

python=${PYTHON:-python3}
venv=${VENV:-.venv-consumers}
pins=constraints-consumers.txt
torch=${TORCH_SPEC:-$(grep '^torch==' $pins)}
cache=${XDG_CACHE_HOME:-$HOME/.cache}/quantkit/wheels/$(uname -m)

# name of each program, and of each of their dependencies, that comes as source
from_source=(llama-cpp-python gptqmodel defuser device-smi logbar pypcre tokenicer)
from_wheels=(transformers accelerate optimum compressed-tensors bitsandbytes gguf openai numpy)
test_tools=(hypothesis pytest pytest-timeout pytest-xdist sentencepiece)

export BUILD_CUDA_EXT=0
export CMAKE_BUILD_PARALLEL_LEVEL=${CMAKE_BUILD_PARALLEL_LEVEL:-$(nproc)}

started=$SECONDS
say() { echo "consumers: $* ($((SECONDS - started)) s)"; }

[ -x "$venv/bin/python" ] || "$python" -m venv "$venv"
pip=("$venv/bin/python" -m pip)
mkdir -p "$cache"

# Of llama.cpp only the library: no tools, no server, no images. Its helper library for the tools is
# two fifths of the work, and the package asks for it by force, which an ordinary variable outranks.
# Not tuned to this processor: the wheel may move to another, every machine computes the same
# numbers, and its AMX code was seen to crash in a virtual machine that announces AMX.
small=$(cd "$cache" && pwd)/llama-small.cmake
echo 'set(LLAMA_BUILD_COMMON OFF)' >"$small"
export CMAKE_ARGS="-DGGML_NATIVE=OFF -DLLAVA_BUILD=OFF -DLLAMA_BUILD_TOOLS=OFF \
-DCMAKE_PROJECT_llama_cpp_INCLUDE=$small ${CMAKE_ARGS:-}"

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
        # pip's own cache may hold one that was built with other flags
        "${pip[@]}" wheel -q --no-cache-dir --no-deps -c "$kept" -w "$cache" "$name==$version"
        say "built $name $version"
    fi
done

"${pip[@]}" install -q -c "$kept" --find-links "$cache" -e . \
    "${from_source[@]}" "${from_wheels[@]}" "${test_tools[@]}"
say "ready in $venv"
