//! The plugin's command line: `corral run PLUGIN.wasm -- ARGUMENTS`.

use std::cell::RefCell;
use std::fmt::Display;
use std::rc::Rc;

use serde::de::DeserializeOwned;
use wasip3::cli::types::ErrorCode;
use wasip3::cli::{environment, stdout};
use wasip3::wit_bindgen::StreamWriter;
use wasip3::wit_stream;

use crate::Error;

/// One invocation from the command line.
///
/// ```standalone_crate
/// use corral_sdk::{Command, Error};
///
/// async fn shout(command: &mut Command) -> Result<(), Error> {
///     let words = command.arguments().join(" ").to_uppercase();
///     command.write(&format!("{words}\n")).await
/// }
///
/// corral_sdk::command!(shout);
///
/// # fn main() {
/// let (result, written) = corral_sdk::testing::run_command(shout, &["hello", "you"]);
/// assert_eq!((result, written.as_str()), (Ok(()), "HELLO YOU\n"));
/// # }
/// ```
pub struct Command {
    arguments: Vec<String>,
    output: Output,
    closed: bool,
}

enum Output {
    Stdout(StreamWriter<u8>),
    /// Collects the output in tests.
    #[cfg_attr(target_arch = "wasm32", expect(dead_code))]
    Buffer(Rc<RefCell<Vec<u8>>>),
}

impl Command {
    /// The arguments, without the program's name.
    pub fn arguments(&self) -> &[String] {
        &self.arguments
    }

    /// Reads the only argument from JSON, as [`Request::json`](crate::Request::json) reads a body.
    ///
    /// ```
    /// use corral_sdk::{Command, Error, testing::run_command};
    ///
    /// async fn double(command: &mut Command) -> Result<(), Error> {
    ///     let number: u32 = command.json()?;
    ///     command.write(&format!("{}", 2 * number)).await
    /// }
    ///
    /// assert_eq!(run_command(double, &["21"]), (Ok(()), "42".to_owned()));
    /// let (error, _) = run_command(double, &["x"]);
    /// assert_eq!(error.unwrap_err().code(), "invalid-argument");
    /// ```
    pub fn json<T: DeserializeOwned>(&self) -> Result<T, Error> {
        let detail = match &self.arguments[..] {
            [argument] => match serde_json::from_str(argument) {
                Ok(value) => return Ok(value),
                Err(error) => format!("the argument does not match: {error}"),
            },
            other => format!("expected one argument, in JSON; found {}", other.len()),
        };
        Err(Error::bad_request("invalid-argument", detail))
    }

    /// Writes to standard output and waits until its reader takes the text. [`Error::Cancelled`] if
    /// the reader closed the pipe, as under `| head`; a command that returns this error still
    /// succeeds.
    pub async fn write(&mut self, text: &str) -> Result<(), Error> {
        let bytes = text.as_bytes().to_vec();
        match &mut self.output {
            Output::Stdout(_) if self.closed => {}
            Output::Stdout(writer) => self.closed = !writer.write_all(bytes).await.is_empty(),
            Output::Buffer(buffer) => buffer.borrow_mut().extend(bytes),
        }
        if self.closed {
            return Err(Error::Cancelled);
        }
        Ok(())
    }

    #[cfg(not(target_arch = "wasm32"))]
    pub(crate) fn with_buffer(arguments: &[&str], buffer: &Rc<RefCell<Vec<u8>>>) -> Self {
        let arguments = arguments.iter().copied();
        Command {
            arguments: arguments.map(str::to_owned).collect(),
            output: Output::Buffer(Rc::clone(buffer)),
            closed: false,
        }
    }
}

/// Runs the function that [`command!`](crate::command!) exports.
#[doc(hidden)]
pub async fn run<E: Display>(
    run: impl AsyncFnOnce(&mut Command) -> Result<(), E>,
) -> Result<(), ()> {
    let (writer, text) = wit_stream::new();
    let written = stdout::write_via_stream(text);
    let mut command = Command {
        // The first argument is the program's name.
        arguments: environment::get_arguments().into_iter().skip(1).collect(),
        output: Output::Stdout(writer),
        closed: false,
    };
    let result = run(&mut command).await;
    let closed = command.closed;
    drop(command);
    match written.await {
        // The reader closed the pipe.
        Ok(()) | Err(ErrorCode::Pipe) => {}
        Err(error) => {
            eprintln!("cannot write to the standard output: {error:?}");
            return Err(());
        }
    }
    match result {
        Err(error) if !closed => {
            eprintln!("{error}");
            Err(())
        }
        _ => Ok(()),
    }
}

/// Exports an async function as the plugin's command line: `wasi:cli/run`.
///
/// The function takes a `&mut` [`Command`] and returns `Result<(), E>`, where `E` implements
/// `Display`; errors are printed on standard error. A plugin may also have a handler.
#[macro_export]
macro_rules! command {
    ($run:path) => {
        #[allow(unsafe_code)]
        const _: () = {
            struct Exported;
            impl $crate::bindings::wasip3::exports::cli::run::Guest for Exported {
                async fn run() -> ::core::result::Result<(), ()> {
                    $crate::command::run($run).await
                }
            }
    $crate::bindings::wasip3::cli::command::export!(Exported with_types_in $crate::bindings::wasip3);
        };
    };
}
