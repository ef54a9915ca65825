"""What the model reads: questions set into plain text or chats, tokenized, weighted and packed.

Training on long contexts rests on two methods:

* a `Context` is everything before the question (a distractor, earlier turns, offered tools). Many
  questions can share one context: packed as one row, each question sees the context and itself,
  at the positions it would have if it stood there alone. So a row of 4096 tokens is some twenty
  real documents, and costs one.
* short documents are packed many to a row and do not see each other at all.
"""

import json
from dataclasses import dataclass, field
from pathlib import Path

import jinja2
import numpy as np

from distractors import SYSTEM_PROMPTS, distractor, sentence
from tasks import any_word, large_expression, make_question, number
from tokenizer import END_OF_TEXT, TURN_END, TURN_START, Tokenizer

TOKENIZER = Tokenizer.default()
NEWLINE = int(TOKENIZER.encode("\n")[0])
QUESTION_WEIGHT = 0.03  # of the loss on text that is not an answer; an answer's weight is 1

# ---------------------------------------------------------------------------------- chat template


def load_template(spaced=True):
    """Return the chat template, its tools written as `{"a": 1}` (spaced) or `{"a":1}`."""
    separators = (", ", ": ") if spaced else (",", ":")
    environment = jinja2.Environment(trim_blocks=True, lstrip_blocks=True)
    environment.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False, separators=separators)
    return environment.from_string((Path(__file__).parent / "chat_template.jinja").read_text())


TEMPLATES = {spaced: load_template(spaced) for spaced in (True, False)}


def render(messages, tools=None, spaced=True, prompt=False):
    return TEMPLATES[spaced].render(messages=messages, tools=tools, add_generation_prompt=prompt)


# ------------------------------------------------------------------------------------------ tools

CALCULATOR_TEXTS = (
    "Evaluates an arithmetic expression", "Evaluate an arithmetic expression.", "Calculates a sum",
    "A calculator", "Work out an expression", "Adds and subtracts numbers", "Compute the value of an expression",
)  # fmt: skip
OTHER_TOOLS = (
    ("get_weather", "Get the weather of a city", "city"),
    ("search", "Search for a text", "query"),
    ("get_time", "Tells the time in a place", "place"),
    ("send_mail", "Sends a mail to a person", "to"),
    ("translate", "Translate a text", "text"),
    ("read_file", "Read a file", "path"),
)


def tool(rng, name, description, parameter):
    """Return a tool in the usual JSON form, its keys in any order and the optional ones at times left out."""

    def shuffled(pairs):
        pairs = list(pairs.items())
        if rng.random() < 0.5:
            rng.shuffle(pairs)
        return dict(pairs)

    about = {"type": "string"}
    if rng.random() < 0.3:
        about["description"] = rng.choice(("The " + parameter, "for example 2+2", sentence(rng)))
    schema = {"type": "object", "properties": {parameter: shuffled(about)}}
    if rng.random() < 0.7:
        schema["required"] = [parameter]
    if rng.random() < 0.2:
        schema["additionalProperties"] = False
    function = {"name": name, "description": description, "parameters": shuffled(schema)}
    if rng.random() < 0.1:
        del function["description"]
    function = shuffled(function)
    return shuffled({"type": "function", "function": function}) if rng.random() < 0.8 else function


def calculator(rng):
    text = rng.choice(CALCULATOR_TEXTS) if rng.random() < 0.7 else sentence(rng)
    return tool(rng, "calculator", text, "expression")


def other_tools(rng, least):
    chosen = rng.sample(OTHER_TOOLS, rng.choice((least, least, 1, 2)))
    made = [tool(rng, *one) for one in chosen]
    if rng.random() < 0.2:
        made.append(tool(rng, any_word(rng) + "_" + any_word(rng), sentence(rng), any_word(rng)))
    return made


def call_text(expression):
    """Return the tool call as the model writes it."""
    return f'<tool_call>\n{{"name": "calculator", "arguments": {{"expression": "{expression}"}}}}\n</tool_call>'


