//! The files of the console, a web page that shows this server and uses its admin API.
//!
//! The files hold no secret and need no token; what the page asks for does. They are embedded in the binary, and their
//! policy lets a browser load nothing from anywhere else. Paths below `/ui` that name no file are pages of the console.

use crate::problem::Problem;
use bytes::Bytes;
use corral_runtime::Body;
use data_encoding::HEXLOWER;
use http::header::{
    ACCEPT, CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, ETAG, IF_NONE_MATCH,
    REFERRER_POLICY, VARY, X_CONTENT_TYPE_OPTIONS,
};
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode};
use sha2::{Digest, Sha256};
use std::sync::LazyLock;

/// What a browser may load and do for the console.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
                      img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// A file of the console.
struct File {
    content_type: &'static str,
    bytes: &'static [u8],
    /// Of its digest, so that a browser loads it again only after a change.
    etag: LazyLock<HeaderValue>,
}

macro_rules! file {
    ($name:literal, $content_type:literal) => {
        File {
            content_type: $content_type,
            bytes: include_bytes!(concat!(
                env!("CARGO_MANIFEST_DIR"),
                "/../console/dist/",
                $name
            )),
            etag: LazyLock::new(|| {
                etag(include_bytes!(concat!(
                    env!("CARGO_MANIFEST_DIR"),
                    "/../console/dist/",
                    $name
                )))
            }),
        }
    };
}

static INDEX: File = file!("index.html", "text/html; charset=utf-8");
static SCRIPT: File = file!("app.js", "text/javascript; charset=utf-8");
static STYLE: File = file!("app.css", "text/css; charset=utf-8");

/// Answers a request for a file of the console.
pub(super) fn answer<B>(request: &Request<B>) -> Option<Result<Response<Body>, Problem>> {
    let file = match request.uri().path() {
        // Programs get the list of routes there.
        "/" if accepts_html(request.headers()) => &INDEX,
        "/ui/app.js" => &SCRIPT,
        "/ui/app.css" => &STYLE,
        "/ui" => &INDEX,
        path if path.starts_with("/ui/") => &INDEX,
        _ => return None,
    };
    Some(match *request.method() {
        Method::GET | Method::HEAD => Ok(file.response(request.headers())),
        _ => Err(Problem::method("GET, HEAD")),
    })
}

/// Whether a browser asks for a page.
fn accepts_html(headers: &HeaderMap) -> bool {
    let accepted = headers.get_all(ACCEPT).iter();
    let mut accepted = accepted.filter_map(|value| value.to_str().ok());
    accepted.any(|value| value.contains("text/html"))
}

impl File {
    fn response(&self, request: &HeaderMap) -> Response<Body> {
        let sent = request.get_all(IF_NONE_MATCH).iter();
        let etag = self.etag.as_bytes();
        let mut sent = sent.flat_map(|value| value.as_bytes().split(|byte| *byte == b','));
        let is_known = sent.any(|one| {
            let one = one.trim_ascii();
            one == b"*" || one.strip_prefix(b"W/").unwrap_or(one) == etag
        });
        let mut response = match is_known {
            true => Response::new(Body::empty()),
            false => Response::new(Body::from(Bytes::from_static(self.bytes))),
        };
        if is_known {
            *response.status_mut() = StatusCode::NOT_MODIFIED;
        }
        let headers = response.headers_mut();
        headers.insert(ETAG, self.etag.clone());
        for (name, value) in [
            (CONTENT_TYPE, self.content_type),
            // Ask each time, which a 304 answers.
            (CACHE_CONTROL, "no-cache"),
            (VARY, "accept"),
            (CONTENT_SECURITY_POLICY, POLICY),
            (X_CONTENT_TYPE_OPTIONS, "nosniff"),
            (REFERRER_POLICY, "no-referrer"),
        ] {
            headers.insert(name, HeaderValue::from_static(value));
        }
        response
    }
}

fn etag(bytes: &[u8]) -> HeaderValue {
    let digest = HEXLOWER.encode(&Sha256::digest(bytes)[..16]);
    HeaderValue::try_from(format!("\"{digest}\"")).unwrap_or(HeaderValue::from_static("\"\""))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn get(path: &str, headers: &[(http::HeaderName, &str)]) -> Option<Response<Body>> {
        let mut request = Request::get(path);
        for (name, value) in headers {
            request = request.header(name, *value);
        }
        let request = request.body(()).expect("a request");
        answer(&request).map(|answered| answered.expect("a file"))
    }

    #[test]
    fn browsers_get_the_page_and_programs_the_list() {
        let html = [(ACCEPT, "text/html,application/xhtml+xml,*/*;q=0.8")];
        let page = get("/", &html).expect("the page");
        assert_eq!(page.headers()[CONTENT_TYPE], "text/html; charset=utf-8");
        assert_eq!(page.headers()[CONTENT_SECURITY_POLICY], POLICY);
        assert!(get("/", &[(ACCEPT, "*/*")]).is_none());
        assert!(get("/", &[]).is_none());
        for path in ["/ui", "/ui/", "/ui/requests"] {
            let page = get(path, &[]).expect("the page");
            assert_eq!(page.headers()[CONTENT_TYPE], "text/html; charset=utf-8");
        }
        assert!(get("/uix", &html).is_none());
        assert!(get("/models", &html).is_none());
    }

    #[test]
    fn known_file_is_not_sent_again() {
        let first = get("/ui/app.js", &[]).expect("the script");
        assert_eq!(first.status(), 200);
        let etag = first.headers()[ETAG].to_str().expect("text").to_owned();
        for known in [&etag, &format!("\"x\", W/{etag}"), "*"] {
            let again = get("/ui/app.js", &[(IF_NONE_MATCH, known)]).expect("the script");
            assert_eq!(again.status(), 304, "{known}");
            assert!(http_body::Body::is_end_stream(again.body()));
        }
        let other = get("/ui/app.css", &[(IF_NONE_MATCH, &etag)]).expect("the style");
        assert_eq!(other.status(), 200);
    }

    #[test]
    fn files_are_only_read() {
        let request = Request::post("/ui/app.js").body(()).expect("a request");
        let problem = answer(&request).expect("a file").expect_err("read only");
        assert_eq!(problem.status(), 405);
    }
}
