//! The framed bodies of an instance, which may outlive its guest: see `host/framed_body.rs`.

use tokio::sync::watch;

/// Connects an instance's framed bodies with its call: each learns when the other has ended.
///
/// The channel's value is whether the guest is done. Bodies hold receivers.
#[derive(Debug, Default)]
pub(crate) struct FramedBodies(Option<watch::Sender<bool>>);

impl FramedBodies {
    /// A receiver for a new body.
    pub(crate) fn subscribe(&mut self) -> watch::Receiver<bool> {
        let call = self.0.get_or_insert_with(|| watch::Sender::new(false));
        call.subscribe()
    }

    /// Reports that the guest is done, and waits until all bodies have ended.
    pub(crate) async fn ended(self) {
        if let Some(call) = self.0 {
            call.send_replace(true);
            call.closed().await;
        }
    }
}
