//! The thread that decodes and encodes pictures and audio, one file at a time, in the order of [`FairQueue`].
//!
//! No step waits for it. On Linux it runs at the low priority of embeddings, on half of the engine's compute threads.
//! On a busy machine it takes at most a quarter of the time of half the cores from running steps. Its queue is bounded
//! in files and bytes, in all and for each tenant.

use super::audio::{is_wav, pad_rest};
use super::decoder::{Media, MediaDecoder};
use super::store::{Image, ImageKey, ImageStore};
use crate::embedding::{FairQueue, FairQueueId, lower_priority};
use crate::metrics::{EngineMetrics, add, add_time};
use crate::open_request_limits::{OpenRequestLimits, RequestLoad, RequestPermit};
use crate::reply::{Reply, ReplySender, reply};
use crate::{Caller, Error, LoadError};
use corral_isolation::Cancel;
use corral_llama::MediaEncoder;
use sha2::{Digest, Sha256};
use std::collections::HashMap;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Bytes of a file.
pub const MAX_IMAGE_BYTES: usize = 16 << 20;
/// Files that wait or are encoded.
const MAX_WAITING: u64 = 256;
/// Their bytes.
const MAX_WAITING_BYTES: u64 = 256 << 20;
/// A tenant may use one part in this many of each limit.
const TENANT_DIVISOR: u64 = 4;

/// A file that waits.
struct Job {
    key: ImageKey,
    file: Vec<u8>,
    caller: Caller,
    sender: ReplySender<Arc<Image>>,
    arrived: Instant,
    _permit: RequestPermit,
}

enum Command {
    Encode(Box<Job>),
    Shutdown,
}

