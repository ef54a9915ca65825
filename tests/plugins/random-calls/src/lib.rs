//! A handler that calls the functions of `corral:inference` as its request's body says: each byte chooses a function, and
//! the bytes after it choose handles, arguments, and whether the call is awaited, canceled or left running. A step that
//! needs a handle and finds none has no effect. Responds with the numbers of calls and of errors.

mod arguments;

use arguments::Arguments;
use corral_sdk::bindings::budget;
use corral_sdk::bindings::constraints::{Constraint, Grammar, Matcher};
use corral_sdk::bindings::inference::{
    Chunk, DistributionPart, Dry, NextTokenRequest, Options, Outcome, Penalties, Sequence,
};
use corral_sdk::bindings::inference_async::{self, Framing};
use corral_sdk::bindings::models::{self, Model, Pooling};
use corral_sdk::bindings::types::Error;
use corral_sdk::{Request, Response};
use std::future::poll_fn;
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;
use wasip3::wit_bindgen::{FutureReader, StreamReader};
use wasip3::{spawn_local, wit_stream};

corral_sdk::handler!(respond);

async fn respond(mut request: Request) -> Result<Response, corral_sdk::Error> {
    let mut calls = Calls {
        arguments: Arguments::new(request.body().await?),
        ..Calls::default()
    };
    calls.open_first().await?;
    while let Some(function) = calls.arguments.next() {
        calls.call(function).await;
    }
    Ok(Response::text(format!(
        "{} calls, {} errors\n",
        calls.count, calls.errors
    )))
}

struct Running {
    chunks: StreamReader<Chunk>,
    outcome: FutureReader<Result<Outcome, Error>>,
}

#[derive(Default)]
struct Calls {
    arguments: Arguments,
    models: Vec<Rc<Model>>,
    sequences: Vec<Rc<Sequence>>,
    options: Vec<Rc<Options>>,
    constraints: Vec<Rc<Constraint>>,
    matchers: Vec<Rc<Matcher>>,
    generations: Vec<Running>,
    count: u32,
    errors: u32,
}

impl Calls {
    /// Opens a handle of each kind, so that most steps have an effect.
    async fn open_first(&mut self) -> Result<(), Error> {
        let model = inference_async::open_model(None).await?;
        let sequence = Sequence::create(&model)?;
        sequence.append(&model.tokenize("12+7=", false)?)?;
        let digits = Grammar::Regex("[0-9]{1,9}".to_owned());
        let constraint = inference_async::compile_constraint(&model, digits).await?;
        self.matchers.push(Rc::new(Matcher::start(&constraint)?));
        self.constraints.push(Rc::new(constraint));
        self.sequences.push(Rc::new(sequence));
        self.options.push(Rc::new(Options::new(8)));
        self.models.push(Rc::new(model));
        Ok(())
    }

    /// Counts a call and its error.
    fn result<T>(&mut self, result: Result<T, Error>) -> Option<T> {
        self.count += 1;
        self.errors += u32::from(result.is_err());
        result.ok()
    }

