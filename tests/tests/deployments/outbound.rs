//! Outgoing requests of plugins: what a deployment is granted works, everything else is refused before anything is sent,
//! and every request has its bounds. `host/runtime/src/outbound` tests names that change their address.

use corral_tests::deployments::{deploy_plugin, show};
use corral_tests::{Corral, Identity, Metrics, Upstream, scratch_dir, wait_until};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::net::TcpStream;

/// Largest body of a request, and of a response.
const BODY_KIB: usize = 32 << 10;
/// Connections of one deployment.
const CONNECTIONS: usize = 32;

/// Deploys the test plugin at `/NAME` with these grants.
fn deploy(corral: &Corral, name: &str, outbound: Value) {
    let grants = json!({"grants": {"outbound": outbound}});
    deploy_plugin(corral, name, "outbound", grants);
}

/// Lets the plugin at `/NAME` send a request, and returns what it reports.
fn send(corral: &Corral, name: &str, request: &Value) -> Value {
    corral.post_json(&format!("/{name}"), request)
}

fn get(corral: &Corral, name: &str, url: &str) -> Value {
    send(corral, name, &json!({"url": url}))
}

fn check_error(answer: &Value, code: &str) {
    let error = answer["error"].as_str().unwrap_or_default();
    assert!(error.contains(code), "{code}: {answer}");
}

/// A metric of a deployment.
fn metric(metrics: &Metrics, name: &str, deployment: &str) -> f64 {
    metrics.get(&format!(
        "corral_deployment_outbound_{name}{{deployment=\"{deployment}\"}}"
    ))
}

/// Refused requests of a deployment by reason, without zeros.
fn refused(corral: &Corral, deployment: &str) -> BTreeMap<String, f64> {
    let metrics = corral.metrics();
    let samples = metrics.samples("corral_deployment_outbound_refused_total");
    let labels = format!("deployment=\"{deployment}\",reason=\"");
    let of_deployment = samples.into_iter().filter_map(|(name, count)| {
        let reason = name.strip_prefix(&labels)?.strip_suffix('"')?;
        Some((reason.to_owned(), count)).filter(|_| count > 0.0)
    });
    of_deployment.collect()
}

fn reasons<const N: usize>(reasons: [(&str, f64); N]) -> BTreeMap<String, f64> {
    let reasons = reasons.map(|(reason, count)| (reason.to_owned(), count));
    BTreeMap::from(reasons)
}

fn no_connections(corral: &Corral) -> Metrics {
    corral.wait_until("the end of all connections", |metrics| {
        metrics.get("corral_plugin_outbound_connections") == 0.0
    })
}

#[test]
fn granted_requests_reach_their_server() {
    let corral = Corral::start_with_store(&[]);
    let upstream = Upstream::start();
    let grants = json!([{"url": upstream.url(""), "methods": ["GET", "HEAD", "POST"]}]);
    deploy(&corral, "granted", grants.clone());
    let url = upstream.url("/text?a=b");
    let asked = json!({"url": url, "headers": {"x-sent": "header"}});
    let answer = send(&corral, "granted", &asked);
    assert_eq!(answer["status"], 200);
    assert_eq!(answer["text"], "GET /text?a=b header 0");
    let answer = send(&corral, "granted", &json!({"url": url, "method": "HEAD"}));
    assert_eq!(answer["status"], 200);
    assert_eq!(answer["bytes"], 0);
    let asked = json!({"url": url, "method": "POST", "body": "question"});
    let answer = send(&corral, "granted", &asked);
    assert_eq!(answer["text"], "POST /text?a=b  8");
    // A body that is sent while the plugin writes it.
    let asked = json!({"url": url, "method": "POST", "body_kib": 8192});
    let answer = send(&corral, "granted", &asked);
    assert_eq!(answer["text"], format!("POST /text?a=b  {}", 8192 << 10));
    let answer = get(&corral, "granted", &upstream.url("/large?8192"));
    assert_eq!(answer["bytes"], 8192 << 10);
    let metrics = no_connections(&corral);
    assert_eq!(metric(&metrics, "requests_total", "granted"), 5.0);
    let found = metric(&metrics, "sent_bytes_total", "granted");
    assert_eq!(found, f64::from((8192 << 10) + 8));
    assert!(metric(&metrics, "received_bytes_total", "granted") > f64::from(8192 << 10));
    assert_eq!(refused(&corral, "granted"), BTreeMap::new());
    let found = upstream.accepted();
    assert_eq!(found, 5, "each request has a connection of its own");

    // The same in WASI 0.2.
    let more = json!({"routes": ["/p2"], "grants": {"outbound": grants}});
    deploy_plugin(&corral, "wasi-p2-handler", "wasi-p2-handler", more);
    let path = format!("/p2/fetch?{}", upstream.url("/text"));
    let answer = corral.post(&path, "question").body;
    assert_eq!(answer, format!("{path}\n200\nPOST /text  8"));
    let path = format!(
        "/p2/fetch?http://127.0.0.1:{}/text",
        upstream.port().wrapping_add(1).max(1)
    );
    let answer = corral.post(&path, "question").body;
    assert_eq!(answer, format!("{path}\nErrorCode::HttpRequestDenied\n"));
    no_connections(&corral);
}