/// A handle to the thread.
#[derive(Debug)]
pub struct ImageEncoder {
    commands: Sender<Command>,
    waiting: OpenRequestLimits,
    store: Arc<ImageStore>,
    accepts_images: bool,
    accepts_audio: bool,
    metrics: Arc<EngineMetrics>,
    /// Cancels decoding.
    cancel: Cancel,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl ImageEncoder {
    /// Starts the thread. `clear_prefixes` is that of [`ImageStore::insert`].
    pub fn start(
        encoder: MediaEncoder,
        decoder: MediaDecoder,
        store: Arc<ImageStore>,
        metrics: Arc<EngineMetrics>,
        clear_prefixes: impl Fn() -> Result<(), Error> + Send + 'static,
    ) -> Result<Self, LoadError> {
        // `waiting` bounds the number of commands.
        let (commands, receiver) = channel();
        let cancel = Cancel::default();
        let accepts_images = encoder.accepts_images();
        let accepts_audio = encoder.sample_rate().is_some();
        let mut worker = Worker {
            encoder,
            decoder,
            store: Arc::clone(&store),
            metrics: Arc::clone(&metrics),
            clear_prefixes: Box::new(clear_prefixes),
            cancel: cancel.clone(),
            queue: FairQueue::default(),
            jobs: HashMap::new(),
            next_id: 0,
        };
        let thread = std::thread::Builder::new()
            .name("images".into())
            .spawn(move || {
                lower_priority();
                worker.run(&receiver);
            })
            .map_err(|error| {
                LoadError::Config(format!(
                    "cannot start the thread for images and audio: {error}; raise the limit of threads"
                ))
            })?;
        let limit = RequestLoad {
            requests: MAX_WAITING,
            input_size: MAX_WAITING_BYTES,
            numbers: 0,
        };
        Ok(Self {
            commands,
            waiting: OpenRequestLimits::new(limit, limit.divided_by(TENANT_DIVISOR)),
            store,
            accepts_images,
            accepts_audio,
            metrics,
            cancel,
            thread: Mutex::new(Some(thread)),
        })
    }

    /// Encodes a picture or audio, or finds it in the cache. Dropping the reply cancels it before its next part. Hashes the file,
    /// which blocks for up to 0.1 s.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for audio or a picture that the projector cannot encode, [`Error::Invalid`] for a file that is
    /// empty or too large, [`Error::Overloaded`] if too many files wait. The reply fails with [`Error::Invalid`] if the file
    /// is neither a picture nor audio, and as a request does while it waits.
    pub fn encode(&self, file: Vec<u8>, caller: Caller) -> Result<Reply<Arc<Image>>, Error> {
        match is_wav(&file) {
            true if !self.accepts_audio => {
                return Err(Error::Unsupported(
                    "the model does not accept audio: its projector has no audio encoder; use a model that has one".into(),
                ));
            }
            false if !self.accepts_images => {
                return Err(Error::Unsupported(
                    "the model accepts audio only: its projector has no vision encoder; send a WAV file, or use a vision model"
                        .into(),
                ));
            }
            _ => {}
        }
        if file.is_empty() || file.len() > MAX_IMAGE_BYTES {
            return Err(Error::Invalid(format!(
                "the file has {} bytes; it must have 1 to {MAX_IMAGE_BYTES}",
                file.len()
            )));
        }
        let key = ImageKey {
            scope: caller.scope(),
            digest: Sha256::digest(&file).into(),
        };
        let (sender, reply) = reply();
        if let Some(image) = self.store.find(&key) {
            add(&self.metrics.image_cache_hits, 1);
            sender.finish(Ok(image));
            return Ok(reply);
        }
        let load = RequestLoad {
            requests: 1,
            input_size: file.len() as u64,
            numbers: 0,
        };
        let permit = self.waiting.acquire(caller.tenant, load);
        let permit = permit.map_err(|used| Error::Overloaded {
            reason: format!(
                "{} files of {} MiB already wait to be encoded",
                used.requests,
                used.input_size >> 20
            ),
            retry_after: Duration::from_secs(5),
        })?;
        let job = Job {
            key,
            file,
            caller,
            sender,
            arrived: Instant::now(),
            _permit: permit,
        };
        // Without its thread, the reply reports it.
        let _ = self.commands.send(Command::Encode(Box::new(job)));
        Ok(reply)
    }

    /// The embeddings.
    pub fn store(&self) -> &Arc<ImageStore> {
        &self.store
    }

    /// Refuses all files, and waits until the thread has ended. The part of a file that is being encoded is finished first.
    pub fn shutdown(&self) {
        let mut thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(thread) = thread.take() {
            self.cancel.cancel();
            // Fails only if the thread has ended already.
            let _ = self.commands.send(Command::Shutdown);
            if thread.join().is_err() {
                tracing::error!("the thread for images and audio panicked");
            }
        }
    }
}

/// The thread's state.
struct Worker {
    encoder: MediaEncoder,
    decoder: MediaDecoder,
    store: Arc<ImageStore>,
    metrics: Arc<EngineMetrics>,
    clear_prefixes: Box<dyn Fn() -> Result<(), Error> + Send>,
    cancel: Cancel,
    queue: FairQueue,
    jobs: HashMap<FairQueueId, Job>,
    next_id: u64,
}

impl Worker {
    /// Runs until [`Command::Shutdown`], or until the handle is gone and no file waits.
    fn run(&mut self, commands: &Receiver<Command>) {
        loop {
            let command = match self.jobs.is_empty() {
                true => commands.recv().ok(),
                false => commands.try_recv().ok(),
            };
            match command {
                Some(Command::Encode(job)) => self.add(*job),
                Some(Command::Shutdown) => {
                    for (_, job) in self.jobs.drain() {
                        job.sender.finish(Err(Error::ShuttingDown));
                    }
                    return;
                }
                None if self.jobs.is_empty() => return,
                None => self.encode_next(),
            }
        }
    }

    fn add(&mut self, job: Job) {
        let id = FairQueueId(self.next_id);
        self.next_id += 1;
        self.queue.add(id, job.caller.tenant, job.caller.priority);
        self.jobs.insert(id, job);
    }

