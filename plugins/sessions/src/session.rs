//! One session: runs a client's commands and writes the replies.

use std::cell::RefCell;
use std::collections::HashMap;
use std::future::poll_fn;
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;

use corral_sdk::bindings::constraints::{Constraint, Matcher};
use corral_sdk::bindings::inference::{self as host, Options, Sequence};
use corral_sdk::bindings::wasip3::http::types::{ErrorCode, Trailers};
use corral_sdk::bindings::wasip3::wit_bindgen::{FutureReader, StreamReader, StreamWriter};
use corral_sdk::bindings::{budget, inference_async, models, types};
use futures_channel::oneshot;
use futures_util::future::{AbortHandle, Abortable};
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use serde::Serialize;
use serde_json::{Value, json};
use session_protocol::{
    Bytes, Call, Chunk, Command, Error, Handle, Hello, Kind, MAX_LINE, NextResult,
    NextTokenRequest, RemainingBudget, VERSION, Words,
};

use crate::convert;
use crate::handles::Handles;
use crate::line_reader::{End, LineReader};
use crate::reply_writer::{Closed, ReplyWriter};

/// Commands that may run at once. Further lines wait in the connection.
const MAX_RUNNING_COMMANDS: usize = 512;

/// Serves a session to its end. After the last line it lets running commands end, unless the client is gone.
pub(crate) async fn serve(
    body: StreamReader<u8>,
    trailers: FutureReader<Result<Option<Trailers>, ErrorCode>>,
    writer: StreamWriter<u8>,
) {
    let output = ReplyWriter::new(writer);
    let session = Rc::new(Session::new(output.clone()));
    if output.write(&Hello { session: VERSION }).await.is_err() {
        return;
    }
    let mut lines = LineReader::new(body, MAX_LINE);
    let mut running_commands = FuturesUnordered::new();
    let mut trailers = Some(trailers);
    while let Some(open) = trailers.take() {
        let line = {
            let mut next = pin!(lines.next());
            poll_fn(|context| {
                while let Poll::Ready(Some(result)) = running_commands.poll_next_unpin(context) {
                    if let Err(Closed) = result {
                        return Poll::Ready(Err(End::Client));
                    }
                }
                match running_commands.len() < MAX_RUNNING_COMMANDS {
                    true => next.as_mut().poll(context),
                    // The end of a running command wakes this task.
                    false => Poll::Pending,
                }
            })
            .await
        };
        let line = match line {
            Ok(line) => {
                trailers = Some(open);
                line
            }
            Err(End::Body(last)) => match open.await {
                Ok(_) => last,
                Err(_) => {
                    let detail = "the request was cut off: its commands have more bytes than the deployment's \
                                  `request-kib` allows, or nothing came for too long"
                        .to_owned();
                    let _ = output
                        .reply(0, Err::<(), _>(Error::Failed { detail }))
                        .await;
                    return;
                }
            },
            Err(End::Client) => return,
            Err(End::TooLong) => {
                let detail = format!("a line is longer than {MAX_LINE} bytes");
                let _ = output.reply(0, invalid::<()>(detail)).await;
                return;
            }
        };
        // An empty line only shows that the client is there.
        if line.trim_ascii().is_empty() {
            continue;
        }
        let mut execution = match serde_json::from_slice::<Command>(&line) {
            Ok(command) => Rc::clone(&session).execute(command).boxed_local(),
            Err(error) => {
                let detail = format!("a line is no command: {error}");
                let output = output.clone();
                async move { output.reply(0, invalid::<()>(detail)).await }.boxed_local()
            }
        };
        // Commands begin in the order of their lines.
        match poll_fn(|context| Poll::Ready(execution.as_mut().poll(context))).await {
            Poll::Ready(Ok(())) => {}
            Poll::Ready(Err(Closed)) => return,
            Poll::Pending => running_commands.push(execution),
        }
    }
    while let Some(Ok(())) = running_commands.next().await {}
}

