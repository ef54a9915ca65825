use super::*;
use serde_json::json;

/// ChatML with tools in the style of Qwen's templates, and the features that they use.
const CHATML: &str = r##"{%- if tools %}
    {{- '<|im_start|>system\n' }}
    {%- if messages[0].role == 'system' %}
        {{- messages[0].content + '\n\n' }}
    {%- endif %}
    {{- "# Tools\n<tools>" }}
    {%- for tool in tools %}
        {{- "\n" }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- "\n</tools><|im_end|>\n" }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == 'tool' %}
        {{- '<|im_start|>user\n<tool_response>\n' + message.content + '\n</tool_response><|im_end|>\n' }}
        {%- continue %}
    {%- endif %}
    {%- if tools and loop.first and message.role == 'system' %}{% continue %}{% endif %}
    {{- '<|im_start|>' + message.role }}
    {%- if message.content %}
        {{- '\n' + message.content.split('</think>')[-1].lstrip('\n') }}
    {%- endif %}
    {%- for tool_call in message.tool_calls or [] %}
        {%- set call = tool_call.function if tool_call.function else tool_call %}
        {{- '\n<tool_call>\n{"name": "' + call.name + '", "arguments": ' }}
        {{- call.arguments if call.arguments is string else call.arguments | tojson }}
        {{- '}\n</tool_call>' }}
    {%- endfor %}
    {{- '<|im_end|>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\n\n</think>\n\n' }}
    {%- endif %}
{%- endif %}"##;

const CONTEXT: TemplateContext = TemplateContext {
    bos_token: "<s>",
    eos_token: "</s>",
    now: 1_735_689_599,
};

fn chat(value: Json) -> Chat {
    let list = |name: &str| value[name].as_array().cloned().unwrap_or_default();
    Chat {
        messages: list("messages"),
        tools: list("tools"),
        variables: value["arguments"].as_object().cloned().unwrap_or_default(),
        ..Chat::default()
    }
}

#[test]
fn chatml_renders_as_transformers_does() {
    let weather = json!({"type": "function", "function": {
        "name": "weather", "description": "It's <b>\"hot\"</b> & é",
        "parameters": {"type": "object", "properties": {"z": {"n": 1.0}, "a": {"n": [1, true, null]}}},
    }});
    for (value, expected) in [
        (
            json!({"messages": [{"role": "user", "content": "Hi <b> & 'x'"}]}),
            "<|im_start|>user\nHi <b> & 'x'<|im_end|>\n<|im_start|>assistant\n",
        ),
        (
            json!({"messages": [
                {"role": "system", "content": "Be brief."},
                {"role": "user", "content": "1"},
                {"role": "assistant", "content": "<think>hm</think>\n\n2"},
                {"role": "user", "content": "3"},
            ], "arguments": {"enable_thinking": false}}),
            "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n1<|im_end|>\n\
             <|im_start|>assistant\n2<|im_end|>\n<|im_start|>user\n3<|im_end|>\n\
             <|im_start|>assistant\n<think>\n\n</think>\n\n",
        ),
        (
            json!({"messages": [
                {"role": "system", "content": "Be brief."},
                {"role": "user", "content": "Weather?"},
                {"role": "assistant", "content": null, "tool_calls": [
                    {"id": "1", "type": "function", "function": {"name": "weather", "arguments": "{\"city\": \"Bern\"}"}},
                    {"name": "weather", "arguments": {"city": "Zürich", "n": 2}},
                ]},
                {"role": "tool", "tool_call_id": "1", "content": "18 °C"},
            ], "tools": [weather]}),
            "<|im_start|>system\nBe brief.\n\n# Tools\n<tools>\n\
             {\"type\": \"function\", \"function\": {\"name\": \"weather\", \"description\": \"It's <b>\\\"hot\\\"</b> & é\", \
             \"parameters\": {\"type\": \"object\", \"properties\": {\"z\": {\"n\": 1.0}, \"a\": {\"n\": [1, true, null]}}}}}\n\
             </tools><|im_end|>\n<|im_start|>user\nWeather?<|im_end|>\n<|im_start|>assistant\n\
             <tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Bern\"}}\n</tool_call>\n\
             <tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Zürich\", \"n\": 2}}\n</tool_call><|im_end|>\n\
             <|im_start|>user\n<tool_response>\n18 °C\n</tool_response><|im_end|>\n<|im_start|>assistant\n",
        ),
    ] {
        assert_eq!(render(CHATML, &chat(value), CONTEXT).unwrap(), expected);
    }
}

