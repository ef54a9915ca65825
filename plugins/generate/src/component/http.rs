//! `wasi:http/handler`: one POST, one generation.

use wasip3::http::types::{ErrorCode, Fields, Method, Request, Response};
use wasip3::wit_bindgen::{StreamReader, StreamResult};
use wasip3::{spawn_local, wit_future, wit_stream};

use super::Generate;
use super::generation::Generation;
use crate::answer::{DONE_EVENT, Piece, Report, error_event, piece_event};
use crate::problem::Problem;
use crate::request::{BODY_LIMIT, parse};

/// Why there is no answer.
enum Failure {
    /// To be told to the client.
    Problem(Problem),
    /// The request did not arrive whole, so there is nobody to tell.
    Broken(ErrorCode),
}

impl From<Problem> for Failure {
    fn from(problem: Problem) -> Self {
        Failure::Problem(problem)
    }
}

impl wasip3::exports::http::handler::Guest for Generate {
    async fn handle(request: Request) -> Result<Response, ErrorCode> {
        match answer(request).await {
            Ok(response) => Ok(response),
            Err(Failure::Problem(problem)) => problem_response(&problem),
            Err(Failure::Broken(error)) => Err(error),
        }
    }
}

async fn answer(request: Request) -> Result<Response, Failure> {
    let method = request.get_method();
    if !matches!(method, Method::Post) {
        return Err(Problem::new(
            405,
            "method-not-allowed",
            "expected POST with a JSON body, such as {\"prompt\": \"Once upon a time\"}",
        )
        .into());
    }
    let request = parse(&read_body(request).await?)?;
    let mut generation = Generation::start(&request).await?;
    if request.stream {
        return stream(generation).await;
    }
    let mut whole = Piece::default();
    while let Some(piece) = generation.next().await? {
        whole.append(piece);
    }
    let report = generation.finish().await?;
    whole_response(200, "application/json", &[], report.to_json(&whole)).map_err(Failure::Broken)
}

/// Answers with events. The head waits for the first piece, so that what fails before it (a full
/// queue, a deadline) still gets its own status.
async fn stream(mut generation: Generation) -> Result<Response, Failure> {
    let Some(first) = generation.next().await? else {
        let report = generation.finish().await?;
        return whole_response(200, EVENT_STREAM.0, EVENT_STREAM.1, last_events(&report))
            .map_err(Failure::Broken);
    };
    let (mut writer, body) = wit_stream::new();
    spawn_local(async move {
        let mut next = Ok(Some(first));
        let last = loop {
            match next {
                Ok(Some(piece)) if piece.is_empty() => {}
                Ok(Some(piece)) => {
                    let unwritten = writer.write_all(piece_event(&piece).into_bytes()).await;
                    if !unwritten.is_empty() {
                        // The client went away; leaving drops the generation, which cancels it.
                        return;
                    }
                }
                Ok(None) => {
                    break match generation.finish().await {
                        Ok(report) => last_events(&report),
                        Err(problem) => error_event(&problem),
                    };
                }
                Err(problem) => break error_event(&problem),
            }
            next = generation.next().await;
        };
        writer.write_all(last.into_bytes()).await;
    });
    response(200, EVENT_STREAM.0, EVENT_STREAM.1, body).map_err(Failure::Broken)
}

const EVENT_STREAM: (&str, &[(&str, &str)]) =
    ("text/event-stream", &[("cache-control", "no-cache")]);

fn last_events(report: &Report) -> String {
    report.event() + DONE_EVENT
}

/// The body, of at most [`BODY_LIMIT`] bytes and of any declared type: `curl -d` says that JSON is
/// a form.
async fn read_body(request: Request) -> Result<Vec<u8>, Failure> {
    // Dropping the writer says that the request was processed.
    let (_, processed) = wit_future::new(|| Ok(()));
    let (mut stream, trailers) = Request::consume_body(request, processed);
    let mut body = Vec::with_capacity(4096);
    loop {
        if body.len() == body.capacity() {
            body.reserve(body.len());
        }
        let (status, read) = stream.read(body).await;
        body = read;
        if body.len() > BODY_LIMIT {
            return Err(Problem::new(
                413,
                "body-too-large",
                format!("the body has more than {BODY_LIMIT} bytes, which is the limit"),
            )
            .into());
        }
        if !matches!(status, StreamResult::Complete(_)) {
            break;
        }
    }
    trailers.await.map_err(Failure::Broken)?;
    Ok(body)
}

fn problem_response(problem: &Problem) -> Result<Response, ErrorCode> {
    let retry_after = problem
        .retry_after_seconds()
        .map(|seconds| seconds.to_string());
    let mut headers = Vec::new();
    if let Some(seconds) = &retry_after {
        headers.push(("retry-after", seconds.as_str()));
    }
    if problem.status == 405 {
        headers.push(("allow", "POST"));
    }
    whole_response(
        problem.status,
        "application/problem+json",
        &headers,
        problem.to_json(),
    )
}

/// A response whose body is there already.
fn whole_response(
    status: u16,
    content_type: &str,
    headers: &[(&str, &str)],
    body: String,
) -> Result<Response, ErrorCode> {
    let length = body.len().to_string();
    let headers = [headers, &[("content-length", length.as_str())]].concat();
    let (mut writer, reader) = wit_stream::new();
    spawn_local(async move { writer.write_all(body.into_bytes()).await });
    response(status, content_type, &headers, reader)
}

fn response(
    status: u16,
    content_type: &str,
    headers: &[(&str, &str)],
    body: StreamReader<u8>,
) -> Result<Response, ErrorCode> {
    let fields: Vec<_> = [("content-type", content_type)]
        .iter()
        .chain(headers)
        .map(|(name, value)| ((*name).to_owned(), value.as_bytes().to_vec()))
        .collect();
    let broken = |what: &str| ErrorCode::InternalError(Some(what.to_owned()));
    let fields = Fields::from_list(&fields).map_err(|_| broken("the host refused a header"))?;
    let (_, trailers) = wit_future::new(|| Ok(None));
    let (response, _) = Response::new(fields, Some(body), trailers);
    response
        .set_status_code(status)
        .map_err(|()| broken("the host refused the status"))?;
    Ok(response)
}
