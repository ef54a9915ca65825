#!/usr/bin/env python3
"""Records the answers of llama.cpp's server to the requests of the differential suite.

    llama-server -m models/tiny/tiny.gguf --alias tiny --jinja -c 16384 --parallel 4 --slots --port 8090
    tests/clients/differential/record.py http://127.0.0.1:8090

Embeddings need a server of their own, so their requests are recorded in a second run:

    llama-server -m models/tiny/tiny.gguf --alias tiny -c 4096 --parallel 1 --embeddings --pooling last --port 8090
    tests/clients/differential/record.py http://127.0.0.1:8090 embeddings

A run writes `recorded/GROUP.jsonl` of the groups that it is given [default: all but `embeddings`]. Then run
`make test`: it fails for each difference without an entry in `known_differences.toml`, and for each entry without a
difference.
"""

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from differential import requests  # noqa: E402  beside this directory
from differential.answers import reduce  # noqa: E402


def main():
    url, *groups = sys.argv[1:]
    lines, shapes = {}, {}
    for name, request in requests.read("requests").items():
        group, rest = name.split("/", 1)
        if group in groups or not groups and group != "embeddings":
            answer = reduce(*requests.send(url, request), free=request.get("free", False))
            shape = answer.get("shape")
            if shape is not None:
                answer["shape"] = shapes.setdefault((group, json.dumps(shape)), rest)
                if answer["shape"] == rest:
                    answer["shape"] = shape
            lines.setdefault(group, []).append(json.dumps({"name": rest, **answer}, ensure_ascii=False))
    for group, of_group in lines.items():
        file = requests.DIRECTORY / "recorded" / f"{group}.jsonl"
        file.parent.mkdir(exist_ok=True)
        file.write_text("\n".join(of_group) + "\n")
        print(f"{len(of_group)} answers in {file}")


main()