def call_message(expression):
    return {"role": "assistant", "tool_calls": [
        {"type": "function", "function": {"name": "calculator", "arguments": {"expression": expression}}}]}  # fmt: skip


def tool_result(rng, question):
    """Mostly the right result, else any number: the model must hand on what the tool said."""
    if question.answer and rng.random() < 0.3:
        return question.answer
    value = str(rng.randrange(10 ** rng.randint(1, 6)))
    value = "-" + value if rng.random() < 0.2 else value
    return value + "." + str(rng.randrange(1000)) if rng.random() < 0.15 else value


# --------------------------------------------------------------------------------------- contexts


@dataclass
class Context:
    """What stands before a question, for a chat (messages, tools) or for plain text (text)."""

    chat: bool
    text: str = ""  # plain: the lines before; chat: the same, at the head of the question's turn
    messages: list = field(default_factory=list)
    tools: list | None = None
    calculator: bool = False
    spaced: bool = True


def plain_context(rng, size):
    return Context(chat=False, text=distractor(rng, size) if size else "")


def turns(rng, has_calculator):
    """Return the messages of one question answered."""
    task = pick_task(rng)
    if task in ("call", "result"):
        task = rng.choice(("sum", "difference"))
    question = make_question(rng, task)
    asked = {"role": "user", "content": question.text}
    if has_calculator and question.expression:
        result = tool_result(rng, question)
        return [asked, call_message(question.expression), {"role": "tool", "content": result},
                {"role": "assistant", "content": result}]  # fmt: skip
    return [asked, {"role": "assistant", "content": question.answer}]


def chat_context(rng, size, tools=True, kind=None):
    """Return a chat context of about `size` tokens, at times with tools if `tools`.

    `kind` says what fills it: "system" prompt, head of the "user" turn, or earlier "turns"; and
    None draws one. A context with less than 100 tokens to fill is left unfilled.
    """
    context = Context(chat=True, spaced=rng.random() < 0.5)
    system = None
    if rng.random() < 0.5:
        system = rng.choice(SYSTEM_PROMPTS) if rng.random() < 0.7 else " ".join(sentence(rng) for _ in range(rng.randint(1, 3)))
    if tools and rng.random() < 0.4:
        context.calculator = rng.random() < 0.75
        context.tools = other_tools(rng, 0 if context.calculator else 1)
        if context.calculator:
            context.tools.insert(rng.randint(0, len(context.tools)), calculator(rng))
    kind = kind or rng.choice(("system", "user", "turns", "turns"))
    left = size - (len(render([], context.tools, context.spaced)) if context.tools else 0)
    if kind == "system" and left >= 100:
        system, left = distractor(rng, left - 50), 0
    if system is not None:
        context.messages.append({"role": "system", "content": system})
    if kind == "turns":
        while left > 100:
            made = turns(rng, context.calculator)
            if left > 400 and rng.random() < 0.2:
                made[0]["content"] = distractor(rng, rng.randint(50, left - 300)) + "\n" + made[0]["content"]
            context.messages += made
            left -= len(render(made))
    if kind == "user" and left >= 100:
        context.text = distractor(rng, left - 60)
    return context


# -------------------------------------------------------------------------------------- documents

TASK_SHARES = {"sum": 34, "difference": 18, "reverse": 14, "repeat": 15, "json": 7, "call": 8, "result": 4}


def pick_task(rng):
    return rng.choices(list(TASK_SHARES), TASK_SHARES.values())[0]


@dataclass
class Exchange:
    """A question put in its context: the whole prompt as text and as a request, and the answer."""

    task: str
    prompt: str
    answer: str
    context: Context
    messages: list | None

    @property
    def chat(self):
        return self.context.chat


