//! Errors shown at the terminal: one line with what happened and what to do; `--verbose` adds the causes.

use std::fmt::Write;
use std::process::ExitCode;

/// An error that ends a command.
#[derive(Debug)]
pub enum Error {
    /// The command line is wrong: exit code 2.
    Usage(String),
    /// The command failed: exit code 1.
    Failed(Cause),
    /// Standard output is closed, as after `corral logs | head -1`: exit code 0, no message.
    OutputClosed,
}

/// An error of any type.
pub type Cause = Box<dyn std::error::Error + Send + Sync>;

impl<E: std::error::Error + Send + Sync + 'static> From<E> for Error {
    fn from(error: E) -> Self {
        Error::Failed(error.into())
    }
}

/// A message in front of a cause that says too little by itself.
#[derive(Debug)]
struct Context {
    message: String,
    cause: Cause,
}

impl std::fmt::Display for Context {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Context {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&*self.cause)
    }
}

impl Error {
    /// A failed command.
    pub fn failed(message: impl Into<String>) -> Self {
        Error::Failed(message.into().into())
    }

    /// A wrong command line.
    pub fn usage(message: impl Into<String>) -> Self {
        Error::Usage(message.into())
    }

    /// For `map_err`: shows `message`, and the error itself only with `--verbose`.
    pub fn context<E: Into<Cause>>(message: impl Into<String>) -> impl FnOnce(E) -> Self {
        let message = message.into();
        move |cause| {
            Error::Failed(Box::new(Context {
                message,
                cause: cause.into(),
            }))
        }
    }

    /// Appends `suffix` to the message.
    pub(crate) fn append(self, suffix: &str) -> Self {
        match self {
            Error::Usage(message) => Error::Usage(message + suffix),
            Error::Failed(cause) => Error::context(format!("{cause}{suffix}"))(cause),
            Error::OutputClosed => Error::OutputClosed,
        }
    }

    /// Writes the error to stderr after the name of `program`. Returns the exit code.
    pub fn report(&self, program: &str, verbose: bool) -> ExitCode {
        let code = match self {
            Error::Usage(_) => 2,
            Error::Failed(_) => 1,
            Error::OutputClosed => return ExitCode::SUCCESS,
        };
        eprintln!("{program}: {}", self.message(verbose));
        ExitCode::from(code)
    }

    /// One line, and with `verbose` one more for each cause.
    pub fn message(&self, verbose: bool) -> String {
        let error = match self {
            Error::Usage(message) => return one_line(message),
            Error::Failed(error) => error,
            Error::OutputClosed => return "standard output is closed".to_owned(),
        };
        let mut message = one_line(&error.to_string());
        let mut cause = error.source().filter(|_| verbose);
        while let Some(error) = cause {
            // Writing to a String does not fail.
            let _ = write!(message, "\n  caused by: {}", one_line(&error.to_string()));
            cause = error.source();
        }
        message
    }
}

/// The text without line breaks and runs of blanks, which messages of other libraries contain.
fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_verbose_shows_causes() {
        let error = Error::context("it\nfailed")("the\n cause");
        assert_eq!(error.message(false), "it failed");
        assert_eq!(error.message(true), "it failed\n  caused by: the cause");
    }
}
