//! The plugin's side of HTTP: requests, responses, events, and [`handler!`](crate::handler).

mod events;
mod forward;
mod request;
mod response;
#[doc(hidden)]
pub mod serve;

pub use events::Events;
pub use forward::Frame;
pub use request::{BODY_LIMIT, Request};
pub use response::Response;

/// Makes an async function the plugin's handler: `wasi:http/handler`.
///
/// The function takes a [`Request`] and returns a `Result` of a [`Response`] and an error that can become
/// one, such as [`Error`](crate::Error). A plugin may have one.
///
/// ```standalone_crate
/// use corral_sdk::{Error, Request, Response};
///
/// async fn echo(mut request: Request) -> Result<Response, Error> {
///     Ok(Response::text(request.text().await?))
/// }
///
/// corral_sdk::handler!(echo);
/// # fn main() {}
/// ```
#[macro_export]
macro_rules! handler {
    ($handle:path) => {
        #[allow(unsafe_code)]
        const _: () = {
            struct Exported;
            impl $crate::raw::wasip3::exports::http::handler::Guest for Exported {
                async fn handle(
                    request: $crate::raw::wasip3::http::types::Request,
                ) -> ::core::result::Result<
                    $crate::raw::wasip3::http::types::Response,
                    $crate::raw::wasip3::http::types::ErrorCode,
                > {
                    $crate::http::serve::serve(request, $handle).await
                }
            }
    $crate::raw::wasip3::http::service::export!(Exported with_types_in $crate::raw::wasip3);
        };
    };
}
