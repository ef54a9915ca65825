//! An OCI registry on this machine: Debian's `docker-registry`, in a directory of its own.

use crate::child::find_in_output;
use crate::deployments::digest;
use crate::{Identity, KilledOnDrop, artifacts, http_agent, scratch_dir};
use serde_json::{Value, json};
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// Media type of image manifests.
const IMAGE_TYPE: &str = "application/vnd.oci.image.manifest.v1+json";

/// A running registry. Dropping it kills the process.
pub struct Registry {
    /// `HOST:PORT`.
    pub host: String,
    directory: PathBuf,
    _child: KilledOnDrop,
    agent: ureq::Agent,
}

impl Registry {
    /// The only user of [`Registry::start_with_login`].
    pub const USER: &str = "alice";
    /// Its password.
    pub const PASSWORD: &str = "open sesame";
    /// Its bcrypt hash, of the lowest cost.
    const HASH: &str = "$2y$05$abcdefghijklmnopqrstuupx2xBUC4954936wVIjyyPHmUBFu0wCW";

    /// Starts a registry without TLS and without users.
    pub fn start() -> Self {
        Self::launch("", "127.0.0.1")
    }

    /// Starts a registry for `localhost` with this certificate, which wants a login.
    pub fn start_with_login(identity: &Identity) -> Self {
        let dir = scratch_dir();
        let [certificate, key] = identity.write(&dir).map(|path| path.display().to_string());
        let users = dir.join("htpasswd");
        std::fs::write(&users, format!("{}:{}\n", Self::USER, Self::HASH)).expect("written");
        let more = format!(
            "  tls:\n    certificate: {certificate}\n    key: {key}\n\
             auth:\n  htpasswd:\n    realm: corral\n    path: {}\n",
            users.display()
        );
        Self::launch(&more, "localhost")
    }

    fn launch(more: &str, name: &str) -> Self {
        let directory = scratch_dir();
        let config = directory.join("config.yml");
        let text = format!(
            "version: 0.1\nlog:\n  level: info\n  accesslog:\n    disabled: true\n\
             storage:\n  filesystem:\n    rootdirectory: {}\n  maintenance:\n    uploadpurging:\n      enabled: false\n\
             http:\n  addr: 127.0.0.1:0\n{more}",
            directory.display()
        );
        std::fs::write(&config, text).expect("written");
        let mut child = Command::new(artifacts::docker_registry())
            .arg("serve")
            .arg(&config)
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("docker-registry starts");
        let log = child.stderr.take().expect("piped");
        let port = find_in_output(log, |line| {
            let (_, rest) = line.split_once("listening on 127.0.0.1:")?;
            let mut digits = rest.split(|c: char| !c.is_ascii_digit());
            digits.next().map(str::to_owned)
        });
        Registry {
            host: format!("{name}:{port}"),
            directory,
            _child: KilledOnDrop(child),
            agent: http_agent(),
        }
    }

    /// `oci://HOST/NAME`.
    pub fn reference(&self, name: &str) -> String {
        format!("oci://{}/{name}", self.host)
    }

    /// The file of a blob.
    pub fn blob_file(&self, digest: &str) -> PathBuf {
        let hex = digest.strip_prefix("sha256:").expect("a digest");
        let blobs = self.directory.join("docker/registry/v2/blobs/sha256");
        blobs.join(&hex[..2]).join(hex).join("data")
    }

    /// Puts a blob into a repository and returns its descriptor. Only without a login.
    pub fn put_blob(&self, repository: &str, kind: &str, bytes: &[u8]) -> Value {
        let digest = digest(bytes);
        let url = format!("http://{}/v2/{repository}/blobs/uploads/", self.host);
        let begun = self.agent.post(url).send_empty().expect("it answers");
        let location = begun.headers().get("location").expect("an upload");
        let location = location.to_str().expect("an address").to_owned();
        let put = self.agent.put(format!("{location}&digest={digest}"));
        let put = put.content_type("application/octet-stream");
        assert_eq!(put.send(bytes).expect("it answers").status(), 201);
        json!({"mediaType": kind, "digest": digest, "size": bytes.len()})
    }

    /// Puts an image manifest under a tag and returns its digest. Only without a login.
    pub fn put_image(&self, repository: &str, tag: &str, image: &Value) -> String {
        let kind = image["mediaType"].as_str().unwrap_or(IMAGE_TYPE);
        let text = image.to_string();
        let url = format!("http://{}/v2/{repository}/manifests/{tag}", self.host);
        let put = self.agent.put(url).content_type(kind).send(&text);
        let mut put = put.expect("it answers");
        let answer = put.body_mut().read_to_string().unwrap_or_default();
        assert_eq!(put.status(), 201, "{answer}");
        digest(text.as_bytes())
    }

    /// The image manifest under a tag. Only without a login.
    pub fn image(&self, repository: &str, tag: &str) -> Value {
        let url = format!("http://{}/v2/{repository}/manifests/{tag}", self.host);
        let got = self.agent.get(url).header("accept", IMAGE_TYPE).call();
        let text = got.expect("it answers").body_mut().read_to_string();
        serde_json::from_str(&text.expect("a text")).expect("JSON")
    }

    /// A blob. Only without a login.
    pub fn blob(&self, repository: &str, digest: &str) -> Vec<u8> {
        let url = format!("http://{}/v2/{repository}/blobs/{digest}", self.host);
        let got = self.agent.get(url).call();
        got.expect("it answers")
            .body_mut()
            .read_to_vec()
            .expect("bytes")
    }

    /// Stores a signature of an artifact as cosign does: the text that was signed, and the signature in base64.
    pub fn put_signature(&self, repository: &str, artifact: &str, signed: &str, signature: &str) {
        let kind = "application/vnd.dev.cosign.simplesigning.v1+json";
        let mut layer = self.put_blob(repository, kind, signed.as_bytes());
        layer["annotations"] = json!({"dev.cosignproject.cosign/signature": signature});
        let config = self.put_blob(
            repository,
            "application/vnd.oci.image.config.v1+json",
            b"{}",
        );
        let image = json!({
            "schemaVersion": 2, "mediaType": IMAGE_TYPE, "config": config, "layers": [layer],
        });
        let tag = format!("{}.sig", artifact.replace(':', "-"));
        self.put_image(repository, &tag, &image);
    }
}
