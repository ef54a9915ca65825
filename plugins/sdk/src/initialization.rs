//! [`initialize!`](crate::initialize!): what a plugin prepares once, when it is deployed.

/// Exports a function that the host calls once, when the plugin is deployed with `initialize = true`. Each instance then
/// begins with the memory that the function left, instead of computing it for each request.
///
/// It suits what all requests have in common and what takes time: tables, compiled regular expressions, parsed templates.
/// Keep it in a [`LazyLock`](std::sync::LazyLock), so that the plugin works without `initialize`, too.
///
/// The function returns `Result<(), String>`; an error refuses the deployment. It may call nothing of the host. So it has no
/// models, configuration, clock, output or random numbers, nor a [`HashMap`](std::collections::HashMap), whose keys are
/// random; use a [`BTreeMap`](std::collections::BTreeMap).
///
/// ```standalone_crate
/// use corral_sdk::{Error, Request, Response, testing::block_on};
/// use std::collections::BTreeMap;
/// use std::sync::LazyLock;
///
/// static CAPITALS: LazyLock<BTreeMap<&str, &str>> = LazyLock::new(|| {
///     // Imagine a large file with `include_str!`.
///     "France:Paris\nPeru:Lima".lines().filter_map(|line| line.split_once(':')).collect()
/// });
///
/// fn initialize() -> Result<(), String> {
///     LazyLock::force(&CAPITALS);
///     Ok(())
/// }
///
/// async fn capital(mut request: Request) -> Result<Response, Error> {
///     let country = request.text().await?;
///     let capital = CAPITALS.get(&*country);
///     Ok(Response::text(capital.copied().unwrap_or("unknown")))
/// }
///
/// corral_sdk::initialize!(initialize);
/// corral_sdk::handler!(capital);
///
/// # fn main() {
/// let response = block_on(capital(Request::post("/").with_body("Peru"))).unwrap();
/// assert_eq!(block_on(response.read()), b"Lima");
/// # }
/// ```
#[macro_export]
macro_rules! initialize {
    ($initialize:path) => {
        #[allow(unsafe_code)]
        const _: () = {
            struct Exported;

            impl $crate::bindings::initialized::exports::corral::plugin::initialization::Guest
                for Exported
            {
                fn initialize() -> ::std::result::Result<(), ::std::string::String> {
                    $initialize()
                }
            }

            $crate::bindings::initialized::export!(
                Exported with_types_in $crate::bindings::initialized
            );
        };
    };
}