#[test]
fn refusal_names_the_missing_grant() {
    let corral = Corral::start_with_store(&[]);
    let upstream = Upstream::start();
    deploy(&corral, "none", json!([]));
    let answer = get(&corral, "none", &upstream.url("/text"));
    check_error(&answer, "HttpRequestDenied");
    let needed = format!(
        "GET {url} needs a grant; add \"{url}\" to 'grants.outbound'",
        url = upstream.url("")
    );
    corral.wait_for_stderr(&needed);
    assert_eq!(refused(&corral, "none"), reasons([("grant", 1.0)]));

    let grants = json!(["https://*.example.com", {"url": upstream.url(""), "methods": ["GET"]}]);
    deploy(&corral, "some", grants.clone());
    for (request, code) in [
        (
            json!({"url": upstream.url("/text"), "method": "POST", "body": "x"}),
            "HttpRequestDenied",
        ),
        (
            json!({"url": upstream.url("/text"), "method": "CONNECT"}),
            "HttpRequestDenied",
        ),
        (
            json!({"url": format!("https://{}/", upstream.authority())}),
            "HttpRequestDenied",
        ),
        (json!({"url": "http://127.0.0.1/"}), "HttpRequestDenied"),
        (json!({"url": "https://example.com/"}), "HttpRequestDenied"),
        (
            json!({"url": format!("http://user@{}/", upstream.authority())}),
            "HttpRequestUriInvalid",
        ),
    ] {
        check_error(&send(&corral, "some", &request), code);
    }
    corral.wait_for_stderr("does not allow POST; add it to 'methods'");
    let expected = reasons([("grant", 3.0), ("host", 1.0), ("method", 2.0)]);
    assert_eq!(refused(&corral, "some"), expected);
    assert_eq!(upstream.accepted(), 0);
    assert_eq!(get(&corral, "some", &upstream.url("/text"))["status"], 200);

    let shown = show(&corral, "some");
    let found = &shown["revisions"][0]["manifest"]["grants"]["outbound"];
    assert_eq!(*found, grants);
    let shown = corral.cli_output(&["show", "some"]);
    let line = format!("revision 1 may call {} (GET)\n", upstream.url(""));
    assert!(shown.contains(&line), "{shown}");
}

#[test]
fn redirect_is_checked_like_any_request() {
    let corral = Corral::start_with_store(&[]);
    let (upstream, secret) = (Upstream::start(), Upstream::start());
    deploy(&corral, "redirect", json!([upstream.url("")]));
    let url = upstream.url(&format!("/redirect?{}", secret.url("/text")));
    let answer = get(&corral, "redirect", &url);
    assert_eq!(answer["status"], 302, "the plugin gets it: {answer}");
    let location = answer["headers"]["location"].as_str().expect("a location");
    check_error(&get(&corral, "redirect", location), "HttpRequestDenied");
    assert_eq!((upstream.requests().len(), secret.accepted()), (1, 0));
}