    /// Awaits a call, cancels it after its start, or leaves it running.
    async fn finish<T: 'static>(
        &mut self,
        call: impl Future<Output = Result<T, Error>> + 'static,
    ) -> Option<T> {
        match self.arguments.byte() % 4 {
            0 | 1 => {
                let result = call.await;
                self.result(result)
            }
            2 => {
                let mut call = pin!(call);
                let polled = poll_fn(|context| Poll::Ready(call.as_mut().poll(context))).await;
                match polled {
                    Poll::Ready(result) => self.result(result),
                    Poll::Pending => None,
                }
            }
            _ => {
                spawn_local(async move { drop(call.await) });
                None
            }
        }
    }

    async fn call(&mut self, function: u8) {
        match function % 8 {
            0 => self.call_model(function / 8).await,
            1 => self.call_constraint(function / 8).await,
            2 => self.call_matcher(function / 8),
            3 => self.call_options(function / 8).await,
            4 => self.call_sequence(function / 8),
            5 => self.call_sequence_async(function / 8).await,
            6 => self.call_generation(function / 8).await,
            _ => self.drop_handle(function / 8),
        }
    }

    async fn call_model(&mut self, function: u8) {
        let models = self.models.clone();
        let Some(model) = self
            .arguments
            .one_of(&models)
            .filter(|_| !function.is_multiple_of(6))
        else {
            let name = self.arguments.name();
            let opened = self.finish(inference_async::open_model(name)).await;
            return self.models.extend(opened.map(Rc::new));
        };
        match function % 6 {
            1 => {
                let counts = model.request_counts();
                self.result(counts);
                drop((model.info(), models::available(), budget::remaining()));
            }
            2 => {
                let text = self.arguments.text();
                let special = self.arguments.flag();
                let tokens = model.tokenize(&text, special);
                self.result(tokens);
            }
            3 => {
                let tokens = self.arguments.tokens();
                let special = self.arguments.flag();
                let bytes = model.detokenize(&tokens, special);
                self.result(bytes);
            }
            4 => {
                let inputs = (0..self.arguments.byte() % 4).map(|_| self.arguments.tokens());
                let inputs = Vec::from_iter(inputs);
                let pooling = [
                    None,
                    Some(Pooling::Mean),
                    Some(Pooling::Cls),
                    Some(Pooling::Last),
                    Some(Pooling::Tokens),
                    Some(Pooling::Rank),
                ];
                let pooling = pooling[usize::from(self.arguments.byte()) % 6];
                let normalize = self.arguments.flag().then(|| self.arguments.flag());
                let call =
                    async move { inference_async::embed(&model, inputs, pooling, normalize).await };
                self.finish(call).await;
            }
            _ => {
                let sequence = Sequence::create(&model);
                let created = self.result(sequence);
                self.sequences.extend(created.map(Rc::new));
            }
        }
    }

    async fn call_constraint(&mut self, function: u8) {
        let Some(model) = self.arguments.one_of(&self.models) else {
            return;
        };
        if function.is_multiple_of(2)
            && let Some(constraint) = self.arguments.one_of(&self.constraints)
        {
            let started = Matcher::start(&constraint);
            let matcher = self.result(started);
            return self.matchers.extend(matcher.map(Rc::new));
        }
        let text = self.arguments.text();
        let grammar = match self.arguments.byte() % 10 {
            0 => Grammar::JsonSchema(text),
            1 => Grammar::Regex(text),
            2 => Grammar::Lark(text),
            3 => Grammar::Gbnf(text),
            4 => Grammar::JsonSchema("{\"type\":\"integer\"}".to_owned()),
            5 => Grammar::Regex("[0-9]{1,3}".to_owned()),
            6 => Grammar::Lark("start: \"a\" start | NUM\nNUM: /[0-9]+/".to_owned()),
            7 => Grammar::Gbnf("root ::= [0-9]+ \"x\"".to_owned()),
            8 => Grammar::JsonObject,
            _ => Grammar::LenientJsonSchema("{\"uniqueItems\":true}".to_owned()),
        };
        let call = async move { inference_async::compile_constraint(&model, grammar).await };
        let compiled = self.finish(call).await;
        self.constraints.extend(compiled.map(Rc::new));
    }

    fn call_matcher(&mut self, function: u8) {
        let Some(matcher) = self.arguments.one_of(&self.matchers) else {
            return;
        };
        match function % 7 {
            0 => {
                let fork = matcher.fork();
                let fork = self.result(fork);
                self.matchers.extend(fork.map(Rc::new));
            }
            1 => drop(self.result(matcher.mask())),
            2 => {
                let max_tokens = self.arguments.number();
                self.result(matcher.allowed(max_tokens));
            }
            3 => {
                let token = self.arguments.token();
                self.result(matcher.allows(token));
            }
            4 => {
                let token = self.arguments.token();
                self.result(matcher.accept(token));
            }
            5 => {
                let max_tokens = self.arguments.number();
                self.result(matcher.forced(max_tokens));
            }
            _ => drop(matcher.is_complete()),
        }
    }

    async fn call_options(&mut self, function: u8) {
        let known = self.arguments.one_of(&self.options);
        let Some(options) = known.filter(|_| !function.is_multiple_of(20)) else {
            // Short generations, so that a call ends soon.
            let created = Options::new(u32::from(self.arguments.byte() % 24));
            return self.options.push(Rc::new(created));
        };
        let arguments = &mut self.arguments;
        let result = match function % 20 {
            1 => {
                options.seed(u64::from(arguments.number()));
                Ok(())
            }
            2 => options.stop(&arguments.text()),
            3 => {
                options.ignore_eos();
                Ok(())
            }
            4 => options.temperature(arguments.float()),
            5 => options.top_k(arguments.number()),
            6 => options.top_p(arguments.float()),
            7 => options.min_p(arguments.float()),
            8 => {
                options.dynamic_temperature(arguments.float(), arguments.float(), arguments.float())
            }
            9 => options.typical_p(arguments.float()),
            10 => options.top_n_sigma(arguments.float()),
            11 => options.xtc(arguments.float(), arguments.float()),
            12 => options.dry(&Dry {
                multiplier: arguments.float(),
                base: arguments.float(),
                allowed_length: arguments.number(),
                last_n: arguments.number(),
                breakers: vec![arguments.text()],
            }),
            13 | 14 => {
                let penalties = Penalties {
                    last_n: arguments.number(),
                    repeat: arguments.float(),
                    frequency: arguments.float(),
                    presence: arguments.float(),
                };
                match function % 20 {
                    13 => options.penalties(penalties),
                    _ => options.output_penalties(penalties),
                }
            }
            15 => {
                let tokens = arguments.tokens().into_iter();
                let biases = Vec::from_iter(tokens.map(|token| (token, arguments.float())));
                options.logit_bias(&biases)
            }
            16 => options.mirostat(arguments.float(), arguments.float()),
            17 => options.logprobs(arguments.byte()),
            18 => options.speculate(arguments.byte()),
            _ => match arguments.one_of(&self.constraints) {
                Some(constraint) => {
                    options.constrain(&constraint);
                    Ok(())
                }
                None => {
                    let name = arguments.name().unwrap_or_default();
                    let settings = arguments.text();
                    let call =
                        async move { inference_async::sample_with(&options, name, settings).await };
                    self.finish(call).await;
                    Ok(())
                }
            },
        };
        self.result(result);
    }

    fn call_sequence(&mut self, function: u8) {
        let Some(sequence) = self.arguments.one_of(&self.sequences) else {
            return;
        };
        match function % 8 {
            0 | 1 => {
                let tokens = self.arguments.tokens();
                self.result(sequence.append(&tokens));
            }
            2 => {
                let length = self.arguments.number();
                self.result(sequence.truncate(length));
            }
            3 => {
                let fork = self.result(sequence.fork());
                self.sequences.extend(fork.map(Rc::new));
            }
            4 => {
                let name = self.arguments.name();
                self.result(sequence.set_adapter(name.as_deref()));
            }
            5 => drop((sequence.length(), sequence.tokens(self.arguments.number()))),
            _ => {
                let Some(options) = self.arguments.one_of(&self.options) else {
                    return;
                };
                let started = self.result(inference_async::generate(&sequence, &options));
                self.generations
                    .extend(started.map(|(chunks, outcome)| Running { chunks, outcome }));
            }
        }
    }

    fn part(&mut self) -> DistributionPart {
        match self.arguments.byte() % 3 {
            0 => DistributionPart::Top(self.arguments.number()),
            1 => DistributionPart::Only(self.arguments.tokens()),
            _ => DistributionPart::Logits,
        }
    }

    async fn call_sequence_async(&mut self, function: u8) {
        let (Some(sequence), Some(model)) = (
            self.arguments.one_of(&self.sequences),
            self.arguments.one_of(&self.models),
        ) else {
            return;
        };
        let part = self.part();
        let statistics = self.arguments.flag();
        let matcher = match self.arguments.flag() {
            true => self.arguments.one_of(&self.matchers),
            false => None,
        };
        let name = self.arguments.name().unwrap_or_default();
        match function % 7 {
            0 | 1 => {
                let call = async move {
                    let matcher = matcher.as_deref();
                    let request = NextTokenRequest {
                        part,
                        statistics,
                        matcher,
                    };
                    inference_async::next(&sequence, request).await
                };
                self.finish(call).await;
            }
            2 => {
                let count = usize::from(self.arguments.byte() % 6);
                let others = (0..count).filter_map(|_| self.arguments.one_of(&self.sequences));
                let all = Vec::from_iter(others.chain([sequence]));
                let call = async move {
                    let matcher = matcher.as_deref();
                    let request = || NextTokenRequest {
                        part: part.clone(),
                        statistics,
                        matcher,
                    };
                    let requests = all.iter().map(|sequence| (&**sequence, request()));
                    let requests = requests.collect();
                    Ok(inference_async::next_many(requests).await)
                };
                self.finish(call).await;
            }
            3 => drop(
                self.finish(async move { inference_async::save_snapshot(&sequence, name).await })
                    .await,
            ),
            4 => {
                let call = async move { inference_async::restore_snapshot(&model, name).await };
                let restored = self.finish(call).await;
                self.sequences.extend(restored.map(Rc::new));
            }
            5 => {
                let file = self.arguments.text().into_bytes();
                let call = async move { inference_async::append_image(&sequence, file).await };
                self.finish(call).await;
            }
            _ => drop(
                self.finish(async move { inference_async::delete_snapshot(&model, name).await })
                    .await,
            ),
        }
    }

    async fn call_generation(&mut self, function: u8) {
        let count = self.generations.len();
        if count == 0 {
            return;
        }
        let at = usize::from(self.arguments.byte()) % count;
        let Running {
            mut chunks,
            outcome,
        } = self.generations.swap_remove(at);
        match function % 5 {
            0 | 1 => {
                // A stream may not be read after its end.
                if chunks.next().await.is_some() {
                    self.generations.push(Running { chunks, outcome });
                }
            }
            2 => drop(self.finish(inference_async::collect(chunks)).await),
            3 => {
                drop(chunks);
                self.finish(async move { outcome.await }).await;
            }
            _ => {
                let framing = Framing {
                    first: self.arguments.text().into_bytes(),
                    before: b"<".to_vec(),
                    after: b">".to_vec(),
                    json: self.arguments.flag(),
                };
                let (rest, reader) = wit_stream::new();
                let framed = inference_async::frame(chunks, &framing, reader);
                drop(rest);
                if let Some(mut framed) = self.result(framed) {
                    for _ in 0..self.arguments.byte() {
                        if framed.next().await.is_none() {
                            break;
                        }
                    }
                }
            }
        }
    }

    fn drop_handle(&mut self, kind: u8) {
        fn remove<T>(list: &mut Vec<T>, at: u8) {
            if !list.is_empty() {
                list.swap_remove(usize::from(at) % list.len());
            }
        }
        let at = self.arguments.byte();
        match kind % 6 {
            0 => remove(&mut self.models, at),
            1 => remove(&mut self.sequences, at),
            2 => remove(&mut self.options, at),
            3 => remove(&mut self.constraints, at),
            4 => remove(&mut self.matchers, at),
            _ => remove(&mut self.generations, at),
        }
    }
}
