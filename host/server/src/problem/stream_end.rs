//! The end of a stream that fails after its head: an error in the form of the API.

use super::{ErrorFormat, Problem};
use bytes::Bytes;
use serde_json::json;

/// The form of a stream that the host can end with an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StreamFormat {
    /// Server-sent events, whose errors have this format.
    Events(ErrorFormat),
    /// Server-sent events of OpenAI's Responses API.
    ResponsesEvents,
    /// Lines of JSON, as in Ollama's API.
    JsonLines,
}

impl Problem {
    /// What ends a stream that fails. `response_id` is the id of its response in the Responses API.
    pub(crate) fn stream_end(&self, format: StreamFormat, response_id: &str) -> Bytes {
        let end = match format {
            // OpenAI's clients ignore event names and look for an `error` in the data of every event.
            StreamFormat::Events(ErrorFormat::OpenAi) => {
                let text = self.text(ErrorFormat::OpenAi);
                format!("data: {text}\n\ndata: [DONE]\n\n")
            }
            StreamFormat::Events(format) => {
                format!("event: error\ndata: {}\n\n", self.text(format))
            }
            StreamFormat::ResponsesEvents => self.responses_events(response_id),
            StreamFormat::JsonLines => self.text(ErrorFormat::Ollama) + "\n",
        };
        end.into()
    }

    /// The events with which the plugin `openai` ends such a stream, as far as the host knows their members. It does
    /// not count the events before, but clients require numbers. OpenAI's Python client needs the member `error`, others
    /// those beside it, and Codex the second event.
    fn responses_events(&self, response_id: &str) -> String {
        let code = self.openai_code();
        let error = json!({
            "type": "error",
            "code": code,
            "message": self.detail,
            "param": null,
            "sequence_number": 0,
            "error": self.openai_error(),
        });
        let failed = json!({
            "type": "response.failed",
            "response": {
                "id": response_id,
                "object": "response",
                "status": "failed",
                "error": {"code": code, "message": self.detail},
                "output": [],
            },
            "sequence_number": 0,
        });
        format!("event: error\ndata: {error}\n\nevent: response.failed\ndata: {failed}\n\n")
    }
}

/// Bytes at the start of an event in which its response begins.
const HEAD_BYTES: usize = 1024;

/// The id of the response that an event of the Responses API shows, as the first one does.
pub(crate) fn shown_response_id(event: &[u8]) -> Option<String> {
    let head = String::from_utf8_lossy(&event[..event.len().min(HEAD_BYTES)]);
    let (_, response) = head.split_once("\"response\":")?;
    let (_, value) = response.split_once("\"id\":")?;
    let (id, _) = value.trim_start().strip_prefix('"')?.split_once('"')?;
    Some(id.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn end(format: StreamFormat) -> String {
        let end = Problem::bad_request("say \"when\"\n").stream_end(format, "resp_7");
        String::from_utf8(end.to_vec()).expect("text")
    }

    #[test]
    fn streams_end_as_their_clients_expect() {
        let text = |format| Problem::bad_request("say \"when\"\n").text(format);
        for (format, expected) in [
            (ErrorFormat::OpenAi, "data: TEXT\n\ndata: [DONE]\n\n"),
            (ErrorFormat::Anthropic, "event: error\ndata: TEXT\n\n"),
            (ErrorFormat::Problem, "event: error\ndata: TEXT\n\n"),
        ] {
            let expected = expected.replace("TEXT", &text(format));
            assert_eq!(end(StreamFormat::Events(format)), expected);
        }
        let line = "{\"error\":\"say \\\"when\\\"\\n\"}\n";
        assert_eq!(end(StreamFormat::JsonLines), line);
    }

    #[test]
    fn responses_fail_with_two_named_events() {
        let end = end(StreamFormat::ResponsesEvents);
        let events: Vec<_> = end.split_terminator("\n\n").collect();
        assert_eq!(events.len(), 2, "{end}");
        for (event, name) in events.into_iter().zip(["error", "response.failed"]) {
            let prefix = format!("event: {name}\ndata: ");
            let data = event.strip_prefix(&prefix).expect(event);
            let data: serde_json::Value = serde_json::from_str(data).expect("JSON");
            assert_eq!(data["type"], name);
            assert_eq!(data["sequence_number"], 0);
            let error = match name {
                "error" => {
                    assert_eq!(data["error"]["type"], "invalid_request_error");
                    &data
                }
                _ => {
                    assert_eq!(data["response"]["id"], "resp_7");
                    &data["response"]["error"]
                }
            };
            assert_eq!(error["code"], "bad-request");
            assert_eq!(error["message"], "say \"when\"\n");
        }
    }

    #[test]
    fn event_shows_id_of_its_response() {
        for (event, expected) in [
            (
                "event: response.created\ndata: {\"type\":\"response.created\",\"response\":{\"id\":\"resp_1\",\"o\":1}}",
                Some("resp_1"),
            ),
            (
                "data: {\"response\": {\"object\": \"response\", \"id\": \"resp_2\"}}",
                Some("resp_2"),
            ),
            (
                "data: {\"type\":\"response.x\",\"item\":{\"id\":\"m\"}}",
                None,
            ),
            ("data: {\"response\":{\"id\":7}}", None),
            ("data: {\"response\":{\"id\":\"cut", None),
            (": keep-alive\n\n", None),
        ] {
            let found = shown_response_id(event.as_bytes());
            assert_eq!(found.as_deref(), expected, "{event}");
        }
    }
}
