"""LlamaIndex, with its packages for servers with OpenAI's API."""

from llama_index.core.llms import ChatMessage
from llama_index.core.tools import FunctionTool
from llama_index.embeddings.openai_like import OpenAILikeEmbedding
from llama_index.llms.openai_like import OpenAILike

from corral import MODEL, RELIABLE_SUMS, address


def model(**more):
    return OpenAILike(
        model=MODEL,
        api_base=f"{address()}/v1",
        api_key="none",
        temperature=0,
        max_retries=0,
        context_window=4096,
        **more,
    )


def test_sums_are_right_whole_and_streamed():
    for chat in [True, False]:
        for a, b in RELIABLE_SUMS:
            asked = model(is_chat_model=chat)
            assert asked.complete(f"{a}+{b}=").text == str(a + b)
            assert [part.text for part in asked.stream_complete(f"{a}+{b}=")][-1] == str(a + b)


def test_streamed_tool_call_round_trip():
    def calculator(expression: str) -> str:
        """Evaluates an arithmetic expression."""
        return "4711"

    tool = FunctionTool.from_defaults(calculator)
    asked = model(is_chat_model=True, is_function_calling_model=True)
    question = ChatMessage(role="user", content="What is 12+7?")
    *_, first = asked.stream_chat_with_tools([tool], chat_history=[question])
    (call,) = asked.get_tool_calls_from_response(first)
    assert (call.tool_name, call.tool_kwargs) == ("calculator", {"expression": "12+7"})
    result = ChatMessage(role="tool", content="4711", additional_kwargs={"tool_call_id": call.tool_id})
    answer = asked.chat_with_tools([tool], chat_history=[question, first.message, result])
    assert answer.message.content == "4711"


def test_embeddings_have_the_models_length():
    embedding = OpenAILikeEmbedding(model_name=MODEL, api_base=f"{address()}/v1", api_key="none", max_retries=0)
    assert [len(vector) for vector in embedding.get_text_embedding_batch(["a", "12+7="])] == [128, 128]