fn invalid<T>(detail: String) -> Result<T, Error> {
    Err(Error::Invalid { detail })
}

/// What a host function returned, for the reply.
fn reply(result: Result<impl Serialize, types::Error>) -> Result<Value, Error> {
    result.map(|value| json!(value)).map_err(convert::error)
}

/// The client's handles.
struct Session {
    output: ReplyWriter,
    models: Handles<models::Model>,
    constraints: Handles<Constraint>,
    matchers: Handles<Matcher>,
    options: Handles<Options>,
    sequences: Handles<Sequence>,
    generations: RefCell<HashMap<Handle, RunningGeneration>>,
}

/// A running generation.
struct RunningGeneration {
    abort: AbortHandle,
    /// Completes once its stream is dropped.
    ended: oneshot::Receiver<()>,
}

impl Session {
    fn new(output: ReplyWriter) -> Self {
        Session {
            output,
            models: Handles::new("model"),
            constraints: Handles::new("constraint"),
            matchers: Handles::new("matcher"),
            options: Handles::new("options"),
            sequences: Handles::new("sequence"),
            generations: RefCell::default(),
        }
    }

    /// Executes a command and writes its replies.
    async fn execute(self: Rc<Self>, command: Command) -> Result<(), Closed> {
        let Command { id, call } = command;
        let result = match call {
            Call::Generate {
                generation,
                sequence,
                options,
            } => self.generate(id, generation, sequence, options).await?,
            call => self.call(call).await,
        };
        self.output.reply(id, result).await
    }

    /// Calls a host function that returns at once.
    fn call_immediate(&self, call: Call) -> Result<Value, Error> {
        Ok(match call {
            Call::Available => json!(models::available()),
            Call::RequestCounts { model } => {
                let counts = self.models.get(model)?.request_counts();
                reply(counts.map(convert::request_counts))?
            }
            Call::Tokenize {
                model,
                text,
                special,
            } => reply(self.models.get(model)?.tokenize(&text, special))?,
            Call::Detokenize {
                model,
                tokens,
                special,
            } => {
                let bytes = self.models.get(model)?.detokenize(&tokens, special);
                reply(bytes.map(Bytes))?
            }
            Call::StartMatcher {
                matcher,
                constraint,
            } => {
                self.matchers.check_free(matcher)?;
                let started = Matcher::start(&*self.constraints.get(constraint)?);
                self.matchers
                    .insert(matcher, started.map_err(convert::error)?);
                Value::Null
            }
            Call::ForkMatcher { matcher, from } => {
                self.matchers.check_free(matcher)?;
                let fork = self.matchers.get(from)?.fork();
                self.matchers.insert(matcher, fork.map_err(convert::error)?);
                Value::Null
            }
            Call::Mask { matcher } => reply(self.matchers.get(matcher)?.mask().map(Words))?,
            Call::Allowed {
                matcher,
                max_tokens,
            } => reply(self.matchers.get(matcher)?.allowed(max_tokens))?,
            Call::Allows { matcher, token } => reply(self.matchers.get(matcher)?.allows(token))?,
            Call::Accept { matcher, token } => reply(self.matchers.get(matcher)?.accept(token))?,
            Call::Forced {
                matcher,
                max_tokens,
            } => reply(self.matchers.get(matcher)?.forced(max_tokens))?,
            Call::IsComplete { matcher } => json!(self.matchers.get(matcher)?.is_complete()),
            Call::Remaining => {
                let remaining = budget::remaining();
                json!(RemainingBudget {
                    tokens: remaining.tokens,
                    time: remaining.time,
                })
            }
            Call::CreateOptions {
                options,
                max_tokens,
            } => {
                self.options.check_free(options)?;
                self.options.insert(options, Options::new(max_tokens));
                Value::Null
            }
            Call::Set { options, setting } => {
                reply(convert::set(&*self.options.get(options)?, setting))?
            }
            Call::Constrain {
                options,
                constraint,
            } => {
                let constraint = self.constraints.get(constraint)?;
                self.options.get(options)?.constrain(&constraint);
                Value::Null
            }
            Call::CreateSequence { sequence, model } => {
                self.sequences.check_free(sequence)?;
                let created = Sequence::create(&*self.models.get(model)?);
                self.sequences
                    .insert(sequence, created.map_err(convert::error)?);
                Value::Null
            }
            Call::Append { sequence, tokens } => {
                reply(self.sequences.get(sequence)?.append(&tokens))?
            }
            Call::Truncate { sequence, length } => {
                reply(self.sequences.get(sequence)?.truncate(length))?
            }
            Call::ForkSequence { sequence, from } => {
                self.sequences.check_free(sequence)?;
                let fork = self.sequences.get(from)?.fork();
                self.sequences
                    .insert(sequence, fork.map_err(convert::error)?);
                Value::Null
            }
            Call::SetAdapter { sequence, adapter } => {
                let sequence = self.sequences.get(sequence)?;
                reply(sequence.set_adapter(adapter.as_deref()))?
            }
            Call::Drop { kind, handle } => {
                match kind {
                    Kind::Model => self.models.remove(handle),
                    Kind::Constraint => self.constraints.remove(handle),
                    Kind::Matcher => self.matchers.remove(handle),
                    Kind::Options => self.options.remove(handle),
                    Kind::Sequence => self.sequences.remove(handle),
                }
                Value::Null
            }
            other => return invalid(format!("the command {other:?} is not known")),
        })
    }

