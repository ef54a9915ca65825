//! Fetches a page with `wasi:http/client`. The host lets the request through if the deployment has a grant for it.

use corral_sdk::Error;
use wasip3::http::client::send;
use wasip3::http::types::{ErrorCode, Fields, Request, Response, Scheme};
use wasip3::wit_bindgen::StreamResult;
use wasip3::wit_future;

/// Most bytes of a page that are read.
const MAX_BYTES: usize = 1 << 20;
const READ_BYTES: usize = 64 << 10;
/// Most redirects in a row.
const MAX_REDIRECTS: usize = 3;

/// The body at a URL, its first part if it is long. Follows redirects: the host checks each of them like any request.
pub async fn get(url: &str) -> Result<String, Error> {
    let mut url = url.to_owned();
    for _ in 0..=MAX_REDIRECTS {
        let response = send(request(&url)?)
            .await
            .map_err(|error| failed(&url, &error))?;
        let status = response.get_status_code();
        match status {
            200..300 => return read(response, &url).await,
            300..400 => {
                let location = response.get_headers().get("location");
                let location = location.first().map(|value| String::from_utf8_lossy(value));
                url = redirected(&url, &location.unwrap_or_default())
                    .ok_or_else(|| unusable(&url, "redirects to no http URL"))?;
            }
            _ => return Err(unusable(&url, &format!("answers with status {status}"))),
        }
    }
    Err(unusable(&url, "redirects too often"))
}

fn request(url: &str) -> Result<Request, Error> {
    let invalid = || Error::bad_request("invalid-url", format!("'{url}' is no http or https URL"));
    let (scheme, authority, path) = split(url).ok_or_else(invalid)?;
    let (_, trailers) = wit_future::new(|| Ok(None));
    let (request, _) = Request::new(Fields::new(), None, trailers, None);
    let scheme = match scheme {
        "https" => Scheme::Https,
        _ => Scheme::Http,
    };
    request.set_scheme(Some(&scheme)).map_err(|()| invalid())?;
    request
        .set_authority(Some(authority))
        .map_err(|()| invalid())?;
    request
        .set_path_with_query(Some(path))
        .map_err(|()| invalid())?;
    Ok(request)
}

async fn read(response: Response, url: &str) -> Result<String, Error> {
    let (_, done) = wit_future::new(|| Ok(()));
    let (mut body, end) = Response::consume_body(response, done);
    let mut page = Vec::new();
    loop {
        let (result, piece) = body.read(Vec::with_capacity(READ_BYTES)).await;
        page.extend(piece);
        if page.len() >= MAX_BYTES {
            page.truncate(MAX_BYTES);
            break;
        }
        if !matches!(result, StreamResult::Complete(_)) {
            end.await.map_err(|error| failed(url, &error))?;
            break;
        }
    }
    Ok(String::from_utf8_lossy(&page).into_owned())
}

/// Scheme, authority, and path with query.
fn split(url: &str) -> Option<(&str, &str, &str)> {
    let url = url.split('#').next()?;
    let (scheme, rest) = url.split_once("://")?;
    let (authority, path) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
    let path = if path.is_empty() { "/" } else { path };
    let known = ["http", "https"].contains(&scheme) && !authority.is_empty();
    known.then_some((scheme, authority, path))
}

/// Where a redirect with this location leads: an absolute URL, or a path.
fn redirected(from: &str, location: &str) -> Option<String> {
    if split(location).is_some() {
        return Some(location.to_owned());
    }
    let (scheme, authority, _) = split(from)?;
    let is_path = location.starts_with('/') && !location.starts_with("//");
    is_path.then(|| format!("{scheme}://{authority}{location}"))
}

fn failed(url: &str, error: &ErrorCode) -> Error {
    match error {
        ErrorCode::HttpRequestDenied | ErrorCode::DestinationIpProhibited => {
            Error::NotGranted(format!(
                "this deployment may not fetch {url}; its manifest must name the host in 'grants.outbound'"
            ))
        }
        error => unusable(url, &format!("cannot be fetched: {error:?}")),
    }
}

fn unusable(url: &str, why: &str) -> Error {
    Error::new(502, "no-page", format!("{url} {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_split_at_their_authority() {
        let parts = split("https://a.example:8443/b?c#d");
        assert_eq!(parts, Some(("https", "a.example:8443", "/b?c")));
        assert_eq!(split("http://a.example"), Some(("http", "a.example", "/")));
        for url in ["a.example", "ftp://a.example/", "https:///path", ""] {
            assert_eq!(split(url), None, "{url}");
        }
    }

    #[test]
    fn redirects_are_absolute_or_paths() {
        let from = "https://a.example:8443/b";
        for (location, expected) in [
            ("http://127.0.0.1/", Some("http://127.0.0.1/")),
            ("/c?d", Some("https://a.example:8443/c?d")),
            ("//b.example/", None),
            ("c", None),
            ("", None),
        ] {
            assert_eq!(
                redirected(from, location).as_deref(),
                expected,
                "{location}"
            );
        }
    }
}
