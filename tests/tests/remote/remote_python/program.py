"""Programs outside WebAssembly over a session: `program.py NAME URL ARGUMENT…`. They print JSON."""

import asyncio
import json
import sys
import time

from corral_remote import (
    Error,
    Model,
    Request,
    available_models,
    connect,
    greedy,
    next_many,
    remaining_budget,
)


def show(value):
    print(json.dumps(value), flush=True)


def details(error):
    return {
        "error": type(error).__name__,
        "status": error.status,
        "code": error.code,
        "detail": error.detail,
        "retry_after": getattr(error, "retry_after", None),
    }


async def sums(url, *questions):
    """All at once, by `generate` and by `next`."""

    async def generate(model, question):
        generation = model.sequence(question).generate(8)
        text = "".join([chunk.text async for chunk in generation])
        return text, (await generation.outcome()).finish.name

    async def choose(model, question):
        sequence, tokens = model.sequence(question), []
        while (token := greedy(await sequence.next(1))) not in model.info.end_of_generation:
            sequence.append([token])
            tokens.append(token)
        return model.detokenize(tokens)

    async with connect(url):
        model = await Model.open()
        generated = await asyncio.gather(*(generate(model, question) for question in questions))
        chosen = await asyncio.gather(*(choose(model, question) for question in questions))
        show({"generated": generated, "chosen": chosen, "models": available_models()})


async def example(url, module, body):
    """A plugin's module, as it is."""
    handle = __import__(module).handle
    async with connect(url):
        response = await handle(Request("POST", "/", body=body))
        print(response.content.decode())


async def interface(url):
    async with connect(url):
        model = await Model.open("tiny")
        sequence = model.sequence("12+7=")
        three = await model.regex("[0-9]{3}")
        constrained = await sequence.fork().generate(8, constraint=three).text()
        matcher = (await model.json_schema({"enum": ["yes", "no"]})).matcher()
        matcher.accept(model.tokenize('"')[0])
        top = await sequence.next(2, statistics=True)
        both = await next_many([sequence, model.sequence("12+7=1")], only=[48 + 1, 48 + 9])
        logits = (await sequence.next(None)).logits
        endless = sequence.generate(4000, ignore_eos=True)
        first = await anext(endless)
        endless.cancel()
        length = len(sequence)
        sequence.truncate(5)
        try:
            async with asyncio.timeout(0.01):
                await sequence.generate(16000, ignore_eos=True).text()
        except TimeoutError:
            sequence.truncate(5)
        again = await sequence.generate(8).text()
        vectors = await model.embed(["a", "a", "b"])
        show(
            {
                "constrained": constrained,
                "allows": [matcher.allows(ord("y")), matcher.fork().allows(ord("x"))],
                "forced": model.detokenize((matcher.accept(ord("y")), matcher.forced(9))[1]),
                "complete": matcher.is_complete(),
                "top": top.candidates[0].token,
                "probability": 2.718281828 ** (top.candidates[0].logit - top.statistics.log_normalizer),
                "both": [chr(max(one.candidates, key=lambda each: each.logit).token) for one in both],
                "logits": [len(logits), logits.index(max(logits))],
                "kept": length - 5 - len(first.tokens),
                "again": again,
                "embeddings": [vectors[0] == vectors[1], vectors[0] == vectors[2], len(vectors[2])],
                "special": [len(model.tokenize("<|im_end|>")), len(model.tokenize("<|im_end|>", special=True))],
                "budget": [remaining_budget().tokens, remaining_budget().time > 0],
                "requests": [model.request_counts().waiting, model.request_counts().max_running],
            }
        )


async def mistakes(url):
    """Each fails by itself: the session goes on."""
    found = []
    async with connect(url):
        model = await Model.open()
        sequence = model.sequence("12+7=")

        async def late():
            return await sequence.fork().generate(8, temperature=-1.0).text()

        async def busy():
            generation = sequence.generate(4000, ignore_eos=True)
            try:
                sequence.append("1")
            finally:
                generation.cancel()

        for work in [
            lambda: sequence.generate(-1),
            lambda: sequence.append([99999]),
            lambda: sequence.append([1] * 99999),
            lambda: model.tokenize("\ud800"),
            lambda: Model.open("none"),
            lambda: model.regex("["),
            late,
            busy,
        ]:
            try:
                made = work()
                if hasattr(made, "__await__"):
                    await made
                found.append(None)
            except Error as error:
                found.append([error.code, error.status])
        sequence.truncate(5)
        show({"found": found, "text": await sequence.generate(8).text()})


async def errors(url, *keys):
    """What opening a session and asking says, with each key."""
    for key in keys or [None]:
        try:
            async with connect(url, key):
                show({"text": await (await Model.open()).sequence("12+7=").generate(8).text()})
        except Error as error:
            show(details(error))


async def https(url, *ca_files):
    """With each file of certificates; without a name, with those of the system."""
    for ca_file in ca_files:
        try:
            async with connect(url, ca_file=ca_file or None):
                show({"text": await (await Model.open()).sequence("12+7=").generate(8).text()})
        except Error as error:
            show(details(error))


async def keep(url, picture):
    """Saves a sequence with a picture, and restores it in another session."""
    async with connect(url):
        sequence = (await Model.open()).sequence()
        with open(picture, "rb") as file:
            positions = await sequence.append_image(file.read())
        kept = len(sequence) == positions
        try:
            await sequence.append_image(b"hello")
        except Error as error:
            broken = type(error).__name__
        await sequence.append("=").save("picture")
        texts = [await sequence.generate(8).text()]
    async with connect(url):
        model = await Model.open()
        restored = await model.restore("picture")
        kept = kept and len(restored) == positions + 1
        texts.append(await restored.generate(8).text())
        await model.delete_snapshot("picture")
        try:
            await model.restore("picture")
        except Error as error:
            show({"broken": broken, "kept": kept, "texts": texts, "gone": type(error).__name__})


async def quota(url, key):
    """A second session, and more tokens than the session may take."""
    async with connect(url, key):
        try:
            async with connect(url, key):
                show("opened")
        except Error as error:
            show(details(error))
        model = await Model.open()
        sequence = model.sequence("12+7=")
        show(await sequence.generate(8).text())
        try:
            show(await sequence.generate(1000).text())
        except Error as error:
            show(details(error))
        show(remaining_budget().tokens)


async def busy(url, renew_every, seconds):
    """Computes by itself for a while, without `await`."""
    async with connect(url, renew_every=float(renew_every)):
        sequence = (await Model.open()).sequence("12+7=")
        time.sleep(float(seconds))
        show(await sequence.generate(8).text())


async def stopped(url):
    """Holds sequences, and goes on when told."""
    async with connect(url):
        model = await Model.open()
        sequence = model.sequence("12+7=")
        await sequence.next(1)
        generation = sequence.fork().generate(16000, ignore_eos=True)
        await anext(generation)
        show("ready")
        sys.stdin.readline()
        for work in [generation.outcome(), sequence.next(1)]:
            try:
                await work
                show("answered")
            except Error as error:
                show(details(error))


if __name__ == "__main__":
    asyncio.run(globals()[sys.argv[1]](*sys.argv[2:]))
