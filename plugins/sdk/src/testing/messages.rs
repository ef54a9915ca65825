//! `wasmcloud:messaging/consumer` of the scripted host.

use super::installed::script;
use crate::bindings::messages::wasmcloud::messaging::types::{BrokerMessage, Error};
use crate::messages::Message;

pub(crate) async fn publish(message: BrokerMessage) -> Result<(), Error> {
    let script = script();
    let subjects = std::iter::once(&message.subject).chain(&message.reply_to);
    if !subjects.into_iter().all(|subject| is_subject(subject)) {
        return Err(Error::SubjectInvalid);
    }
    let mut grants = script.message_grants.iter();
    if !grants.any(|pattern| selects(pattern, &message.subject)) {
        return Err(Error::AccessDenied);
    }
    script.published.borrow_mut().push(Message::from(message));
    Ok(())
}

fn is_subject(text: &str) -> bool {
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    let is_token = |token: &str| !token.is_empty() && token.chars().all(is_word);
    text.len() <= 256 && text.split('.').all(is_token)
}

fn selects(pattern: &str, subject: &str) -> bool {
    let (mut wanted, mut found) = (pattern.split('.'), subject.split('.'));
    loop {
        match (wanted.next(), found.next()) {
            (Some(">"), Some(_)) | (None, None) => return true,
            (Some(token), Some(other)) if token == "*" || token == other => {}
            _ => return false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{is_subject, selects};

    #[test]
    fn patterns_select_subjects_as_the_host_does() {
        for (pattern, subject, expected) in [
            ("a.b", "a.b", true),
            ("a.b", "a", false),
            ("a.*", "a.b", true),
            ("a.*", "a", false),
            ("a.*", "a.b.c", false),
            ("a.>", "a.b.c", true),
            ("a.>", "a", false),
            (">", "a", true),
        ] {
            assert_eq!(selects(pattern, subject), expected, "{pattern} {subject}");
        }
        assert!(is_subject("a-1.b_2") && !is_subject("a..b") && !is_subject("a.*"));
    }
}
