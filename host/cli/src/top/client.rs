//! Asks an admin listener: one GET on a connection of its own.

use crate::Error;
use crate::admin::{Address, Admin};
use crate::terminal::printable;
use bytes::Bytes;
use http::header::HOST;
use http::{Request, StatusCode};
use http_body_util::{BodyExt, Empty, Limited};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use std::time::Duration;

/// How long an answer may take. The server itself takes two seconds at most.
const PATIENCE: Duration = Duration::from_secs(5);
/// Most bytes of an answer: some hundred for each sequence and each thing that is kept.
const MOST: usize = 64 << 20;

/// What goes on in the models of the server that has this admin listener.
pub(crate) async fn look(admin: &Admin) -> Result<Value, Error> {
    let address = &admin.address;
    let asking = tokio::time::timeout(PATIENCE, ask(admin));
    let (status, body) = asking.await.map_err(Error::context(format!(
        "{address} did not answer within {} s; try again, or look at the machine it is on",
        PATIENCE.as_secs()
    )))??;
    let seen =
        serde_json::from_slice::<Value>(&body).map_err(Error::context(no_corral(address)))?;
    if status == StatusCode::OK && seen["models"].is_array() {
        return Ok(seen);
    }
    // The public listener knows no such path, and says so.
    let told = seen["detail"].as_str().filter(|_| status.is_server_error());
    Err(Error::Failed(match told {
        Some(told) => format!("{address} can't tell now: {}", printable(told)).into(),
        None => no_corral(address).into(),
    }))
}

async fn ask(admin: &Admin) -> Result<(StatusCode, Bytes), Error> {
    let address = &admin.address;
    let no_corral = no_corral(address);
    let gone = format!(
        "nothing answers at {address}; start 'corral serve', or name its admin listener: \
         --admin http://HOST:PORT"
    );
    let stream = admin.connect(&gone).await?;
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    let request = Request::get("/sequences")
        .header(HOST, address.host())
        .body(Empty::<Bytes>::new())?;
    let answer = async {
        let response = sender.send_request(request).await?;
        let status = response.status();
        let body = Limited::new(response.into_body(), MOST).collect().await?;
        Ok::<_, Box<dyn std::error::Error + Send + Sync>>((status, body.to_bytes()))
    };
    // The connection is driven here until the answer is there, and dropped with it.
    tokio::pin!(answer);
    let answered = tokio::select! {
        answered = &mut answer => answered,
        // It ends before the answer is read to its end only if it broke, or all of it is there.
        _ = connection => answer.await,
    };
    answered.map_err(Error::context(no_corral))
}

fn no_corral(address: &Address) -> String {
    format!(
        "what answers at {address} is no admin listener of this version of Corral; \
         'corral serve' says where it is: admin on http://HOST:PORT"
    )
}
