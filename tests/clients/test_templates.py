"""The templates of the SDK's tests: jinja2 renders the same prompts, also for the demo model's own template."""

import json

import jinja2
import pytest

from corral import ROOT, chat, complete, prompt, render

TEMPLATE_DIR = ROOT / "plugins/openai/templates"
CASES = [
    pytest.param(file, case, id=f"{file.name.removesuffix('.cases.json')}: {case['name']}")
    for file in sorted(TEMPLATE_DIR.glob("*.cases.json"))
    for case in json.loads(file.read_text())
]


@pytest.mark.offline
def test_every_template_has_cases():
    names = {file.stem for file in TEMPLATE_DIR.glob("*.jinja")}
    assert names == {file.name.removesuffix(".cases.json") for file in TEMPLATE_DIR.glob("*.cases.json")}
    assert len(names) >= 6
    assert len(CASES) >= 4 * len(names)


@pytest.mark.offline
@pytest.mark.parametrize(("file", "case"), CASES)
def test_template_equals_jinja2(file, case):
    template = file.with_name(file.name.replace(".cases.json", ".jinja")).read_text()
    case = {**case, **case.pop("arguments", {})}
    name, expected, error = (case.pop(member, None) for member in ["name", "expected", "error"])
    assert (expected is None) != (error is None), name
    case.setdefault("tools", None)
    if error:
        with pytest.raises(jinja2.TemplateError, match=error):
            render(template, **case)
    else:
        assert render(template, **case) == expected


def test_demo_model_template_equals_jinja2():
    for question in ["12+7=", "repeat: Blue owls, 7!"]:
        answer = chat(question)
        assert answer.usage.prompt_tokens == len(prompt(question))
        assert complete(prompt(question)).choices[0].text == answer.choices[0].message.content
