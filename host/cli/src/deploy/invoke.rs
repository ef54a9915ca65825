//! `corral invoke`: one request to a deployment through the public listener.

use super::args::InvokeArgs;
use crate::Error;
use crate::admin::{Address, AdminClient, Outgoing, RequestBody, exchange};
use crate::terminal::print;
use bytes::Bytes;
use http::header::AUTHORIZATION;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request};
use http_body_util::{BodyExt, Limited};
use serde_json::{Value, json};
use std::io::{IsTerminal, Read, Write};
use std::net::SocketAddr;
use std::process::ExitCode;

/// Largest body from stdin, and largest response with `--json`; other responses are streamed.
const MAX_BODY_BYTES: usize = 256 << 20;
const CUT_OFF: &str = "the response broke off";

/// Sends the request and prints the response; exit code 1 unless it is a success.
pub(super) async fn invoke(args: &InvokeArgs) -> Result<ExitCode, Error> {
    let name = &args.named.name;
    let admin = &args.named.server.admin;
    let path = format!("/deployments/{name}");
    let detail = AdminClient::new(admin)?
        .request(Method::GET, &path, RequestBody::Empty)
        .await?;
    let route = detail["deployment"]["routes"][0].as_str();
    let Some(path) = args.path.as_deref().or(route) else {
        return Err(Error::failed(format!(
            "'{name}' has no route; see 'corral show {name}'"
        )));
    };
    let reported = || public_address(&detail, &admin.address);
    let Some(public) = args.public.clone().or_else(reported) else {
        return Err(Error::failed(
            "the server does not report its public listener; name it: --public http://HOST:PORT",
        ));
    };
    admin.check_ca(&[&admin.address, &public])?;
    let body = body(args.data.as_deref())?;
    let default = match &body {
        Some(_) => Method::POST,
        None => Method::GET,
    };
    let mut request = Request::builder()
        .method(args.method.clone().unwrap_or(default))
        .uri(path)
        .body(Outgoing::from(body.unwrap_or_default()))
        .map_err(Error::context(
            "invalid path; write one that begins with '/'",
        ))?;
    *request.headers_mut() = headers(&args.headers, args.key.as_deref())?;
    let refused = format!(
        "nothing answers at {public}; check the server, or name its public listener with --public"
    );
    let response = exchange(&public, admin.ca.as_deref(), request, &refused, &refused).await?;
    let status = response.status();
    if args.named.server.json {
        let headers: serde_json::Map<String, Value> = response
            .headers()
            .iter()
            .map(|(name, value)| {
                let value = String::from_utf8_lossy(value.as_bytes());
                (name.to_string(), value.into())
            })
            .collect();
        let body = Limited::new(response.into_body(), MAX_BODY_BYTES);
        let body = body
            .collect()
            .await
            .map_err(Error::context(CUT_OFF))?
            .to_bytes();
        let body = String::from_utf8_lossy(&body);
        let object = json!({"status": status.as_u16(), "headers": headers, "body": body});
        print(&format!("{object}\n"))?;
    } else {
        let mut body = response.into_body();
        let mut ends_line = true;
        let ended = loop {
            match body.frame().await {
                Some(Ok(frame)) => {
                    if let Some(data) = frame.data_ref() {
                        let mut stdout = std::io::stdout().lock();
                        stdout.write_all(data)?;
                        stdout.flush()?;
                        ends_line = data.last().map_or(ends_line, |byte| *byte == b'\n');
                    }
                }
                Some(Err(error)) => break Err(Error::context(CUT_OFF)(error)),
                None => break Ok(()),
            }
        };
        // A prompt or an error must not follow the last line.
        if !ends_line && std::io::stdout().is_terminal() {
            print("\n")?;
        }
        ended?;
    }
    match status.is_success() {
        true => Ok(ExitCode::SUCCESS),
        false => Err(Error::failed(format!("'{name}' answered with {status}"))),
    }
}

