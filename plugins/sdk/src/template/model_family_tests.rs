//! Templates in the style of known model families render as in jinja2.
//! `tests/clients/test_templates.py` checks jinja2 against the same cases.

use super::*;
use std::path::{Path, PathBuf};

#[test]
fn templates_of_every_family_render_as_in_python() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../openai/templates");
    let files = std::fs::read_dir(&dir).expect("templates exist");
    let files = files.map(|file| file.expect("readable").path());
    let templates = files.filter(|file| file.extension().is_some_and(|ending| ending == "jinja"));
    let templates: Vec<PathBuf> = templates.collect();
    assert!(templates.len() >= 6, "{templates:?}");
    for template in templates {
        let text = std::fs::read_to_string(&template).expect("readable");
        let cases = std::fs::read_to_string(template.with_extension("cases.json"));
        let cases: Vec<Json> = serde_json::from_str(&cases.expect("cases exist")).expect("a list");
        assert!(cases.len() >= 3, "{}", template.display());
        for case in cases {
            check(&text, &case, &template);
        }
    }
}

fn check(template: &str, case: &Json, path: &Path) {
    let name = format!("{}: {}", path.display(), case["name"]);
    let list = |member: &str| case[member].as_array().cloned().unwrap_or_default();
    let token = |member: &str| case[member].as_str().expect("a text");
    let chat = Chat {
        messages: list("messages"),
        tools: list("tools"),
        variables: case["arguments"].as_object().cloned().unwrap_or_default(),
        add_generation_prompt: case["add_generation_prompt"] == true,
        ..Chat::default()
    };
    let context = TemplateContext {
        bos_token: token("bos_token"),
        eos_token: token("eos_token"),
        now: case["now"].as_u64().unwrap_or(0),
    };
    let rendered = render(template, &chat, context);
    match (case["expected"].as_str(), case["error"].as_str()) {
        (Some(expected), None) => assert_eq!(rendered.as_deref(), Ok(expected), "{name}"),
        (None, Some(error)) => {
            let text = rendered.expect_err(&name).to_string();
            assert!(text.contains(error), "{name}: {text}");
        }
        _ => panic!("{name} has either `expected` or `error`"),
    }
}
