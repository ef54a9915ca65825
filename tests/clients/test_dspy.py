"""DSPy. It sends no schema to models that it does not know, so the program gives one."""

import dspy

from corral import MODEL, RELIABLE_SUMS, address


def model(**more):
    return dspy.LM(f"openai/{MODEL}", api_base=f"{address()}/v1", api_key="none", temperature=0, cache=False, **more)


def test_sums_are_right():
    for a, b in RELIABLE_SUMS:
        assert model()(f"{a}+{b}=") == [str(a + b)]


class Sum(dspy.Signature):
    """Adds."""

    question: str = dspy.InputField()
    answer: int = dspy.OutputField()


def test_prediction_has_the_type_of_its_field():
    schema = {"type": "object", "properties": {"answer": {"type": "integer"}}, "required": ["answer"]}
    form = {"type": "json_schema", "json_schema": {"name": "sum", "schema": schema}}
    with dspy.context(lm=model(max_tokens=200, response_format=form), adapter=dspy.JSONAdapter()):
        assert isinstance(dspy.Predict(Sum)(question="12+7=").answer, int)
