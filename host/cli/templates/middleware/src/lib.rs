//! Middleware: sees each request before the handler, and the response after it. This one refuses long prompts.

use corral_sdk::middleware::Next;
use corral_sdk::{Error, Request, Response};

corral_sdk::middleware!(check);

/// Most bytes of a prompt.
const MAX_PROMPT: usize = 1000;

async fn check(mut request: Request, next: Next) -> Result<Response, Error> {
    let prompt = request.text().await?;
    if prompt.len() > MAX_PROMPT {
        let detail = format!("the prompt has {} bytes; expected at most {MAX_PROMPT}", prompt.len());
        return Err(Error::bad_request("long-prompt", detail));
    }
    // The handler gets the body that was read here.
    let response = next.handle(request.with_body(prompt)).await?;
    Ok(response.with_header("x-checked", "yes"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use corral_sdk::testing::block_on;

    fn send(prompt: &str) -> Result<Response, Error> {
        let next = Next::to(async |mut request: Request| {
            Ok::<_, Error>(Response::text(request.text().await?))
        });
        block_on(check(Request::post("/").with_body(prompt), next))
    }

    #[test]
    fn short_prompt_reaches_the_handler() {
        let response = send("12+7=").unwrap();
        assert_eq!(response.header("x-checked"), Some("yes"));
        assert_eq!(block_on(response.read()), b"12+7=");
    }

    #[test]
    fn long_prompt_is_refused() {
        let error = send(&"x".repeat(MAX_PROMPT + 1)).err().unwrap();
        assert_eq!((error.status(), error.code()), (400, "long-prompt"));
    }
}