/// Templates, and what they render.
const FEATURES: &str = r#"
{{ bos_token }}|{{ eos_token }} => <s>|</s>
{{ messages[0]['content'] | trim }}|{{ messages[0].content.strip() }} => Hi|Hi
{{ messages[0].content.startswith(' H') }} {{ none }} => True None
{{ messages[0].get('name', 'nobody') }} {{ messages[-1].role.upper() }} => nobody USER
{% for k, v in messages[0].items() %}{{ k }} {% endfor %}| => role content |
{% for k, v in messages[0] | items %}{{ k }} {% endfor %}| => role content |
{% set ns = namespace(n=0) %}{% for i in range(9) %}{% if i == 3 %}{% break %}{% endif %}{% set ns.n = ns.n + i %}{% endfor %}{{ ns.n }} => 3
{{ messages[::-1][0].role }}{{ messages[1:] | length }} => user0
{% macro m(x) %}[{{ x }}]{% endmacro %}{{ m('y') }} => [y]
{{ strftime_now('%d %b %Y') }} => 31 Dec 2024
{{ tools[0] | tojson }} => {"b": [1, {"é": "</s>"}], "a": 1}
{{ tools[0] | tojson(ensure_ascii=true) }} => {"b": [1, {"\u00e9": "</s>"}], "a": 1}
{{ tools[0] | tojson(sort_keys=true) }} => {"a": 1, "b": [1, {"é": "</s>"}]}
{{ tools[0].b | tojson(separators=[',', ':']) }} => [1,{"é":"</s>"}]
{{ 'a' ~ 1 ~ 'b' }}{% if undefined_name is not defined %}!{% endif %} => a1b!
{% if documents %}x{% endif %}{{ '' if tools is none else 't' }} => t
"#;

#[test]
fn python_features_of_templates_work() {
    let value = json!({"messages": [{"role": "user", "content": " Hi\n"}], "tools": [{"b": [1, {"é": "</s>"}], "a": 1}]});
    let lines = FEATURES.trim().lines();
    let of_lines = lines.map(|line| line.split_once(" => ").unwrap());
    let with_lines = [
        ("{% if true %}\n    a\n    {% endif %}\nb", "    a\nb"),
        (
            "{{ tools[0].b | tojson(indent=2) }}",
            "[\n  1,\n  {\n    \"é\": \"</s>\"\n  }\n]",
        ),
    ];
    for (template, expected) in of_lines.chain(with_lines) {
        let found = render(template, &chat(value.clone()), CONTEXT);
        assert_eq!(found.as_deref(), Ok(expected), "{template}");
    }
}

#[test]
fn empty_tools_are_none() {
    let value = json!({"messages": [{"role": "user", "content": ""}], "tools": []});
    let template = "{{ tools is none }} {{ tools is defined }} {% if not tools %}-{% endif %}";
    let expected = "True True -";
    assert_eq!(render(template, &chat(value), CONTEXT).unwrap(), expected);
}

#[test]
fn template_errors_give_the_reason() {
    for (template, detail) in [
        (
            "{{ raise_exception('Roles must alternate') }}",
            "Roles must alternate",
        ),
        ("{% if %}", "syntax error"),
        ("{{ messages.nope() }}", "nope"),
        ("{{ messages | nope }}", "nope"),
        ("{{ strftime_now('%K') }}", "%K"),
    ] {
        let problem = render(template, &Chat::default(), CONTEXT).unwrap_err();
        assert_eq!((problem.status(), problem.code()), (400, "template-error"));
        assert!(problem.to_string().contains(detail), "{problem}");
    }
}

#[test]
fn variables_do_not_override_built_in_ones() {
    let value = json!({"messages": [{"role": "user", "content": "a"}], "arguments": {"messages": [], "bos_token": "x", "own": 1}});
    assert_eq!(
        render(
            "{{ messages | length }}{{ bos_token }}{{ own }}",
            &chat(value),
            CONTEXT
        )
        .unwrap(),
        "1<s>1"
    );
}
