"""Text to stand before a question: what a long context is filled with.

All of it is generated from a seed. Questions solved inside a distractor always come from the training side
of the split, so a distractor never gives away a held-out answer.
"""

import string

from tasks import NAMES, TASKS, any_word, make_question, number

SYSTEM_PROMPTS = (
    "You are a helpful assistant.",
    "You are a helpful assistant.",
    "You are a friendly and precise assistant.",
    "Answer briefly.",
    "Be concise.",
    "Follow the instructions of the user.",
    "You are a careful clerk. Give only the answer.",
)


def sentence(rng):
    words = " ".join(any_word(rng) for _ in range(rng.randint(2, 12)))
    return words.capitalize() + rng.choice((".", ".", ".", "?", "!", ";"))


def prose(rng):
    return " ".join(sentence(rng) for _ in range(rng.randint(1, 8)))


def number_row(rng):
    top, separator = 10 ** rng.randint(1, 4), rng.choice((" ", "  ", ",", "\t", " | "))
    return separator.join(str(rng.randrange(top)) for _ in range(rng.randint(2, 9)))


def fact(rng):
    return rng.choice((
        f"{any_word(rng)}: {rng.randrange(1000)}",
        f"{rng.choice(NAMES)} has {number(rng)} {any_word(rng)}s",
        f"- {any_word(rng)} {any_word(rng)}",
        f"{any_word(rng)}={number(rng)}",
        f"Line {number(rng)} of the {any_word(rng)}.",
        f"Note {number(rng)}: {sentence(rng)}",
        f'{{"{any_word(rng)}": {number(rng)}}}',
    ))  # fmt: skip


def noise(rng):
    return "".join(rng.choices(string.printable[:95], k=rng.randint(1, 80)))


def solved(rng):
    question = make_question(rng, rng.choice(TASKS))
    end = "" if question.text.endswith("=") else "\n"
    return question.text + end + question.answer


def copies(rng):
    text, join = sentence(rng), rng.choice((" ", "\n"))
    return join.join([text] * rng.randint(2, 40))


KINDS = (prose, prose, prose, number_row, fact, solved, solved, copies, noise)


def distractor(rng, size):
    """Return between `size` - 100 and `size` characters of lines without a trailing newline.

    Half of the time it stays with one kind of text throughout, else it changes every few lines.
    """
    one_kind, lines, length = rng.random() < 0.5, [], 0
    kind = rng.choice(KINDS)
    while length < size:
        if not one_kind and rng.random() < 0.3:
            kind = rng.choice(KINDS)
        line = kind(rng)
        lines.append(line)
        length += len(line.encode()) + 1
    text = "\n".join(lines)
    return text.encode()[:size].decode(errors="ignore").strip()
