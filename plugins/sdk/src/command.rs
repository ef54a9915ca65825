//! The plugin's command line: `corral run PLUGIN.wasm -- ARGUMENTS`.

use std::cell::RefCell;
use std::fmt::Display;
use std::rc::Rc;

use wasip3::cli::types::ErrorCode;
use wasip3::cli::{environment, stdout};
use wasip3::wit_bindgen::StreamWriter;
use wasip3::wit_stream;

use crate::Error;

/// A run from the command line.
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
    to: Writer,
    closed: bool,
}

enum Writer {
    Output(StreamWriter<u8>),
    /// For tests.
    #[cfg_attr(target_arch = "wasm32", expect(dead_code))]
    Page(Rc<RefCell<Vec<u8>>>),
}

impl Command {
    /// The arguments, the program's name not among them.
    pub fn arguments(&self) -> &[String] {
        &self.arguments
    }

    /// Writes to the standard output, as soon as its reader takes it. [`Error::Cancelled`] if the reader
    /// went away, as under `| head`; returning that error is no failure then.
    pub async fn write(&mut self, text: &str) -> Result<(), Error> {
        let bytes = text.as_bytes().to_vec();
        match &mut self.to {
            Writer::Output(_) if self.closed => {}
            Writer::Output(writer) => self.closed = !writer.write_all(bytes).await.is_empty(),
            Writer::Page(page) => page.borrow_mut().extend(bytes),
        }
        if self.closed {
            return Err(Error::Cancelled);
        }
        Ok(())
    }

    #[cfg(not(target_arch = "wasm32"))]
    pub(crate) fn on_page(arguments: &[&str], page: &Rc<RefCell<Vec<u8>>>) -> Self {
        let arguments = arguments.iter().copied();
        Command {
            arguments: arguments.map(str::to_owned).collect(),
            to: Writer::Page(Rc::clone(page)),
            closed: false,
        }
    }
}

/// What [`command!`](crate::command!) exports.
#[doc(hidden)]
pub async fn run<E: Display>(
    run: impl AsyncFnOnce(&mut Command) -> Result<(), E>,
) -> Result<(), ()> {
    let (writer, text) = wit_stream::new();
    let written = stdout::write_via_stream(text);
    let mut command = Command {
        // The first argument is the program's name.
        arguments: environment::get_arguments().into_iter().skip(1).collect(),
        to: Writer::Output(writer),
        closed: false,
    };
    let result = run(&mut command).await;
    let closed = command.closed;
    drop(command);
    match written.await {
        // Not an error of ours, and not worth a word: that reader has what it wanted.
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

/// Makes an async function the plugin's command line: `wasi:cli/run`.
///
/// The function takes a `&mut` [`Command`], and returns a `Result` of nothing and an error that can be
/// displayed, which is printed on the standard error. A plugin may have a handler too.
#[macro_export]
macro_rules! command {
    ($run:path) => {
        #[allow(unsafe_code)]
        const _: () = {
            struct Exported;
            impl $crate::raw::wasip3::exports::cli::run::Guest for Exported {
                async fn run() -> ::core::result::Result<(), ()> {
                    $crate::command::run($run).await
                }
            }
    $crate::raw::wasip3::cli::command::export!(Exported with_types_in $crate::raw::wasip3);
        };
    };
}