    fn encode_next(&mut self) {
        let Some(id) = self.queue.next(|_| true) else {
            return;
        };
        let Some(job) = self.jobs.remove(&id) else {
            return;
        };
        if !job.sender.is_abandoned() {
            let result = match expired(&job, &self.cancel) {
                Some(error) => Err(error),
                None => self.encode(&job),
            };
            count_failure(&result, &self.metrics);
            if let Ok(image) = &result {
                self.queue.charge(id, image.tokens().len() as u64);
            }
            // Frees the file and the permit before the reply: the caller may send another file at once.
            let Job { sender, .. } = job;
            sender.finish(result);
        }
        self.queue.remove(id);
    }

    fn encode(&mut self, job: &Job) -> Result<Arc<Image>, Error> {
        // The file may have been encoded for another request meanwhile.
        if let Some(image) = self.store.find(&job.key) {
            add(&self.metrics.image_cache_hits, 1);
            return Ok(image);
        }
        let began = Instant::now();
        let media = self.decoder.decode(&job.file, &self.cancel)?;
        let stopped = || stopped(job, &self.cancel);
        let is_stopped = || stopped().is_some();
        let parts = match media {
            Media::Picture(picture) => {
                let size = (picture.width, picture.height);
                self.encoder
                    .encode_picture(size, &picture.pixels, &is_stopped)
            }
            Media::Audio(audio) => {
                let rate = self.encoder.sample_rate().unwrap_or(audio.rate);
                let mut samples = audio.resampled(rate);
                pad_rest(&mut samples, rate);
                self.encoder.encode_audio(&samples, &is_stopped)
            }
        };
        let parts = parts.map_err(|error| {
            let failed = || Error::Failed(format!("the file cannot be encoded: {error}"));
            stopped().unwrap_or_else(failed)
        })?;
        let tenant = job.caller.tenant;
        let image = self
            .store
            .insert(job.key, tenant, parts, &self.clear_prefixes)?;
        add(&self.metrics.images_encoded, 1);
        add_time(&self.metrics.image_nanos, began.elapsed());
        Ok(image)
    }
}

/// Counts a file that is not encoded, unless its time is over or the engine shuts down.
fn count_failure<T>(result: &Result<T, Error>, metrics: &EngineMetrics) {
    match result {
        Err(Error::Invalid(_)) => add(&metrics.images_refused, 1),
        Err(Error::Overloaded { .. } | Error::Failed(_)) => add(&metrics.images_failed, 1),
        _ => {}
    }
}

/// Why encoding of a file ends between two of its parts. A recording has many, and each may take seconds.
fn stopped(job: &Job, cancel: &Cancel) -> Option<Error> {
    if cancel.is_canceled() {
        return Some(Error::ShuttingDown);
    }
    if job.sender.is_abandoned() {
        return Some(Error::Canceled);
    }
    let deadline = job.caller.deadline;
    let is_over = deadline.is_some_and(|at| at <= Instant::now());
    is_over.then_some(Error::DeadlineExceeded)
}

/// Why encoding of a file does not begin.
fn expired(job: &Job, cancel: &Cancel) -> Option<Error> {
    if let Some(error) = stopped(job, cancel) {
        return Some(error);
    }
    let waited = job.arrived.elapsed();
    let is_late = job.caller.queue_time.is_some_and(|most| waited > most);
    is_late.then(|| Error::QueueTimeout {
        reason: format!(
            "the file was not encoded within {:.1} s",
            waited.as_secs_f64()
        ),
        retry_after: Duration::from_secs(5),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering;

    #[test]
    fn only_bad_files_count_as_refused() {
        let metrics = EngineMetrics::default();
        let busy = Error::Overloaded {
            reason: "too many images are being decoded".into(),
            retry_after: Duration::from_secs(1),
        };
        for error in [
            busy,
            Error::Failed("no process".into()),
            Error::ShuttingDown,
            Error::DeadlineExceeded,
            Error::Invalid("no picture".into()),
        ] {
            count_failure(&Err::<(), _>(error), &metrics);
        }
        let counts = [&metrics.images_refused, &metrics.images_failed];
        assert_eq!(counts.map(|count| count.load(Ordering::Relaxed)), [1, 2]);
    }
}