#[test]
fn special_addresses_need_their_own_grant() {
    let corral = Corral::start_with_store(&[]);
    let upstream = Upstream::start();
    let port = upstream.port();
    deploy(&corral, "any", json!(["http://*:*", "https://*:*"]));
    for host in [
        "127.0.0.1",
        "localhost",
        "LOCALHOST.",
        "[::1]",
        "[::ffff:127.0.0.1]",
        "[::127.0.0.1]",
        "[64:ff9b::7f00:1]",
        "[2002:7f00:1::]",
        "0.0.0.0",
        "[::]",
        "127.0.0.2",
        "10.0.0.1",
        "172.16.0.1",
        "192.168.0.1",
        "169.254.169.254",
        "[fe80::1]",
        "[fd00::1]",
        "224.0.0.1",
        "[ff02::1]",
        "100.64.0.1",
    ] {
        let answer = get(&corral, "any", &format!("http://{host}:{port}/text"));
        check_error(&answer, "DestinationIpProhibited");
    }
    for host in [
        "2130706433",
        "0x7f000001",
        "0177.0.0.1",
        "127.1",
        "0x7f.0.0.1",
        "127.0.0.01",
    ] {
        let answer = get(&corral, "any", &format!("http://{host}:{port}/text"));
        check_error(&answer, "HttpRequestUriInvalid");
    }
    let found = refused(&corral, "any");
    assert_eq!(found, reasons([("address", 20.0), ("host", 6.0)]));
    let named = format!("add \"http://127.0.0.1:{port}\" to 'grants.outbound'");
    corral.wait_for_stderr(&named);
    assert_eq!(upstream.accepted(), 0);

    // Each name of an address is granted alone.
    for (name, host, others) in [
        ("address", "127.0.0.1", ["localhost", "[::ffff:127.0.0.1]"]),
        ("localhost", "localhost", ["127.0.0.1", "127.0.0.2"]),
    ] {
        deploy(&corral, name, json!([format!("http://{host}:{port}")]));
        let found = &get(&corral, name, &format!("http://{host}:{port}/text"))["status"];
        assert_eq!(*found, 200);
        for other in others {
            let answer = get(&corral, name, &format!("http://{other}:{port}/text"));
            check_error(&answer, "HttpRequestDenied");
        }
    }
}

#[test]
fn admin_listener_needs_its_port_in_a_grant() {
    let corral = Corral::start_with_store(&[]);
    let upstream = Upstream::start();
    let ready = format!("http://{}/readyz", corral.admin());
    let grants = json!(["http://127.0.0.1:*", "http://*:*"]);
    deploy(&corral, "any-port", grants);
    let found = &get(&corral, "any-port", &upstream.url("/text"))["status"];
    assert_eq!(*found, 200);
    check_error(&get(&corral, "any-port", &ready), "DestinationIpProhibited");
    let grants = json!([format!("http://{}", corral.admin())]);
    deploy(&corral, "named", grants);
    assert_eq!(get(&corral, "named", &ready)["status"], 200);
}

#[test]
fn https_needs_a_trusted_certificate() {
    let (trusted, other) = (Identity::new(), Identity::new());
    let [file, _] = trusted.write(&scratch_dir());
    let setup = format!("export SSL_CERT_FILE='{}'", file.display());
    let corral = Corral::start_after(&setup, Some(&scratch_dir()), &[]);
    let servers = [Upstream::start_tls(&trusted), Upstream::start_tls(&other)];
    let grants = json!(["https://localhost:*", "https://127.0.0.1:*"]);
    deploy(&corral, "tls", grants);
    let [trusted, other] = servers.each_ref().map(|server| {
        get(
            &corral,
            "tls",
            &format!("https://localhost:{}/text", server.port()),
        )
    });
    assert_eq!(trusted["text"], "GET /text  0", "{trusted}");
    check_error(&other, "TlsCertificateError");
    // Its certificate is for a name.
    let answer = get(&corral, "tls", &servers[0].url("/text"));
    check_error(&answer, "TlsCertificateError");
    corral.wait_for_stderr("SSL_CERT_FILE");
    assert_eq!(servers[0].requests().len() + servers[1].requests().len(), 1);
    let metrics = no_connections(&corral);
    assert_eq!(metric(&metrics, "failures_total", "tls"), 2.0);
}

