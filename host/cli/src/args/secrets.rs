//! `--secret`: where the server reads the values of secrets, and reading them.
//!
//! No message repeats an argument, since a value may stand in it by mistake.

use super::parsers::check_names;
use crate::Error;
use clap::Args;
use corral_runtime::{MAX_SECRET_BYTES, MAX_SECRETS, Secret, check_secret_name};
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::fmt;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// The directory of systemd's credentials.
const CREDENTIALS: &str = "CREDENTIALS_DIRECTORY";

/// Values of secrets by name.
pub(crate) type SecretValues = BTreeMap<String, Secret>;

#[derive(Args, Debug, Default)]
#[command(next_help_heading = "Security")]
pub struct SecretArgs {
    /// Secret that deployments can be granted: NAME=env:VARIABLE, NAME=file:PATH or NAME=credential:NAME; repeatable
    #[arg(long = "secret", value_name = "NAME=SOURCE")]
    secrets: Vec<SecretArg>,
}

/// `NAME=SOURCE`, or what is wrong with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SecretArg(Result<(String, SecretSource), String>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum SecretSource {
    /// An environment variable.
    Variable(String),
    File(PathBuf),
    /// A credential that systemd passes to the service.
    Credential(String),
}

impl FromStr for SecretArg {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Self, Infallible> {
        Ok(SecretArg(parse(text)))
    }
}

fn parse(text: &str) -> Result<(String, SecretSource), String> {
    const EXPECTED: &str = "expected NAME=env:VARIABLE, NAME=file:PATH or NAME=credential:NAME, never the value itself";
    let parts = text.split_once('=').and_then(|(name, source)| {
        let (kind, place) = source.split_once(':')?;
        (!place.is_empty()).then_some((name, kind, place))
    });
    let (name, kind, place) = parts.ok_or(EXPECTED)?;
    check_secret_name(name).map_err(|problem| format!("the name before '=' {problem}"))?;
    let source = match kind {
        "env" => SecretSource::Variable(place.to_owned()),
        "file" => SecretSource::File(place.into()),
        "credential" if !place.contains('/') && place != ".." => {
            SecretSource::Credential(place.to_owned())
        }
        _ => return Err(EXPECTED.to_owned()),
    };
    Ok((name.to_owned(), source))
}

impl SecretArg {
    /// The file that it names.
    pub(crate) fn file(&self) -> Option<&Path> {
        match &self.0 {
            Ok((_, SecretSource::File(path))) => Some(path),
            _ => None,
        }
    }

    /// The line of `corral serve --check`.
    pub(crate) fn plan(&self) -> String {
        match &self.0 {
            Ok((name, source)) => format!("secret {name} is in {source}"),
            Err(problem) => problem.clone(),
        }
    }

    /// Its name and value.
    pub(crate) fn read(&self) -> Result<(String, Secret), Error> {
        let (name, source) = self.0.as_ref().map_err(Error::usage)?;
        let value = source.read().map_err(|problem| {
            Error::failed(format!(
                "cannot read the secret '{name}' from {source}: {problem}"
            ))
        })?;
        Ok((name.clone(), value))
    }
}

impl SecretArgs {
    pub(crate) fn all(&self) -> &[SecretArg] {
        &self.secrets
    }

    /// Finds errors that need no file access.
    pub(super) fn check(&self) -> Result<(), Error> {
        let names = (1..).zip(&self.secrets).map(|(number, SecretArg(arg))| {
            let name = arg.as_ref().map(|(name, _)| name);
            name.map_err(|problem| {
                Error::usage(format!("value {number} of --secret is wrong: {problem}"))
            })
        });
        let names = names.collect::<Result<Vec<_>, _>>()?;
        check_names("--secret", names.into_iter(), MAX_SECRETS)
    }

    /// Reads all values.
    pub(crate) fn read(&self) -> Result<SecretValues, Error> {
        self.secrets.iter().map(SecretArg::read).collect()
    }
}

impl fmt::Display for SecretSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SecretSource::Variable(name) => write!(f, "the variable {name}"),
            SecretSource::File(path) => write!(f, "the file {}", path.display()),
            SecretSource::Credential(name) => write!(f, "the credential {name}"),
        }
    }
}

