#!/usr/bin/env bash
# Installs what building and testing efficc needs on Debian 12 or later: compiler, CMake, and the libraries behind the
# ONNX reader (protobuf-c), JSON (cJSON), checksums (xxHash), matrix products (oneDNN) and the tests (CUnit). Does nothing where all is there.
#
#   scripts/setup.sh --fuzz    also clang with its libFuzzer, for the fuzz targets; scripts/test.sh asks for it but in its quick tier
set -euo pipefail
case ${1:-} in "" | --fuzz) ;; *)
    echo "setup: no option '$1'; there is --fuzz" >&2
    exit 1 ;;
esac
packages=(gcc g++ make cmake ninja-build pkg-config libc6-dev protobuf-c-compiler libprotobuf-c-dev libdnnl-dev libcjson-dev libxxhash-dev libcunit1-dev)
[ "${1:-}" != --fuzz ] || packages+=(clang libclang-rt-dev libomp-dev)
missing=()
for p in "${packages[@]}"; do
    dpkg-query -W -f='${Status}' "$p" 2>/dev/null | grep -q "ok installed" || missing+=("$p")
done
if [ ${#missing[@]} -eq 0 ]; then
    echo "setup: all packages are there"
    exit 0
fi
echo "setup: installing ${missing[*]}"
if ! command -v apt-get >/dev/null; then
    echo "setup: no apt-get here; install these by hand: ${missing[*]}" >&2
    exit 1
fi
sudo=""
if [ "$(id -u)" != 0 ]; then
    sudo="sudo"
    if ! command -v sudo >/dev/null; then
        echo "setup: this needs root: run  apt-get install ${missing[*]}  as root, then again" >&2
        exit 1
    fi
fi
export DEBIAN_FRONTEND=noninteractive
$sudo apt-get update -qq
$sudo apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
echo "setup: done"