    /// Calls a host function, other than `generate`.
    async fn call(&self, call: Call) -> Result<Value, Error> {
        Ok(match call {
            Call::OpenModel { model, name } => {
                self.models.check_free(model)?;
                let opened = inference_async::open_model(name)
                    .await
                    .map_err(convert::error)?;
                let info = convert::info(&opened);
                self.models.insert(model, opened);
                json!(info)
            }
            Call::Embed {
                model,
                inputs,
                pooling,
                normalize,
            } => {
                let model = self.models.get(model)?;
                let pooling = pooling.map(convert::pooling);
                let vectors = inference_async::embed(&model, inputs, pooling, normalize).await;
                let vectors = vectors.map_err(convert::error)?;
                json!(
                    vectors
                        .into_iter()
                        .map(session_protocol::Floats)
                        .collect::<Vec<_>>()
                )
            }
            Call::CompileConstraint {
                constraint,
                model,
                grammar,
            } => {
                self.constraints.check_free(constraint)?;
                let model = self.models.get(model)?;
                let grammar = convert::grammar(grammar);
                let compiled = inference_async::compile_constraint(&model, grammar).await;
                let compiled = compiled.map_err(convert::error)?;
                let ignored = compiled.ignored();
                self.constraints.insert(constraint, compiled);
                json!(ignored)
            }
            Call::SampleWith {
                options,
                name,
                settings,
            } => {
                let options = self.options.get(options)?;
                reply(inference_async::sample_with(&options, name, settings).await)?
            }
            Call::Cancel {
                generation,
                sequence,
                start,
            } => {
                let running = self.generations.borrow_mut().remove(&generation);
                if let Some(running) = running {
                    running.abort.abort();
                    // An error says that the generation has ended already.
                    let _ = running.ended.await;
                }
                // If the client dropped the sequence, it needs no tokens.
                let sequence = self.sequences.get(sequence).ok();
                json!(sequence.map_or_else(Vec::new, |sequence| sequence.tokens(start)))
            }
            Call::Next { sequence, request } => {
                let sequence = self.sequences.get(sequence)?;
                let matcher = self.matcher(&request)?;
                let request = host_request(request, matcher.as_deref());
                let next = inference_async::next(&sequence, request).await;
                reply(next.map(convert::distribution))?
            }
            Call::NextMany { requests } => {
                let parts = requests.into_iter().map(|(sequence, request)| {
                    let sequence = self.sequences.get(sequence)?;
                    Ok((sequence, self.matcher(&request)?, request))
                });
                let parts = parts.collect::<Result<Vec<_>, Error>>()?;
                let requests = parts.iter().map(|(sequence, matcher, request)| {
                    let request = host_request(request.clone(), matcher.as_deref());
                    (&**sequence, request)
                });
                let results = inference_async::next_many(requests.collect()).await;
                let results = results.into_iter().map(|result| match result {
                    Ok(distribution) => NextResult::Ok(convert::distribution(distribution)),
                    Err(error) => NextResult::Error(convert::error(error)),
                });
                json!(results.collect::<Vec<_>>())
            }
            Call::AppendImage {
                sequence,
                file: Bytes(file),
            } => {
                let sequence = self.sequences.get(sequence)?;
                let start = sequence.length();
                let appended = inference_async::append_image(&sequence, file).await;
                appended.map_err(convert::error)?;
                json!(sequence.tokens(start))
            }
            Call::SaveSnapshot { sequence, name } => {
                let sequence = self.sequences.get(sequence)?;
                reply(inference_async::save_snapshot(&sequence, name).await)?
            }
            Call::RestoreSnapshot {
                sequence,
                model,
                name,
            } => {
                self.sequences.check_free(sequence)?;
                let model = self.models.get(model)?;
                let restored = inference_async::restore_snapshot(&model, name).await;
                let restored = restored.map_err(convert::error)?;
                let tokens = restored.tokens(0);
                self.sequences.insert(sequence, restored);
                json!(tokens)
            }
            Call::DeleteSnapshot { model, name } => {
                let model = self.models.get(model)?;
                reply(inference_async::delete_snapshot(&model, name).await)?
            }
            other => return self.call_immediate(other),
        })
    }

