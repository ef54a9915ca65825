"""Random JSON schemas whose values are bounded, so that every output can end."""

import random

WORDS = ["name", "age", "owl", "river", "stone", "is blue", "élan", "count-of", "x", "b_2"]


def schema(seed):
    """A schema; the same seed gives the same one."""
    chance = random.Random(seed)
    definitions = {"leaf": leaf(chance)} if chance.random() < 0.3 else {}
    # The root is an object, as in strict schemas of OpenAI's API.
    found = object_of(chance, 2, definitions)
    if definitions:
        found["$defs"] = definitions
    return found


def value_of(chance, depth, definitions):
    kind = chance.random()
    if definitions and kind < 0.1:
        return {"$ref": "#/$defs/leaf"}
    if depth > 0 and kind < 0.3:
        return object_of(chance, depth - 1, definitions)
    if depth > 0 and kind < 0.45:
        least = chance.randint(0, 2)
        items = value_of(chance, depth - 1, definitions)
        return {"type": "array", "items": items, "minItems": least, "maxItems": least + chance.randint(0, 2)}
    if depth > 0 and kind < 0.52:
        return {"anyOf": [value_of(chance, depth - 1, definitions) for _ in range(2)]}
    return leaf(chance)


def object_of(chance, depth, definitions):
    names = chance.sample(WORDS, chance.randint(1, 3))
    found = {
        "type": "object",
        "properties": {name: value_of(chance, depth, definitions) for name in names},
        "required": [name for name in names if chance.random() < 0.7],
        "additionalProperties": False,
    }
    if chance.random() < 0.15:
        first, last = names[0], names[-1]
        found |= chance.choice(
            [
                {"not": {"required": [first]}} if first not in found["required"] else {},
                {"if": {"required": [first]}, "then": {"required": [last]}},
                {"dependentRequired": {last: [first]}},
                {"if": {"properties": {first: {"type": "string"}}}, "else": {"required": names}},
            ]
        )
    return found


def leaf(chance):
    low = chance.randint(-1000, 1000)
    kinds = [
        {"type": "boolean"},
        {"type": "null"},
        {"type": ["boolean", "null"]},
        {"type": "integer", "minimum": low, "maximum": low + chance.randint(0, 500)},
        {"type": "integer", "exclusiveMinimum": low, "exclusiveMaximum": low + 2 + chance.randint(0, 9)},
        {"type": "string", "maxLength": chance.randint(0, 12)},
        {"type": "string", "minLength": 2, "maxLength": 2 + chance.randint(0, 6)},
        {"type": "string", "pattern": chance.choice(["^[a-z]{1,6}$", "^[0-9]{2}-[0-9]{2}$", "^(yes|no)!{1,3}$"])},
        {"type": "string", "format": chance.choice(["date", "time", "ipv4", "uuid"])},
        {"enum": [chance.choice(WORDS), low, None, True]},
        {"type": "string", "maxLength": 4, "not": {"enum": ["", "owl", "élan"]}},
        {"type": "integer", "minimum": low, "maximum": low + 9, "not": {"enum": [low, low + 4]}},
        {"type": "array", "items": {"enum": ["x", low, None]}, "minItems": 1, "uniqueItems": True},
        {"const": chance.choice([low, "a \"quoted\" word", [1, "x"], {"y": False}])},
    ]
    return chance.choice(kinds)
