//! Connects the engine thread with the task of a sampling plugin's instance.
//!
//! The engine thread never waits. It starts the task and passes one sampling request at a time over a
//! channel. The task answers directly into the engine's mailbox. When the engine drops its end, the task is
//! aborted, even during a call, and the instance is dropped.

use super::RequestSampler;
use super::instance::{Instance, Purpose};
use corral_engine::{
    Error, ExternalSampler, ExternalSamplerFactory, SamplingReply, SamplingRequest,
    SamplingRequestOptions,
};
use std::sync::Arc;
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tracing::Instrument;

/// Starts an instance for each generation.
pub(super) struct SamplerFactory {
    pub(super) sampler: Arc<RequestSampler>,
    pub(super) options: SamplingRequestOptions,
    pub(super) runtime: Handle,
    /// Number of tokens of the model.
    pub(super) vocabulary: u32,
}

impl std::fmt::Debug for SamplerFactory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SamplerFactory")
            .field("name", &self.sampler.name)
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}

impl ExternalSamplerFactory for SamplerFactory {
    fn request_options(&self) -> SamplingRequestOptions {
        self.options
    }

    fn start(&self, seed: u64) -> Box<dyn ExternalSampler> {
        let (sender, receiver) = mpsc::channel(1);
        let sampler = Arc::clone(&self.sampler);
        let instance = Instance::start(sampler, Purpose::Generate { seed }, self.vocabulary);
        let serving = serve(Arc::clone(&self.sampler), self.options, instance, receiver);
        let span = self.sampler.span.clone();
        let mut task = JoinSet::new();
        task.spawn_on(serving.instrument(span), &self.runtime);
        Box::new(SamplerClient {
            requests: sender,
            _task: task,
        })
    }
}

/// One token to sample.
struct SampleCall {
    request: SamplingRequest,
    reply: SamplingReply,
    began: Instant,
}

/// The engine's end. Dropping it aborts the task.
struct SamplerClient {
    requests: mpsc::Sender<SampleCall>,
    _task: JoinSet<()>,
}

impl ExternalSampler for SamplerClient {
    fn sample(&mut self, request: SamplingRequest, reply: SamplingReply) {
        // If the host is shutting down, dropping the call answers it with an error.
        let _ = self.requests.try_send(SampleCall {
            request,
            reply,
            began: Instant::now(),
        });
    }
}

/// Samples one token after the other. After the first error, every request gets that error.
async fn serve(
    sampler: Arc<RequestSampler>,
    options: SamplingRequestOptions,
    instance: impl Future<Output = Result<Instance, Error>>,
    mut requests: mpsc::Receiver<SampleCall>,
) {
    let mut instance = match instance.await {
        Ok(instance) if instance.options() == options => Ok(instance),
        Ok(_) => Err(sampler.failed("needs something else than when its settings were checked")),
        // The settings passed the check, so this is not the caller's mistake.
        Err(Error::Invalid(text)) => Err(Error::Failed(text)),
        Err(error) => Err(error),
    };
    while let Some(call) = requests.recv().await {
        let token = match &mut instance {
            Ok(instance) => instance.sample(call.request).await,
            Err(error) => Err(error.clone()),
        };
        let time = call.began.elapsed();
        sampler
            .resources
            .counters
            .sampler_called(time, token.is_err());
        if let Err(error) = &token {
            // Release the permit before the engine sees the error.
            instance = Err(error.clone());
        }
        call.reply.send(token);
    }
}
