"""Classifies a text by the probabilities of the labels after it. Generates nothing. The Rust form is
`src/lib.rs`."""

import math

from corral_sdk import Model, Problem, Request, Response, fields, handler


@handler
async def handle(request: Request) -> Response:
    body = await request.fields(prompt=fields.string(), labels=fields.array(fields.string(), least=2, most=100))
    labels = body.labels
    check(labels)
    model = await Model.open()
    prompt = model.sequence(body.prompt)
    tokens = [model.tokenize(label) for label in labels]
    # One distribution after the prompt has the first tokens of all labels.
    firsts = await prompt.next(only=sorted({one[0] for one in tokens}), statistics=True)
    logprobs = [logprob(firsts, one[0]) for one in tokens]
    for index, label in enumerate(tokens):
        sequence = prompt.fork()
        for before, token in zip(label, label[1:]):
            sequence.append([before])
            logprobs[index] += logprob(await sequence.next(only=[token], statistics=True), token)
    probabilities = [math.exp(value) for value in logprobs]
    total = sum(probabilities)
    ranked = sorted(zip(labels, probabilities), key=lambda one: -one[1])
    return Response.json(
        {
            "label": ranked[0][0],
            # Small if the model would rather write something else.
            "probability_of_any_label": round(total, 3),
            "labels": [{"label": label, "share": round(value / (total or 1), 3)} for label, value in ranked],
        }
    )


def logprob(distribution, token):
    """The log probability of one of the candidates."""
    (logit,) = [one.logit for one in distribution.candidates if one.token == token]
    return logit - distribution.statistics.log_normalizer


def check(labels):
    for index, label in enumerate(labels):
        for other in labels[:index] + labels[index + 1 :]:
            if other.startswith(label):
                raise Problem(
                    400,
                    "invalid-labels",
                    f"the label {other!r} begins with the label {label!r}; expected labels that differ before their end",
                )