#[test]
fn bodies_and_heads_over_their_bound_end() {
    let corral = Corral::start_with_store(&[]);
    let upstream = Upstream::start();
    deploy(&corral, "bounds", json!([upstream.url("")]));
    let large = |kib: usize| upstream.url(&format!("/large?{kib}"));
    let found = &get(&corral, "bounds", &large(BODY_KIB))["bytes"];
    assert_eq!(*found, BODY_KIB << 10);
    let answer = get(&corral, "bounds", &large(4 * BODY_KIB));
    check_error(&answer, "HttpResponseBodySize");
    assert!(
        answer["bytes"].as_u64() <= Some((BODY_KIB << 10) as u64),
        "{answer}"
    );
    let post = |kib: usize| {
        let url = upstream.url("/text");
        send(
            &corral,
            "bounds",
            &json!({"url": url, "method": "POST", "body_kib": kib}),
        )
    };
    assert_eq!(post(BODY_KIB)["status"], 200);
    check_error(&post(BODY_KIB + 64), "HttpRequestBodySize");
    let header = |bytes: usize| {
        get(
            &corral,
            "bounds",
            &upstream.url(&format!("/header?{bytes}")),
        )
    };
    assert_eq!(header(32 << 10)["status"], 200);
    check_error(&header(128 << 10), "HttpResponseHeaderSectionSize");
    let expected = reasons([("body", 2.0), ("headers", 1.0)]);
    assert_eq!(refused(&corral, "bounds"), expected);
    check_error(
        &get(&corral, "bounds", &upstream.url("/cut")),
        "HttpResponseIncomplete",
    );
    no_connections(&corral);
}

#[test]
fn deployment_has_a_bounded_number_of_connections() {
    let corral = Corral::start_with_store(&[]);
    let upstream = Upstream::start();
    for name in ["many", "neighbor"] {
        deploy(&corral, name, json!([upstream.url("")]));
    }
    let held = json!({"url": upstream.url("/stalled"), "hold": true}).to_string();
    let hold = |_| corral.begin_post("/many", &held);
    let holding: Vec<TcpStream> = (0..CONNECTIONS).map(hold).collect();
    let all = CONNECTIONS as f64;
    corral.wait_until("all connections", |metrics| {
        metric(metrics, "connections", "many") == all
    });
    wait_until("all requests", || upstream.requests().len() == CONNECTIONS);
    let patient = json!({"url": upstream.url("/text")});
    let hasty = json!({"url": upstream.url("/text"), "connect_ms": 100});
    let asked = corral.with_neighbors(|| {
        for _ in 0..5 {
            check_error(&send(&corral, "many", &hasty), "ConnectionLimitReached");
            assert_eq!(send(&corral, "neighbor", &patient)["status"], 200);
        }
    });
    assert!(asked > 0);
    assert_eq!(refused(&corral, "many"), reasons([("connections", 5.0)]));
    wait_until("the end of the neighbor's connections", || {
        upstream.open() == CONNECTIONS
    });
    // A client that goes away ends its call, and with it the connection.
    drop(holding);
    no_connections(&corral);
    wait_until("the end of the connections", || upstream.open() == 0);
    assert_eq!(send(&corral, "many", &patient)["status"], 200);
}

#[test]
fn silent_server_ends_at_its_time_limit() {
    let corral = Corral::start_with_store(&[]);
    let upstream = Upstream::start();
    deploy(&corral, "silent", json!([upstream.url("")]));
    let request = |path: &str, limit: &str| json!({"url": upstream.url(path), limit: 100});
    let answer = send(&corral, "silent", &request("/never", "first_byte_ms"));
    check_error(&answer, "HttpResponseTimeout");
    let answer = send(&corral, "silent", &request("/stalled", "between_ms"));
    check_error(&answer, "ConnectionReadTimeout");
    assert_eq!(refused(&corral, "silent"), reasons([("time", 2.0)]));

    // Without limits of its own, the call's limit ends the request.
    let limits = json!({"limits": {"time-seconds": 1}, "grants": {"outbound": [upstream.url("")]}});
    deploy_plugin(&corral, "limited", "outbound", limits);
    let asked = corral.with_neighbors(|| {
        let body = json!({"url": upstream.url("/never")}).to_string();
        let answer = corral.post("/limited", body);
        answer.problem(504, "deadline");
    });
    assert!(asked > 0);
    wait_until("the end of the connections", || upstream.open() == 0);
    no_connections(&corral);
}
