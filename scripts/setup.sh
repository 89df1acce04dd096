#!/usr/bin/env bash
# Installs what building and testing efficc needs on Debian 12 or later: compiler, CMake, and the libraries behind the
# ONNX reader (protobuf-c), JSON (cJSON), checksums (xxHash), matrix products (oneDNN) and the tests (CUnit). Does nothing where all is there.
# libclang is wanted, not needed: without it efficc doesn't check the sources that it emits.
#
#   scripts/setup.sh --fuzz          also clang with its libFuzzer, for the fuzz targets; scripts/test.sh asks for it but in its quick tier
#   scripts/setup.sh --cuda [DIR]    also a CUDA toolkit: names the one that is there, else makes one in DIR; see setup_cuda.sh
set -euo pipefail
here=$(dirname "$0")
packages=(gcc g++ make cmake ninja-build pkg-config libc6-dev protobuf-c-compiler libprotobuf-c-dev libdnnl-dev libcjson-dev libxxhash-dev libcunit1-dev)
case ${1:-} in
"") ;;
--fuzz) packages+=(clang libclang-rt-dev libomp-dev) ;;
--cuda) python3 -m pip --version >/dev/null 2>&1 || packages+=(python3-pip) ;;
*)
    echo "setup: no option '$1'; there are --fuzz and --cuda" >&2
    exit 1 ;;
esac
# One word more is the folder of --cuda, and nothing else.
if [ $# -gt 2 ] || { [ $# = 2 ] && [[ $1 != --cuda || $2 = -* ]]; }; then
    echo "setup: what is '${*: -1}'? --cuda takes one folder, other options take nothing" >&2
    exit 1
fi

# Those of the packages named that are not there, into missing.
find_missing() {
    missing=()
    local p
    for p; do
        dpkg-query -W -f='${Status}' "$p" 2>/dev/null | grep -q "ok installed" || missing+=("$p")
    done
}

install() {
    local sudo=""
    echo "setup: installing $*"
    if ! command -v apt-get >/dev/null; then
        echo "setup: no apt-get here; install these by hand: $*" >&2
        return 1
    fi
    if [ "$(id -u)" != 0 ]; then
        sudo="sudo"
        if ! command -v sudo >/dev/null; then
            echo "setup: this needs root: run  apt-get install $*  as root, then again" >&2
            return 1
        fi
    fi
    export DEBIAN_FRONTEND=noninteractive
    $sudo apt-get update -qq && $sudo apt-get install -y -qq --no-install-recommends "$@" >/dev/null
}

find_missing "${packages[@]}"
[ ${#missing[@]} -eq 0 ] || install "${missing[@]}"
compgen -G '/usr/lib/llvm-*/include/clang-c/Index.h' >/dev/null || install libclang-dev ||
    echo "setup: going on without libclang" >&2
echo "setup: all packages are there"
if [ "${1:-}" = --cuda ]; then
    exec "$here/setup_cuda.sh" "${@:2}"
fi
