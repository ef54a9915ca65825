//! What the user is told when something does not work: one line, what happened and what to do.

use std::error::Error;
use std::fmt::Write;
use std::process::ExitCode;

/// Why the command ended early.
#[derive(Debug)]
pub(crate) enum Complaint {
    /// The command line makes no sense: exit code 2.
    Usage(String),
    /// It made sense and did not work: exit code 1.
    Failed(Cause),
}

/// Any error; its text is what the user is told.
pub(crate) type Cause = Box<dyn Error + Send + Sync>;

impl<E: Error + Send + Sync + 'static> From<E> for Complaint {
    fn from(error: E) -> Self {
        Complaint::Failed(error.into())
    }
}

/// What the user is told in place of an error that says too little.
#[derive(Debug)]
struct Told {
    text: String,
    cause: Cause,
}

impl std::fmt::Display for Told {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.text)
    }
}

impl Error for Told {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(&*self.cause)
    }
}

impl Complaint {
    /// For use with `map_err`: tells the user `text`, and the error itself only when asked.
    pub(crate) fn telling<E: Into<Cause>>(text: &str) -> impl FnOnce(E) -> Self {
        let text = text.to_owned();
        move |cause| {
            Complaint::Failed(Box::new(Told {
                text,
                cause: cause.into(),
            }))
        }
    }

    /// The same with `more` after its text.
    pub(crate) fn and(self, more: &str) -> Self {
        match self {
            Complaint::Usage(text) => Complaint::Usage(text + more),
            Complaint::Failed(cause) => Complaint::telling(&format!("{cause}{more}"))(cause),
        }
    }

    /// Writes it to stderr: one line, or with `verbose` also what caused it. Returns the code to
    /// exit with.
    pub(crate) fn tell(&self, verbose: bool) -> ExitCode {
        eprintln!("{}", self.text(verbose));
        match self {
            Complaint::Usage(_) => ExitCode::from(2),
            Complaint::Failed(_) => ExitCode::from(1),
        }
    }

    /// What [`Complaint::tell`] writes.
    pub(crate) fn text(&self, verbose: bool) -> String {
        let mut text = String::from("corral: ");
        match self {
            Complaint::Usage(message) => text.push_str(&one_line(message)),
            Complaint::Failed(error) => {
                text.push_str(&one_line(&error.to_string()));
                let mut cause = error.source().filter(|_| verbose);
                while let Some(error) = cause {
                    // Writing to a String can't fail.
                    let _ = write!(text, "\n  caused by: {}", one_line(&error.to_string()));
                    cause = error.source();
                }
            }
        }
        text
    }
}

/// The same text without line breaks or runs of blanks: other people's messages have both.
fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_unless_verbose() {
        let complaint = Complaint::telling("what\nhappened")("the\n cause");
        assert_eq!(complaint.text(false), "corral: what happened");
        assert_eq!(
            complaint.text(true),
            "corral: what happened\n  caused by: the cause"
        );
    }
}
