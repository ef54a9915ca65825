"""The requests of the differential suite, and how to send them.

`requests/GROUP.jsonl` has one request in each line:

    name      unique in its file
    path      with the query
    method    [default: POST]
    headers   besides `content-type: application/json`; null removes one
    body      JSON; `{"repeat": TEXT, "times": N}` stands for a long text
    text, hex a body that is not JSON, as text or as bytes in hexadecimal digits
    free      true: the model's answer is beyond its training, so only its form is compared
"""

import http.client
import json
from pathlib import Path
from urllib.parse import urlsplit

DIRECTORY = Path(__file__).parent
TIMEOUT = 300.0
"""Time limit of a request in seconds. Far above what it takes, because machines are busy."""


def read(directory):
    """The lines of all files of a directory, by `GROUP/NAME`."""
    lines = {}
    for file in sorted((DIRECTORY / directory).glob("*.jsonl")):
        for line in file.read_text().splitlines():
            value = json.loads(line)
            name = f"{file.stem}/{value.pop('name')}"
            assert name not in lines, f"two lines of {name}"
            lines[name] = value
            # A shape that an earlier answer of the file has is its name.
            if isinstance(value.get("shape"), str):
                value["shape"] = lines[f"{file.stem}/{value['shape']}"]["shape"]
    return lines


def expanded(value):
    """The value with its long texts."""
    if isinstance(value, dict):
        if value.keys() == {"repeat", "times"}:
            return value["repeat"] * value["times"]
        return {name: expanded(member) for name, member in value.items()}
    if isinstance(value, list):
        return [expanded(member) for member in value]
    return value


def send(url, request):
    """Sends a request. Returns status, headers by lower-case name, and the body's bytes."""
    body = None
    if "body" in request:
        body = json.dumps(expanded(request["body"])).encode()
    elif "text" in request:
        body = request["text"].encode()
    elif "hex" in request:
        body = bytes.fromhex(request["hex"])
    headers = {"content-type": "application/json", **request.get("headers", {})}
    headers = {name: value for name, value in headers.items() if value is not None}
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=TIMEOUT)
    try:
        connection.request(request.get("method", "POST"), request["path"], body, headers)
        answer = connection.getresponse()
        names = {name.lower(): value for name, value in answer.getheaders()}
        return answer.status, names, answer.read()
    finally:
        connection.close()
