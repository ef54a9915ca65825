//! Middleware: plugins that stand before a handler, and [`middleware!`](crate::middleware!).
//!
//! A deployment lists its middleware in `[linked]`, the outermost first. Middleware sees each request before the handler, and
//! the response after it. It is linked like other components: without `inherit = true` it has neither models nor environment.
//!
//! Bodies that middleware does not touch pass it by: the host moves them without running it.

use std::pin::Pin;
use std::rc::Rc;

use crate::bindings::next_handler::wasi::http0_3_0::handler;
use crate::http::serve::{HostRequest, HostResponse};
use crate::http::{Request, Response};
use crate::{Error, http};
use wasip3::http::types::ErrorCode;

pub use crate::http::BodyReader;

/// The handler behind the middleware, or the next middleware.
pub struct Next(Handler);

enum Handler {
    Host(http::BodyError),
    Scripted(Rc<dyn Fn(Request) -> Answer>),
}

type Answer = Pin<Box<dyn Future<Output = Response>>>;

impl Next {
    /// Creates a handler for tests.
    pub fn to<E: Into<Response>>(
        handle: impl AsyncFn(Request) -> Result<Response, E> + 'static,
    ) -> Self {
        let handle = Rc::new(handle);
        Next(Handler::Scripted(Rc::new(move |request| {
            let handle = Rc::clone(&handle);
            Box::pin(async move { handle(request).await.unwrap_or_else(Into::into) })
        })))
    }

    /// Passes a request on. Returns as soon as the headers of the response are known; its body may follow later. If it was not
    /// answered at all, the client gets the handler's error, unless the middleware returns a response of its own.
    ///
    /// A request whose body was read needs it again: [`Request::with_body`].
    pub async fn handle(&self, request: Request) -> Result<Response, Error> {
        match &self.0 {
            Handler::Host(error) => match handler::handle(request.into_host()?).await {
                Ok(response) => Ok(Response::from_host(response)),
                Err(code) => {
                    let text = format!("the handler did not answer: {code:?}");
                    *error.borrow_mut() = Some(code);
                    Err(Error::Failed(text))
                }
            },
            Handler::Scripted(handle) => Ok(handle(request).await),
        }
    }
}

#[doc(hidden)]
pub async fn serve<E: Into<Response>>(
    request: HostRequest,
    handle: impl AsyncFnOnce(Request, Next) -> Result<Response, E>,
) -> Result<HostResponse, ErrorCode> {
    http::serve::serve_with_error(request, async |request, error| {
        let next = Next(Handler::Host(Rc::clone(error)));
        handle(request.into_forwardable(), next).await
    })
    .await
}

/// Exports an async function as middleware: it imports and exports `wasi:http/handler`. A plugin has at most one.
///
/// The function takes a [`Request`] and the [`Next`] handler, and returns what [`handler!`](crate::handler!)'s function returns.
///
/// ```standalone_crate
/// use corral_sdk::middleware::Next;
/// use corral_sdk::{Error, Request, Response, testing::block_on};
///
/// async fn authenticate(request: Request, next: Next) -> Result<Response, Error> {
///     if request.header("x-team") != Some("blue") {
///         return Err(Error::new(401, "unknown-team", "expected the header X-Team of a known team"));
///     }
///     next.handle(request).await
/// }
///
/// corral_sdk::middleware!(authenticate);
///
/// # fn main() {
/// let next = || Next::to(async |_| Ok::<_, Error>(Response::text("hello")));
/// let error = block_on(authenticate(Request::get("/"), next())).err().unwrap();
/// assert_eq!(error.status(), 401);
/// let request = Request::get("/").with_header("x-team", "blue");
/// let response = block_on(authenticate(request, next())).unwrap();
/// assert_eq!(block_on(response.read()), b"hello");
/// # }
/// ```
#[macro_export]
macro_rules! middleware {
    ($handle:path) => {
        $crate::export_http!($crate::middleware::serve, $handle);
    };
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::block_on;

    #[test]
    fn body_is_read_and_written_in_pieces() {
        let next = Next::to(async |mut request: Request| {
            let body = request.text().await?;
            let response = Response::text(body).with_header("content-length", "2");
            Ok::<_, Error>(response.with_header("x-a", "1"))
        });
        let written = block_on(async {
            let request = Request::post("/").with_body("ab");
            let mut response = next.handle(request).await?;
            let mut body = response.take_body();
            assert_eq!(response.header("content-length"), None);
            let response = response.without_header("X-A").with_stream(async move |to| {
                while let Some(piece) = body.read().await? {
                    to.bytes(piece.to_ascii_uppercase()).await?;
                }
                to.bytes("!").await
            });
            assert_eq!(response.header("x-a"), None);
            Ok::<_, Error>(response.read().await)
        });
        assert_eq!(written.unwrap(), b"AB!");
    }

    #[test]
    fn refusal_of_the_handler_is_a_response() {
        let next = Next::to(async |request: Request| {
            request.expect_method("POST")?;
            Ok::<_, Error>(Response::empty())
        });
        let response = block_on(next.handle(Request::get("/"))).unwrap();
        assert_eq!(response.status(), 405);
    }
}