/// The headers, and one with the API key unless a header has one: the key may come from the environment.
fn headers(given: &[(HeaderName, HeaderValue)], key: Option<&str>) -> Result<HeaderMap, Error> {
    let mut headers = HeaderMap::new();
    for (name, value) in given {
        headers.append(name, value.clone());
    }
    let has_key = [AUTHORIZATION.as_str(), "x-api-key"]
        .iter()
        .any(|name| headers.contains_key(*name));
    if let Some(key) = key.filter(|_| !has_key) {
        let value = format!("Bearer {key}").parse().map_err(Error::context(
            "the API key contains invalid characters; check --key or CORRAL_API_KEY",
        ))?;
        headers.insert(AUTHORIZATION, value);
    }
    Ok(headers)
}

/// The public listener that the admin listener at `admin` reports, as seen from this machine.
fn public_address(detail: &Value, admin: &Address) -> Option<Address> {
    let reported: SocketAddr = detail["public_address"].as_str()?.parse().ok()?;
    // Certificates name hosts, not addresses, and no client connects to 0.0.0.0.
    let admin_host = match admin {
        Address::Http(authority) | Address::Https(authority) => authority.host(),
        Address::Unix(_) => "localhost",
    };
    let is_here = reported.ip().is_loopback() && admin_host == "localhost";
    let address = match reported.ip().is_unspecified() || is_here {
        true => format!("{admin_host}:{}", reported.port()),
        false => reported.to_string(),
    };
    let scheme = match detail["public_tls"].as_bool() {
        Some(true) => "https",
        _ => "http",
    };
    format!("{scheme}://{address}").parse().ok()
}

/// The body that `--data` names.
fn body(data: Option<&str>) -> Result<Option<Bytes>, Error> {
    let Some(data) = data else {
        return Ok(None);
    };
    let bytes = match data.strip_prefix('@') {
        Some(file) => std::fs::read(file).map_err(Error::context(format!(
            "cannot read the file {file}; name another one after the '@'"
        )))?,
        None if data == "-" => {
            let mut bytes = Vec::new();
            let stdin = std::io::stdin();
            stdin.take(MAX_BODY_BYTES as u64).read_to_end(&mut bytes)?;
            bytes
        }
        None => data.as_bytes().to_vec(),
    };
    Ok(Some(bytes.into()))
}

#[cfg(test)]
mod tests {
    use super::super::args::header;
    use super::*;

    #[test]
    fn given_header_replaces_the_key() {
        let sent = |given: &[&str], name: &str| {
            let given = given.iter().map(|text| header(text).expect("a header"));
            let given: Vec<_> = given.collect();
            let headers = headers(&given, Some("key")).expect("valid");
            let values = headers.get_all(name).iter();
            values
                .map(|value| value.to_str().expect("ASCII").to_owned())
                .collect::<Vec<_>>()
        };
        assert_eq!(sent(&["a: b"], "authorization"), ["Bearer key"]);
        let basic = ["Authorization: Basic x", "a: b"];
        assert_eq!(sent(&basic, "authorization"), ["Basic x"]);
        let other = ["X-Api-Key: other"];
        assert_eq!(sent(&other, "x-api-key"), ["other"]);
        assert!(sent(&other, "authorization").is_empty());
        assert!(headers(&[], None).expect("valid").is_empty());
        let error = headers(&[], Some("a\nb")).expect_err("a line break");
        assert!(error.message(false).contains("CORRAL_API_KEY"));
    }

    #[test]
    fn public_address_is_reachable_from_here() {
        for (reported, tls, admin, expected) in [
            (
                "127.0.0.1:1",
                false,
                "http://127.0.0.1:2",
                "http://127.0.0.1:1",
            ),
            (
                "127.0.0.1:1",
                true,
                "https://localhost:2",
                "https://localhost:1",
            ),
            (
                "0.0.0.0:1",
                true,
                "https://a.example:2",
                "https://a.example:1",
            ),
            ("[::]:1", false, "http://[::1]:2", "http://[::1]:1"),
            ("0.0.0.0:1", false, "unix:admin.sock", "http://localhost:1"),
            (
                "10.0.0.1:1",
                true,
                "https://a.example:2",
                "https://10.0.0.1:1",
            ),
        ] {
            let detail = json!({"public_address": reported, "public_tls": tls});
            let admin: Address = admin.parse().expect(admin);
            let address = public_address(&detail, &admin).expect(expected);
            assert_eq!(address.to_string(), expected);
        }
    }
}
