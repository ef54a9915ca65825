"""Reduces an answer to what the differential suite compares.

    status   the HTTP status
    type     the media type; absent without a body
    shape    the type of each member, by its path: `choices[].message.content: string`
    values   members that tell what happened, by their path: finish reasons, roles, counts, texts, kinds of errors
    events   of a stream: the names of its events in order, each once, and `[DONE]`

The events of a stream count as one value: paths are merged, and their texts joined. Where an event has a `type`, its paths
begin with it. Ids, times, probabilities and the texts of errors are not compared.
"""

import json

VALUES = {
    "code", "document", "encoding_format", "index", "input_tokens", "max_model_len", "n_ctx", "n_predict", "n_vocab",
    "object", "prompt_tokens", "role", "status", "stop", "tokens_evaluated", "total", "type",
}  # fmt: skip
GENERATED = {
    "completion_tokens", "finish_reason", "has_new_line", "name", "output_tokens", "reason", "stop_reason",
    "stop_sequence", "stop_type", "stopping_word", "token", "tokens", "tokens_predicted", "total_tokens", "truncated",
}  # fmt: skip
"""Values that depend on the model's answer."""
TEXTS = {"arguments", "content", "delta", "partial_json", "prompt", "reasoning_content", "text", "thinking"}
"""Values that depend on it, too. The parts in a stream are joined."""
LONG = 300
"""Characters of a text that is compared; of a longer one, its length."""


def kind(value):
    """The JSON type."""
    if value is None:
        return "null"
    for types, name in [(bool, "boolean"), ((int, float), "number"), (str, "string"), (list, "list")]:
        if isinstance(value, types):
            return name
    return "object"


class Reduction:
    """Collects shape and values of one JSON value, or of a stream's events."""

    def __init__(self, free, stream):
        self.free, self.stream = free, stream
        self.shape, self.values = {}, {}

    def add(self, value, path="", place=""):
        """`path` names the member in the shape, `place` in the values: there, elements of lists differ."""
        self.shape.setdefault(path, set()).add(kind(value))
        name = path.removesuffix("[]").rsplit(".", 1)[-1]
        if isinstance(value, dict):
            # Anthropic's count leaves out cached tokens, which depend on earlier requests.
            cached = value.get("cache_read_input_tokens")
            for member, inner in value.items():
                if member == "input_tokens" and isinstance(cached, int):
                    inner += cached
                member = member.replace(".", "_")
                dot = "." if path and not path.endswith(": ") else ""
                self.add(inner, f"{path}{dot}{member}", f"{place}{'' if place.endswith('.') else dot}{member}")
        elif isinstance(value, list):
            for at, inner in enumerate(value):
                index = inner.get("index", at) if isinstance(inner, dict) else at
                self.add(inner, f"{path}[]", f"{place}[{index}]")
            if len(value) > 8 and all(isinstance(inner, (int, float)) for inner in value):
                self.values = {known: kept for known, kept in self.values.items() if not known.startswith(f"{place}[")}
                whole = all(isinstance(inner, int) for inner in value)
                self.values[place] = ",".join(map(str, value)) if whole else f"{len(value)} numbers"
        elif not (value is None and self.stream):
            self.note(name, place, value)

    def note(self, name, place, value):
        if self.stream and name in ("token", "tokens"):
            # Events have any number of tokens.
            return
        if name in VALUES:
            self.values[place] = value
        elif self.free:
            return
        elif name in GENERATED:
            self.values[place] = value
        elif name in TEXTS:
            joined = self.stream and isinstance(value, str) and isinstance(self.values.get(place), str)
            self.values[place] = self.values[place] + value if joined else value

    def result(self):
        shape = {path: "|".join(sorted(kinds)) for path, kinds in sorted(self.shape.items())}
        short = lambda value: f"{len(value)} characters" if isinstance(value, str) and len(value) > LONG else value
        return shape, {place: short(value) for place, value in sorted(self.values.items())}


def events(text):
    """The server-sent events: name (or None) and data."""
    name, data = None, []
    for line in text.split("\n"):
        if line.startswith("event:"):
            name = line[6:].strip()
        elif line.startswith("data:"):
            data.append(line[5:].strip())
        elif line.startswith("error:"):
            name, data = "error", [line[6:].strip()]
        elif not line and data:
            yield name, "\n".join(data)
            name, data = None, []


def reduce(status, headers, body, free=False):
    """The compared part of an answer."""
    answer = {"status": status}
    media = headers.get("content-type", "").split(";")[0]
    if headers.get("access-control-allow-origin"):
        answer["allowed-origin"] = headers["access-control-allow-origin"]
    if not body:
        return answer
    answer["type"] = media
    text = body.decode(errors="replace")
    if media == "text/event-stream":
        reduction, names = Reduction(free, True), []
        for name, data in events(text):
            name = data if data == "[DONE]" else name or "data"
            if name not in names:
                names.append(name)
            if data != "[DONE]":
                value = json.loads(data)
                kind_of_event = value.get("type") if isinstance(value, dict) else None
                prefix = f"{kind_of_event}: " if isinstance(kind_of_event, str) else ""
                # Events of several choices arrive in any order.
                index = value.get("index") if isinstance(value, dict) else None
                reduction.add(value, prefix, prefix if index is None else f"{prefix}[{index}].")
        answer["events"] = names
    else:
        reduction = Reduction(free, False)
        try:
            reduction.add(json.loads(text))
        except ValueError:
            return answer
    answer["shape"], answer["values"] = reduction.result()
    return answer