impl SecretSource {
    /// The value without the line's end. Errors do not contain it.
    fn read(&self) -> Result<Secret, String> {
        let text = match self {
            SecretSource::Variable(name) => {
                let value = std::env::var_os(name)
                    .ok_or("it is not set in the environment of the server")?;
                value.into_string().map_err(|_| "it is not UTF-8")?
            }
            SecretSource::File(path) => read_file(path)?,
            SecretSource::Credential(name) => {
                let dir = std::env::var_os(CREDENTIALS).ok_or_else(|| {
                    format!("{CREDENTIALS} is not set; add LoadCredential={name}:PATH to the unit")
                })?;
                read_file(&Path::new(&dir).join(name))?
            }
        };
        let value = text.strip_suffix('\n').unwrap_or(&text);
        let value = value.strip_suffix('\r').unwrap_or(value);
        match value.len() {
            0 => Err("it is empty".to_owned()),
            length if length > MAX_SECRET_BYTES => Err(too_long()),
            _ => Ok(Secret::new(value)),
        }
    }
}

fn too_long() -> String {
    format!("it has more than {MAX_SECRET_BYTES} bytes")
}

fn read_file(path: &Path) -> Result<String, String> {
    // One byte more than a value with the end of its line.
    let limit = MAX_SECRET_BYTES as u64 + 3;
    let mut bytes = Vec::new();
    File::open(path)
        .and_then(|file| file.take(limit).read_to_end(&mut bytes))
        .map_err(|error| error.to_string())?;
    if bytes.len() as u64 == limit {
        return Err(too_long());
    }
    String::from_utf8(bytes).map_err(|_| "it is not UTF-8".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arg(text: &str) -> SecretArg {
        let Ok(arg) = text.parse();
        arg
    }

    fn check(texts: &[&str]) -> String {
        let secrets = texts.iter().map(|text| arg(text)).collect();
        match (SecretArgs { secrets }).check() {
            Ok(()) => String::new(),
            Err(error) => error.message(true),
        }
    }

    #[test]
    fn mistakes_do_not_repeat_the_argument() {
        assert_eq!(check(&["a=env:A", "b=file:/b", "c=credential:c"]), "");
        for (text, expected) in [
            ("hunter2", "never the value itself"),
            ("key=hunter2", "never the value itself"),
            ("key=text:hunter2", "never the value itself"),
            ("key=credential:../hunter2", "never the value itself"),
            ("key=file:", "never the value itself"),
            ("hunter2!=env:A", "not a valid name"),
        ] {
            let error = check(&["a=env:A", text]);
            assert!(error.contains(expected), "{text}: {error}");
            assert!(error.contains("value 2 of --secret"), "{error}");
            assert!(!error.contains("hunter2"), "{error}");
            assert!(!format!("{:?}", arg(text)).contains("hunter2"));
        }
        assert!(check(&["a=env:A", "a=env:B"]).contains("names 'a' twice"));
        assert!(check(&["a=env:A"; 257]).contains("257 times"));
    }

    #[test]
    fn values_lose_one_line_end_and_have_bounds() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("key");
        let read = |bytes: &[u8]| {
            std::fs::write(&path, bytes).expect("written");
            arg(&format!("key=file:{}", path.display())).read()
        };
        let value = |text: &str| ("key".to_owned(), Secret::new(text));
        let most = "x".repeat(MAX_SECRET_BYTES);
        for (bytes, expected) in [
            ("hunter2\n", "hunter2"),
            ("hunter2\r\n", "hunter2"),
            ("a\nb\n\n", "a\nb\n"),
            (&format!("{most}\r\n"), &most),
        ] {
            assert_eq!(read(bytes.as_bytes()).expect("valid"), value(expected));
        }
        for (bytes, expected) in [
            (&b"\n"[..], "it is empty"),
            (b"hunter2\xff", "it is not UTF-8"),
            (format!("{most}hunter2").as_bytes(), "more than 65536 bytes"),
            (format!("{most}xx\n").as_bytes(), "more than 65536 bytes"),
        ] {
            let error = read(bytes).expect_err(expected).message(true);
            assert!(
                error.contains(expected) && error.contains("'key'"),
                "{error}"
            );
            assert!(!error.contains("hunter2"), "{error}");
        }
        let error = arg("a=file:/no/such/file").read().expect_err("none");
        assert!(error.message(false).contains("/no/such/file"), "{error:?}");
        let error = arg("a=env:CORRAL_NO_SUCH_VARIABLE")
            .read()
            .expect_err("none");
        assert!(error.message(false).contains("is not set"), "{error:?}");
    }
}
