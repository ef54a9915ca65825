//! The login for a registry: from the command line, or from docker's configuration.

use super::args::RegistryArgs;
use crate::{Error, text_file};
use data_encoding::BASE64;
use docker_credential::{CredentialRetrievalError, DockerCredential, get_credential_from_reader};
use http::HeaderValue;
use std::env;
use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::path::{Path, PathBuf};

/// Longest password or token.
const MAX_PASSWORD_BYTES: u64 = 16 << 10;
/// Docker's own registry, as its logins name it.
const DOCKER_HUB_LOGIN: &str = "https://index.docker.io/v1/";

/// A login of a registry.
pub(super) enum Credentials {
    None,
    Password {
        user: String,
        password: String,
    },
    /// A token that is exchanged for others.
    Identity(String),
}

impl Credentials {
    /// The login that the arguments name, or docker's for this host.
    pub(super) fn find(args: &RegistryArgs, host: &str) -> Result<Self, Error> {
        if let (Some(user), Some(file)) = (&args.registry_user, &args.registry_password_file) {
            return Ok(Credentials::Password {
                user: user.clone(),
                password: read_password(file)?,
            });
        }
        let Some(file) = docker_config() else {
            return Ok(Credentials::None);
        };
        let failed = |cause: String| {
            Error::failed(format!(
                "cannot get the login for {host} from {}: {cause}; run 'docker login {host}', or give --registry-user \
                 and --registry-password-file",
                file.display()
            ))
        };
        let config = match File::open(&file) {
            Ok(config) => config,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Credentials::None),
            Err(error) => return Err(failed(error.to_string())),
        };
        let login = match host {
            "docker.io" => DOCKER_HUB_LOGIN,
            host => host,
        };
        match get_credential_from_reader(config, login) {
            Ok(DockerCredential::UsernamePassword(user, password)) => {
                Ok(Credentials::Password { user, password })
            }
            Ok(DockerCredential::IdentityToken(token)) => Ok(Credentials::Identity(token)),
            Err(CredentialRetrievalError::NoCredentialConfigured) => Ok(Credentials::None),
            // Helpers say so if they know no login for the host.
            Err(CredentialRetrievalError::HelperFailure { stdout, .. })
                if stdout.contains("credentials not found") =>
            {
                Ok(Credentials::None)
            }
            // What it printed may be a secret.
            Err(CredentialRetrievalError::HelperFailure { helper, .. }) => {
                Err(failed(format!("{helper} failed")))
            }
            Err(error) => Err(failed(error.to_string())),
        }
    }

    /// Whom a refusal names.
    pub(super) fn shown(&self) -> Option<String> {
        match self {
            Credentials::None => None,
            Credentials::Password { user, .. } => Some(format!("user '{user}' and its password")),
            Credentials::Identity(_) => Some("login of docker".to_owned()),
        }
    }

    /// The value of `Authorization` with a user and a password.
    pub(super) fn basic(&self) -> Option<HeaderValue> {
        let Credentials::Password { user, password } = self else {
            return None;
        };
        let pair = BASE64.encode(format!("{user}:{password}").as_bytes());
        let mut value = HeaderValue::from_str(&format!("Basic {pair}")).ok()?;
        value.set_sensitive(true);
        Some(value)
    }
}

fn docker_config() -> Option<PathBuf> {
    let named = env::var_os("DOCKER_CONFIG").filter(|dir| !dir.is_empty());
    let dir = match named {
        Some(dir) => PathBuf::from(dir),
        None => Path::new(&env::var_os("HOME")?).join(".docker"),
    };
    Some(dir.join("config.json"))
}

/// The first line of a file, or of standard input for `-`.
fn read_password(file: &Path) -> Result<String, Error> {
    let failed = |cause: &dyn std::fmt::Display| {
        Error::failed(format!(
            "cannot read the registry's password from {}: {cause}",
            file.display()
        ))
    };
    let read = match file == Path::new("-") {
        true => io::read_to_string(io::stdin().take(MAX_PASSWORD_BYTES)),
        false => text_file::read(file, MAX_PASSWORD_BYTES),
    };
    let text = read.map_err(|error| failed(&error))?;
    match text.lines().next().filter(|line| !line.is_empty()) {
        Some(line) => Ok(line.to_owned()),
        None => Err(failed(&"it is empty")),
    }
}
