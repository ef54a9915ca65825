"""Routes of llama.cpp's server and vLLM that its own suite does not check with the demo model."""

import json
import math

import openai
import pytest

from corral import MODEL, RELIABLE_SUMS, chat, client, complete, events, post, prompt


def native(path="/completion", **more):
    status, _, value = post(path, {"temperature": 0, **more})
    assert status == 200, value
    return value


@pytest.mark.parametrize("left, right", RELIABLE_SUMS)
def test_native_completion_equals_openais(left, right):
    text = f"{left}+{right}="
    answer = native(prompt=text, n_predict=8, return_tokens=True)
    assert answer["content"] == str(left + right) == complete(text, max_tokens=8).choices[0].text
    assert answer["stop_type"] == "eos"
    assert answer["tokens_evaluated"] == len(text)
    assert answer["tokens_predicted"] == len(answer["tokens"]) == len(str(left + right)) + 1


def test_native_stream_has_the_same_text():
    body = {"prompt": "12+7=", "temperature": 0, "stream": True, "timings_per_token": True, "return_progress": True}
    parts = [json.loads(data) for _, data in events("/completion", body)]
    assert [part["stop"] for part in parts] == [False] * (len(parts) - 1) + [True]
    assert "".join(part["content"] for part in parts) == "19"
    assert parts[0]["prompt_progress"]["total"] == 5
    assert parts[-1]["timings"]["predicted_n"] == 3


def test_native_stop_string_is_named():
    answer = native(prompt="12+7=", stop=["x", "9"])
    assert (answer["content"], answer["stop_type"], answer["stopping_word"]) == ("1", "word", "9")


def test_grammars_under_other_names():
    for more, text in [
        ({"grammar": 'root ::= "ab" [c-d]', "logit_bias": {"100": 50}}, "abd"),
        ({"guided_choice": ["x.y", "z"], "logit_bias": {str(ord("z")): 50}}, "z"),
        ({"guided_regex": "[x]{3}"}, "xxx"),
        ({"structured_outputs": {"regex": "q"}}, "q"),
        ({"json_schema": {"const": 5}}, "5"),
        ({"regex": "k+k", "max_tokens": 8, "logit_bias": {str(ord("k")): -100}}, None),
    ]:
        for answer in [
            chat("12+7=", extra_body=more).choices[0].message.content,
            complete("12+7=", max_tokens=8, extra_body=more).choices[0].text,
        ]:
            assert answer == text or text is None and set(answer) == {"k"}, more


def test_wrong_grammar_is_named():
    with pytest.raises(openai.BadRequestError) as error:
        chat("12+7=", extra_body={"grammar": "root ::= ("})
    assert (error.value.code, error.value.param) == ("invalid-constraint", "grammar")


def test_template_is_applied():
    messages = [{"role": "user", "content": "12+7="}]
    answer = native("/apply-template", messages=messages)
    status, _, tokens = post("/tokenize", {"content": answer["prompt"]})
    assert tokens["tokens"] == prompt("12+7=")
    counted = native("/v1/chat/completions/input_tokens", messages=messages)
    assert counted["input_tokens"] == len(tokens["tokens"])


def test_answer_is_continued():
    messages = [{"role": "user", "content": "12+7="}, {"role": "assistant", "content": "1"}]
    more = {"continue_final_message": True, "add_generation_prompt": False}
    assert chat(messages, extra_body=more).choices[0].message.content == "9"


def test_best_of_chooses_the_likeliest():
    one = complete("12+7=", max_tokens=4)
    best = complete("12+7=", max_tokens=4, temperature=2.0, seed=1, best_of=8)
    assert len(best.choices) == 1
    assert best.choices[0].text == one.choices[0].text
    assert best.usage.completion_tokens > one.usage.completion_tokens


def test_server_tells_about_itself():
    assert native_get("/health") == {"status": "ok"}
    props = native_get("/props")
    assert props["default_generation_settings"]["n_ctx"] == 4096
    assert "<|im_start|>" in props["chat_template"]
    model = native_get("/v1/models")["data"][0]
    assert (model["id"], model["max_model_len"], model["meta"]["n_vocab"]) == (MODEL, 4096, 264)
    assert native_get("/tokenizer_info")["eos_token"] in ("<|im_end|>", "<|endoftext|>")
    slots = native_get("/slots?fail_on_no_slot=1")
    assert [slot["id"] for slot in slots] == list(range(props["total_slots"]))
    assert {slot["n_ctx"] for slot in slots} == {4096}


def native_get(path):
    status, _, value = post(path, None, method="GET")
    assert status == 200, value
    return value


def test_model_that_cannot_rerank_answers_501():
    for path in ["/rerank", "/v1/rerank", "/v1/reranking", "/v2/rerank"]:
        status, _, value = post(path, {"query": "a", "documents": ["b", "c"]})
        assert (status, value["error"]["code"]) == (501, "unsupported"), path


def test_reranker_answers_in_each_shape():
    texts = ["Paris", "learning", "a machine"]

    def rerank(**more):
        status, _, value = post("/rerank", {"query": "machine", **more}, which="CORRAL_RANK_URL")
        assert status == 200, value
        return value

    results = rerank(documents=texts, return_documents=True)["results"]
    scores = {result["index"]: result["relevance_score"] for result in results}
    assert sorted(scores) == [0, 1, 2]
    assert list(scores.values()) == sorted(scores.values(), reverse=True)
    assert all(result["document"] == {"text": texts[result["index"]]} for result in results)
    best = rerank(documents=[{"text": text} for text in texts], top_n=2)["results"]
    assert [result["index"] for result in best] == list(scores)[:2]
    for result in rerank(texts=texts, raw_scores=True):
        assert result["score"] == pytest.approx(scores[result["index"]], rel=1e-3)
    for result in rerank(texts=texts):
        assert result["score"] == pytest.approx(1 / (1 + math.exp(-scores[result["index"]])), rel=1e-3)


def test_infill_of_a_model_with_the_tokens():
    body = {"input_prefix": "12", "prompt": "+", "input_suffix": "=19", "n_predict": 12, "ignore_eos": True}
    status, _, answer = post("/infill", {"temperature": 0, "model": "thinking", **body}, which="CORRAL_THINKING_URL")
    assert status == 200, answer
    # Six characters around the completion, three control tokens.
    assert (answer["tokens_evaluated"], answer["tokens_predicted"]) == (9, 12)
    status, _, value = post("/infill", body)
    assert (status, value["error"]["code"]) == (501, "unsupported")


def test_timings_are_in_the_usage_chunk():
    stream = client().chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": "12+7="}],
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
    )
    last = list(stream)[-1]
    assert last.timings["predicted_n"] == last.usage.completion_tokens == 3
    assert last.timings["predicted_ms"] >= 0