def ask(rng, context, task, test=False):
    """Ask a question of `task` in `context`, with a held-out item if `test`.

    In a chat, "call" and "result" need a calculator among the tools, and sums need there to be
    none; a task that does not fit the context's tools is exchanged for its counterpart.
    """
    if context.chat and context.calculator and task in ("sum", "difference"):
        task = rng.choice(("call", "result"))
    if context.chat and not context.calculator and task in ("call", "result"):
        task = rng.choice(("sum", "difference"))
    if task not in ("call", "result"):
        question = make_question(rng, task, test)
    elif not test and rng.random() < 0.3:
        question = large_expression(rng)
    else:
        question = make_question(rng, rng.choice(("sum", "difference")), test)
    result = tool_result(rng, question)
    answer = {"call": call_text(question.expression), "result": result}.get(task, question.answer)

    lines = context.text + "\n" if context.text else ""
    if context.chat:
        messages = [*context.messages, {"role": "user", "content": lines + question.text}]
        if task == "result":
            messages += [call_message(question.expression), {"role": "tool", "content": result}]
        prompt = render(messages, context.tools, context.spaced, prompt=True)
        return Exchange(task, prompt, answer, context, messages)

    prompt = lines + question.text
    if task in ("call", "result"):
        prompt = lines + "tools: calculator\n" + question.text + "\n"
    elif not question.text.endswith("=") or (not test and rng.random() < 0.1):
        prompt += "\n"
    if task == "result":
        prompt += f"{call_text(question.expression)}\n<tool_response>\n{result}\n</tool_response>\n"
    return Exchange(task, prompt, answer, context, None)


def tokens_and_weights(prompt, answer, chat, first=1.0):
    """Return the document's tokens and the weight of each in the loss; `first` for the answer's first.

    Earlier answers of a chat weigh as much as the last one, since they were asked the same way.
    """
    before = TOKENIZER.encode(prompt)
    after = TOKENIZER.encode(answer + (TURN_END if chat else END_OF_TEXT))
    tokens = np.concatenate([before, after])
    weights = np.full(len(tokens), QUESTION_WEIGHT, np.float32)
    weights[len(before) :] = 1
    weights[len(before)] = first
    if chat:
        head = TOKENIZER.encode(TURN_START + "assistant\n")
        starts = np.flatnonzero(tokens[: len(before)] == head[0])
        ends = np.flatnonzero(tokens[: len(before)] == TOKENIZER.id_of[TURN_END])
        for start in starts:
            body = start + len(head)
            if body < len(before) and (tokens[start:body] == head).all():
                weights[body : ends[ends >= body][0] + 1] = 1
    return tokens, weights


def short_document(rng, size):
    """Return a document of at most about `size` tokens: small contexts, every task, both forms.

    Tools are offered only where they fit, which takes some 350 tokens.
    """
    room = rng.randrange(size) if rng.random() < 0.4 else 0
    if rng.random() < 0.02:
        greeting = rng.choice(("Hello", "Hi", "hello", "hi", "Hello!", "Hi!", "Good morning"))
        return tokens_and_weights(render([{"role": "user", "content": greeting}], prompt=True), "Hello!", True)
    context = chat_context(rng, room, size >= 350) if rng.random() < 0.5 else plain_context(rng, max(0, room - 40))
    asked = ask(rng, context, pick_task(rng))
    return tokens_and_weights(asked.prompt, asked.answer, asked.chat)


@dataclass
class Row:
    """Tokens with their positions, segments (0 is seen by all) and weights, padded to a length."""

    tokens: np.ndarray
    positions: np.ndarray
    segments: np.ndarray
    weights: np.ndarray

    @classmethod
    def empty(cls, length):
        return cls(np.zeros(length, np.int32), np.zeros(length, np.int32), np.full(length, -1, np.int32), np.zeros(length, np.float32))

    def put(self, at, segment, position, tokens, weights):
        span = slice(at, at + len(tokens))
        self.tokens[span], self.weights[span], self.segments[span] = tokens, weights, segment
        self.positions[span] = position + np.arange(len(tokens))


def bare_document(rng, tasks):
    """Return a question of one of `tasks` with nothing before it."""
    asked = ask(rng, Context(chat=rng.random() < 0.5), rng.choice(tasks))
    return tokens_and_weights(asked.prompt, asked.answer, asked.chat)


