//! What the user is told when something does not work: one line, what happened and what to do.

use std::fmt::Write;
use std::process::ExitCode;

/// Why the command ended early.
#[derive(Debug)]
pub(crate) enum Complaint {
    /// The command line makes no sense: exit code 2.
    Usage(String),
    /// It made sense and did not work: exit code 1.
    Failed(anyhow::Error),
}

impl<E: Into<anyhow::Error>> From<E> for Complaint {
    fn from(error: E) -> Self {
        Complaint::Failed(error.into())
    }
}

impl Complaint {
    /// Writes it to stderr: one line, or with `verbose` also what caused it. Returns the code to
    /// exit with.
    pub(crate) fn tell(&self, verbose: bool) -> ExitCode {
        eprintln!("{}", self.text(verbose));
        match self {
            Complaint::Usage(_) => ExitCode::from(2),
            Complaint::Failed(_) => ExitCode::from(1),
        }
    }

    fn text(&self, verbose: bool) -> String {
        let mut text = String::from("corral: ");
        match self {
            Complaint::Usage(message) => text.push_str(&one_line(message)),
            Complaint::Failed(error) => {
                text.push_str(&one_line(&error.to_string()));
                if verbose {
                    for cause in error.chain().skip(1) {
                        // Writing to a String can't fail.
                        let _ = write!(text, "\n  caused by: {}", one_line(&cause.to_string()));
                    }
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
        let complaint = Complaint::Failed(anyhow::anyhow!("the\n cause").context("what\nhappened"));
        assert_eq!(complaint.text(false), "corral: what happened");
        assert_eq!(
            complaint.text(true),
            "corral: what happened\n  caused by: the cause"
        );
    }
}
