//! `corral watch` beside a server.

use crate::authoring::BUILD_TIMEOUT;
use crate::server::collect;
use crate::{Corral, KilledOnDrop};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// `corral watch` while it runs. Dropping it ends it.
pub struct Watch {
    child: KilledOnDrop,
    output: Arc<Mutex<String>>,
}

impl Watch {
    /// Starts `watch`, a command without the server's address.
    pub fn start(mut watch: Command, server: &Corral) -> Self {
        watch.args(["--admin", server.admin()]);
        watch.env("CORRAL_ADMIN_TOKEN", server.token().expect("a store"));
        let child = watch.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
        let mut child = child.expect("the binary starts");
        let output = Arc::<Mutex<String>>::default();
        collect(child.stdout.take().expect("piped"), output.clone());
        collect(child.stderr.take().expect("piped"), output.clone());
        Self {
            child: KilledOnDrop(child),
            output,
        }
    }

    /// The process.
    pub fn process(&mut self) -> &mut Child {
        &mut self.child.0
    }

    /// What it printed so far.
    pub fn output(&self) -> String {
        self.output.lock().expect("no panic while held").clone()
    }

    /// Waits until the output contains `text` this many times.
    pub fn wait_for(&self, text: &str, times: usize) {
        let started = Instant::now();
        while self.output().matches(text).count() < times {
            let output = self.output();
            assert!(started.elapsed() < BUILD_TIMEOUT, "no {text:?}: {output}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}