    fn matcher(&self, request: &NextTokenRequest) -> Result<Option<Rc<Matcher>>, Error> {
        request
            .matcher
            .map(|matcher| self.matchers.get(matcher))
            .transpose()
    }

    /// Writes the chunks of a generation, and returns its outcome.
    async fn generate(
        &self,
        id: u64,
        generation: Handle,
        sequence: Handle,
        options: Handle,
    ) -> Result<Result<Value, Error>, Closed> {
        let start = || {
            if self.generations.borrow().contains_key(&generation) {
                return invalid(format!(
                    "the session has a generation {generation}; choose another number"
                ));
            }
            let sequence = self.sequences.get(sequence)?;
            let options = self.options.get(options)?;
            inference_async::generate(&sequence, &options).map_err(convert::error)
        };
        let (mut chunks, outcome) = match start() {
            Ok(started) => started,
            Err(error) => return Ok(Err(error)),
        };
        let (abort, registration) = AbortHandle::new_pair();
        let (end, ended) = oneshot::channel();
        let running = RunningGeneration { abort, ended };
        self.generations.borrow_mut().insert(generation, running);
        let write = async move {
            // An empty chunk says that the generation has started.
            self.output.chunk(id, Chunk::default()).await?;
            while let Some(chunk) = chunks.next().await {
                self.output.chunk(id, convert::chunk(chunk)).await?;
            }
            Ok(())
        };
        // Dropping the stream cancels the generation.
        let written = Abortable::new(write, registration).await;
        let _ = end.send(());
        Ok(match written {
            Ok(written) => {
                self.generations.borrow_mut().remove(&generation);
                written?;
                reply(outcome.await.map(convert::outcome))
            }
            // The command that cancels it has removed it.
            Err(_) => Err(Error::Cancelled),
        })
    }
}

fn host_request(
    request: NextTokenRequest,
    matcher: Option<&Matcher>,
) -> host::NextTokenRequest<'_> {
    host::NextTokenRequest {
        part: convert::part(request.part),
        statistics: request.statistics,
        matcher,
    }
}
