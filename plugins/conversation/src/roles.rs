//! Roles of messages for templates that accept few of them.
//!
//! Agents send several instructions in a row, and further ones between the turns. Some templates fail unless
//! one system message comes first and `user` and `assistant` alternate after it.

use serde_json::Value;

/// Merges the instructions at the start, turns later ones into the user's, and merges neighbors of one role.
/// Returns whether anything changed.
pub fn simplify(messages: &mut Vec<Value>) -> bool {
    let before = messages.len();
    let (mut changed, mut started) = (false, false);
    let mut simple: Vec<Value> = Vec::with_capacity(before);
    for mut message in messages.drain(..) {
        if started && is_instruction(&message) {
            message["role"] = "user".into();
            changed = true;
        }
        started |= !is_instruction(&message);
        match simple.last_mut() {
            Some(last) if mergeable(last, &message) => append(last, &message),
            _ => simple.push(message),
        }
    }
    changed |= simple.len() != before;
    *messages = simple;
    changed
}

fn is_instruction(message: &Value) -> bool {
    message["role"] == "system" || message["role"] == "developer"
}

/// Whether both are instructions, or both are the user's, with text only.
fn mergeable(last: &Value, next: &Value) -> bool {
    let same = last["role"] == next["role"] && last["role"] == "user";
    (same || is_instruction(last) && is_instruction(next))
        && last["content"].is_string()
        && next["content"].is_string()
}

fn append(last: &mut Value, next: &Value) {
    if let Value::String(text) = &mut last["content"] {
        text.push_str("\n\n");
        text.push_str(next["content"].as_str().unwrap_or_default());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn roles_alternate_after_one_instruction() {
        let message = |role: &str, content: &str| json!({"role": role, "content": content});
        let mut messages = vec![
            message("developer", "a"),
            message("system", "b"),
            message("user", "c"),
            message("system", "d"),
            message("assistant", "e"),
            message("user", "f"),
        ];
        assert!(simplify(&mut messages));
        let simple = vec![
            message("developer", "a\n\nb"),
            message("user", "c\n\nd"),
            message("assistant", "e"),
            message("user", "f"),
        ];
        assert_eq!(messages, simple);
        assert!(!simplify(&mut messages));
        assert_eq!(messages, simple);
    }
}
