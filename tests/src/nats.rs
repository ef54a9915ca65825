//! A NATS server with JetStream on this machine, in a directory of its own.

use crate::child::find_in_output;
use crate::{artifacts, block_on, free_ports, scratch_dir, signal};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// A server, which can be stopped and started again. Dropping it kills the process.
pub struct Nats {
    directory: PathBuf,
    arguments: Vec<String>,
    port: u16,
    child: Option<Child>,
}

impl Nats {
    /// Starts a server.
    pub fn start() -> Self {
        Self::start_with(&[])
    }

    /// Starts a server with additional arguments.
    pub fn start_with(arguments: &[&str]) -> Self {
        let mut nats = Nats {
            directory: scratch_dir(),
            arguments: arguments
                .iter()
                .map(|&argument| argument.to_owned())
                .collect(),
            port: free_ports(),
            child: None,
        };
        nats.start_again();
        nats
    }

    /// Starts the stopped server, at the same port.
    pub fn start_again(&mut self) {
        assert!(self.child.is_none(), "it runs");
        let mut child = Command::new(artifacts::nats_server())
            .args(["--jetstream", "--addr", "127.0.0.1"])
            .args(["--port", &self.port.to_string()])
            .arg("--store_dir")
            .arg(&self.directory)
            .args(&self.arguments)
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("nats-server starts");
        let log = child.stderr.take().expect("piped");
        // From here on, dropping `self` kills the process.
        self.child = Some(child);
        find_in_output(log, |line| line.contains("Server is ready").then_some(()));
    }

    /// Kills the server.
    pub fn stop(&mut self) {
        if let Some(mut child) = self.child.take() {
            // It may have ended by itself.
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Sends a signal, by its name without `SIG`. `STOP` leaves its connections open, without answers, until `CONT`.
    pub fn signal(&self, name: &str) {
        signal(self.child.as_ref().expect("it runs").id(), name);
    }

    /// Removes all data of the stopped server.
    pub fn lose_data(&self) {
        assert!(self.child.is_none(), "it runs");
        std::fs::remove_dir_all(self.directory.join("jetstream")).expect("its own directory");
    }

    /// Copies all data of the stopped server. Returns the copy.
    pub fn back_up(&self) -> PathBuf {
        let copy = scratch_dir();
        self.copy(&self.directory, &copy);
        copy
    }

    /// Gives the stopped server, which has no data, that of a copy.
    pub fn restore(&self, copy: &Path) {
        self.copy(copy, &self.directory);
    }

    fn copy(&self, from: &Path, to: &Path) {
        assert!(self.child.is_none(), "it runs");
        let status = Command::new("cp")
            .arg("-r")
            .args([from.join("jetstream"), to.join("jetstream")])
            .status()
            .expect("cp is there");
        assert!(status.success(), "cp -r {}", from.display());
    }

    /// `nats://127.0.0.1:PORT`.
    pub fn url(&self) -> String {
        format!("nats://127.0.0.1:{}", self.port)
    }

    /// The port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Replaces the bytes of a component in the cluster's store, by its digest.
    pub fn replace_component(&self, digest: &str, bytes: &[u8]) {
        block_on(async {
            let context = self.context().await;
            let bucket = context.get_object_store("corral_components").await;
            let bucket = bucket.expect("the hosts have made it");
            let mut reader = bytes;
            bucket
                .put(digits(digest), &mut reader)
                .await
                .expect("stored");
        });
    }

    /// Removes the bytes of a component from the cluster's store, but not what names them.
    pub fn remove_parts(&self, digest: &str) {
        block_on(async {
            let context = self.context().await;
            let bucket = context.get_object_store("corral_components").await;
            let bucket = bucket.expect("the hosts have made it");
            let info = bucket.info(digits(digest)).await;
            let id = info.expect("it was uploaded").nuid;
            let stream = context.get_stream("OBJ_corral_components").await;
            let stream = stream.expect("the hosts have made it");
            let parts = stream
                .purge()
                .filter(format!("$O.corral_components.C.{id}"));
            parts.await.expect("removed");
        });
    }

    async fn context(&self) -> async_nats::jetstream::Context {
        let client = async_nats::connect(self.url()).await.expect("it runs");
        async_nats::jetstream::new(client)
    }
}

/// The digits of a digest.
fn digits(digest: &str) -> &str {
    digest.strip_prefix("sha256:").expect("a digest")
}

impl Drop for Nats {
    fn drop(&mut self) {
        self.stop();
    }
}
