//! HTTP requests, responses and server-sent events, and [`handler!`](crate::handler).

#[cfg(feature = "decompression")]
mod decompression;
mod events;
mod forward;
mod request;
mod response;
#[doc(hidden)]
pub mod serve;
mod text_events;

pub use events::EventWriter;
pub use forward::BodyReader;
pub(crate) use request::BodyError;
pub use request::{DEFAULT_BODY_LIMIT, Request};
pub use response::Response;
pub use text_events::EventFormat;

/// Exports an async function as the plugin's HTTP handler: `wasi:http/handler`. A plugin has at
/// most one.
///
/// The function takes a [`Request`] and returns a `Result` of a [`Response`] and an error that
/// converts into one, such as [`Error`](crate::Error).
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
        $crate::export_http!($crate::http::serve::serve, $handle);
    };
}

/// Exports `wasi:http/handler`, answered by `$serve` with the plugin's function.
#[doc(hidden)]
#[macro_export]
macro_rules! export_http {
    ($serve:path, $handle:path) => {
        #[allow(unsafe_code)]
        const _: () = {
            struct Exported;
            impl $crate::bindings::wasip3::exports::http::handler::Guest for Exported {
                async fn handle(
                    request: $crate::bindings::wasip3::http::types::Request,
                ) -> ::core::result::Result<
                    $crate::bindings::wasip3::http::types::Response,
                    $crate::bindings::wasip3::http::types::ErrorCode,
                > {
                    $serve(request, $handle).await
                }
            }
    $crate::bindings::wasip3::http::service::export!(Exported with_types_in $crate::bindings::wasip3);
        };
    };
}
