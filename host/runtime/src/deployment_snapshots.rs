//! The named snapshots that a deployment may use.
//!
//! Disk access blocks a thread of its own. Only a few run in the process at a time, since each may hold the
//! whole state of a sequence in memory.

use std::sync::Arc;
use tokio::sync::Semaphore;

/// Snapshots that are written, read or removed at a time, over all instances.
const CONCURRENT: usize = 4;

/// The snapshots of one deployment.
#[derive(Clone, Debug)]
pub(crate) struct DeploymentSnapshots {
    /// Name of the deployment's directory. Empty for no deployment.
    pub(crate) dir: Arc<str>,
    pub(crate) permits: Arc<Semaphore>,
}

/// Permits for [`DeploymentSnapshots::new`], shared by the process.
pub(crate) fn snapshot_permits() -> Arc<Semaphore> {
    Arc::new(Semaphore::new(CONCURRENT))
}

impl DeploymentSnapshots {
    /// The snapshots of the named deployment.
    pub(crate) fn new(deployment: &str, permits: Arc<Semaphore>) -> Self {
        Self {
            dir: dir_name(deployment).into(),
            permits,
        }
    }

    /// No snapshots.
    pub(crate) fn none(&self) -> Self {
        Self {
            dir: Arc::default(),
            permits: Arc::clone(&self.permits),
        }
    }
}

/// A directory name for a deployment. Characters of routes that deployment names lack are written as numbers.
fn dir_name(deployment: &str) -> String {
    let encode = |byte: u8| match byte {
        b'-' | b'0'..=b'9' | b'A'..=b'Z' | b'a'..=b'z' => char::from(byte).to_string(),
        _ => format!("_{byte:02x}"),
    };
    deployment.bytes().map(encode).collect()
}

#[cfg(test)]
mod tests {
    use super::dir_name;

    #[test]
    fn deployments_have_different_dirs() {
        assert_eq!(dir_name("chat-2"), "chat-2");
        assert_eq!(dir_name("/chat/v1"), "_2fchat_2fv1");
        assert_eq!(dir_name("/chat_v1"), "_2fchat_5fv1");
        assert_eq!(dir_name("../x"), "_2e_2e_2fx");
        assert_eq!(dir_name("ä"), "_c3_a4");
    }
}