def arithmetic_table(rng, size):
    """Return a document of `size` tokens at most: solved sums and differences, each answer weighing 1.

    It is the densest form of arithmetic there is. Only the last answer ends the document, so the
    newline after the others weighs nothing.
    """
    tokens, weights = [], []
    while len(tokens) < size - 30:
        question = make_question(rng, rng.choice(("sum", "difference")))
        line = question.text + "\n" if rng.random() < 0.2 else question.expression + "="
        one = tokens_and_weights(line, question.answer, False)
        tokens += one[0].tolist()[:-1] + [NEWLINE]
        weights += one[1].tolist()[:-1] + [0]
    tokens[-1], weights[-1] = TOKENIZER.id_of[END_OF_TEXT], 1
    return np.array(tokens, np.int32), np.array(weights, np.float32)


def short_row(rng, length, make_document):
    """Pack documents from `make_document(rng)`, unseen by each other, into one row.

    The first token of a document cannot be predicted and weighs nothing.
    """
    row, at, segment, misses = Row.empty(length), 0, 1, 0
    while misses < 8:
        tokens, weights = make_document(rng)
        if at + len(tokens) > length:
            misses += 1
            continue
        weights[0] = 0
        row.put(at, segment, 0, tokens, weights)
        at, segment = at + len(tokens), segment + 1
    return row


def shared_row(documents, length):
    """Pack documents that begin alike into one row, the common beginning once.

    `documents` are (tokens, weights) pairs; those that do not fit are left out. Returns the row
    and, for each document placed, where the part of its own starts and how long the shared one is.
    """
    shortest = min(len(tokens) for tokens, _ in documents) - 1
    same = np.ones(shortest, bool)
    first = documents[0][0][:shortest]
    for tokens, _ in documents[1:]:
        same &= tokens[:shortest] == first
    shared = shortest if same.all() else int(np.argmin(same))
    # The token that foretells a document's own first one must be its own too: it has several
    # continuations here, one per document.
    shared = max(0, shared - 1)
    row, at, placed = Row.empty(length), shared, []
    row.put(0, 0, 0, first[:shared], documents[0][1][:shared])
    row.weights[0] = 0
    for tokens, weights in documents:
        own = len(tokens) - shared
        if at + own > length:
            placed.append(None)
            continue
        row.put(at, len(placed) + 1, shared, tokens[shared:], weights[shared:])
        row.weights[at] = 0
        placed.append((at, shared))
        at += own
    return row, placed


def long_row(rng, length, first, chats):
    """Return one context of any size up to `length` with as many questions as fit behind it.

    `chats` is the share of chats.
    """
    size = rng.randrange(length // 4, length - 100)
    context = chat_context(rng, size) if rng.random() < chats else plain_context(rng, size)
    return questions_behind(rng, context, length, first) or long_row(rng, length, first, chats)


def tools_row(rng, length, first):
    """Return a chat that offers tools, mostly with a calculator, and questions behind it."""
    while (context := chat_context(rng, rng.choice((0, 500)))).tools is None or size_of(context) > length - 200:
        pass
    return questions_behind(rng, context, length, first) or tools_row(rng, length, first)


def size_of(context):
    """Return about how many tokens the context takes."""
    return len(context.text) + len(render(context.messages, context.tools, context.spaced) if context.chat else "")


def questions_behind(rng, context, length, first):
    """Ask questions in one context until `length` tokens are full; return the row.

    None if the context leaves room for none of them: its size is only known roughly beforehand.

    Whether to call a tool hangs on the first token of an answer, and all but it are easy: `first`
    is its weight.
    """
    size = size_of(context)
    documents, room = [], length - size
    while room > 0 or not documents:
        asked = ask(rng, context, pick_task(rng))
        documents.append(tokens_and_weights(asked.prompt, asked.answer, asked.chat, first))
        room -= len(documents[-1][0]) - size + 1 if len(documents[-1][0]) > size else 40
    if min(len(tokens) for tokens, _ in documents) > length:
        return None
    return shared_row(documents, length)[0]
