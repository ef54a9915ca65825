//! Middleware that replaces personal data in requests before the handler, and so the model, sees them: e-mail addresses,
//! telephone numbers, card numbers, IBANs and US social security numbers. The response passes it by as it is.

mod patterns;

use corral_sdk::middleware::Next;
use corral_sdk::{Error, Request, Response};
use patterns::Redaction;
use serde_json::Value;

corral_sdk::middleware!(redact);

/// Largest body, in bytes.
const MAX_BODY: usize = 8 << 20;

async fn redact(request: Request, next: Next) -> Result<Response, Error> {
    if let Some(encoding) = request.header("content-encoding") {
        let detail = format!("the body is compressed ({encoding}); send it uncompressed");
        return Err(Error::new(415, "compressed-body", detail));
    }
    let mut request = request.with_body_limit(MAX_BODY);
    let body = request.text().await?;
    let mut redaction = Redaction::default();
    let body = match serde_json::from_str(&body) {
        Ok(mut json) => {
            redact_strings(&mut json, &mut redaction);
            json.to_string()
        }
        Err(_) => redaction.redact(&body).unwrap_or(body),
    };
    let response = next.handle(request.with_body(body)).await?;
    Ok(response.with_header("x-redacted", &redaction.count().to_string()))
}

/// Redacts all strings of a JSON value but pictures, and not the names of members.
fn redact_strings(value: &mut Value, redaction: &mut Redaction) {
    match value {
        Value::String(text) if !text.starts_with("data:") => {
            if let Some(redacted) = redaction.redact(text) {
                *text = redacted;
            }
        }
        Value::Array(items) => items
            .iter_mut()
            .for_each(|item| redact_strings(item, redaction)),
        Value::Object(members) => members
            .values_mut()
            .for_each(|member| redact_strings(member, redaction)),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use corral_sdk::testing::block_on;
    use serde_json::json;

    /// What the handler gets of a request.
    fn seen(request: Request) -> String {
        let next = Next::to(async |mut request: Request| {
            Ok::<_, Error>(Response::text(request.text().await?))
        });
        let response = block_on(redact(request, next)).unwrap();
        String::from_utf8(block_on(response.read())).unwrap()
    }

    #[test]
    fn handler_sees_placeholders() {
        let messages = json!([{"role": "user", "content": "I am ann@example.com, and bob@example.org is Bob."},
            {"role": "user", "content": "Write to ann@example.com!"},
            {"role": "user", "content": [{"image_url": "data:image/png;base64,a@b.example"}]}]);
        let request = Request::post("/").with_json(&json!({"n": 1, "messages": messages}));
        let expected = json!([{"role": "user", "content": "I am [EMAIL-1], and [EMAIL-2] is Bob."},
            {"role": "user", "content": "Write to [EMAIL-1]!"},
            {"role": "user", "content": [{"image_url": "data:image/png;base64,a@b.example"}]}]);
        let expected = json!({"n": 1, "messages": expected}).to_string();
        assert_eq!(seen(request), expected);
        let text = Request::post("/").with_body("call +49 (0)30 1234567\n");
        assert_eq!(seen(text), "call [PHONE-1]\n");
        assert_eq!(seen(Request::get("/")), "");
    }

    #[test]
    fn unreadable_bodies_are_refused() {
        let next = || Next::to(async |_| Ok::<_, Error>(Response::empty()));
        let packed = Request::post("/").with_header("content-encoding", "gzip");
        let error = block_on(redact(packed, next())).err().unwrap();
        assert_eq!(error.status(), 415);
        let binary = Request::post("/").with_body([0xff]);
        let error = block_on(redact(binary, next())).err().unwrap();
        assert_eq!(error.status(), 400);
    }
}
