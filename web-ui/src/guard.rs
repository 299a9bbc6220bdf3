//! What every request passes before it reaches a route.
//!
//! Promise: a request is bounded by its [`RequestLimits`] in bytes and time, was addressed to this
//! machine by a loopback name (DNS rebinding: a page of a foreign origin cannot read us under its
//! own name), and its answer carries the headers that keep browsers from guessing, framing and
//! caching. Does not know: the routes. Source: RFC 9110 and 9112, OWASP ASVS 5.0 chapter 3.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::{FromRequest, Request, State};
use axum::http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, HOST, HeaderName, HeaderValue, REFERRER_POLICY,
    X_CONTENT_TYPE_OPTIONS, X_FRAME_OPTIONS,
};
use axum::http::{HeaderMap, StatusCode, Uri};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use crate::problem::Problem;

/// Bounds of one request.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RequestLimits {
    /// The most bytes that its body may have.
    pub(crate) body_max: usize,
    /// Time for its body to arrive and its answer to be made.
    pub(crate) timeout: Duration,
}

/// What every request may take.
pub(crate) const REQUEST: RequestLimits =
    RequestLimits { body_max: 16 * 1024, timeout: Duration::from_secs(10) };

/// What a whole configuration may take: the size that `check` reads, and the time in which a
/// change is started, judged and, if need be, undone.
pub(crate) const CONFIGURATION: RequestLimits =
    RequestLimits { body_max: 16 << 20, timeout: Duration::from_secs(150) };

/// What a change of one stream, or trying SQL, may take until it is answered: a change of the
/// configuration that is under way comes first. A text of SQL has up to 64 KiB.
pub(crate) const STREAMS: RequestLimits =
    RequestLimits { body_max: 256 * 1024, timeout: Duration::from_secs(150) };

/// What a change of the store may take until it is durable: on a full disk something else gives way
/// first, of which the last waits ten flushes, one a second.
pub(crate) const STORE_CHANGE: RequestLimits =
    RequestLimits { body_max: 16 * 1024, timeout: Duration::from_secs(25) };

/// What reading or writing the whole store may take.
pub(crate) const MAINTENANCE: RequestLimits =
    RequestLimits { body_max: 16 * 1024, timeout: Duration::from_mins(10) };

/// Headers of every answer. Nothing that is served yet needs scripts, styles or frames.
const ANSWER_HEADERS: [(HeaderName, &str); 6] = [
    (X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (
        CONTENT_SECURITY_POLICY,
        "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
    (X_FRAME_OPTIONS, "DENY"),
    (REFERRER_POLICY, "no-referrer"),
    (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    (CACHE_CONTROL, "no-store"),
];

/// Adds the headers that every answer carries, errors too.
pub(crate) async fn answer_headers(request: Request, next: Next) -> Response {
    let mut response = next.run(request).await;
    for (name, value) in ANSWER_HEADERS {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    response
}

/// Reads the body within its bound and gives request and answer one deadline.
///
/// Bodies are bounded, so they are read here, once, for all routes: also one that no route
/// looks at cannot keep a connection busy.
pub(crate) async fn limits(
    State(RequestLimits { body_max, timeout }): State<RequestLimits>,
    request: Request,
    next: Next,
) -> Response {
    let answer = async {
        let (parts, body) = request.into_parts();
        // The extractor knows the bound from `DefaultBodyLimit` in the request's extensions.
        match Bytes::from_request(Request::from_parts(parts.clone(), body), &()).await {
            Ok(body) => next.run(Request::from_parts(parts, Body::from(body))).await,
            Err(refusal) if refusal.status() == StatusCode::PAYLOAD_TOO_LARGE => {
                let detail = format!("the body is longer than {body_max} bytes");
                Problem::new(StatusCode::PAYLOAD_TOO_LARGE, "body_too_large", detail)
                    .into_response()
            }
            Err(_) => Problem::new(
                StatusCode::BAD_REQUEST,
                "body_unreadable",
                "the body ended early or was not framed as its headers say",
            )
            .into_response(),
        }
    };
    tokio::time::timeout(timeout, answer).await.unwrap_or_else(|_| {
        let detail = format!("the request took longer than {} s", timeout.as_secs());
        Problem::new(StatusCode::REQUEST_TIMEOUT, "request_timeout", detail).into_response()
    })
}

/// Refuses a request that was addressed to another name than this machine's own.
pub(crate) async fn loopback_host(request: Request, next: Next) -> Response {
    match addressed_to(request.headers(), request.uri()) {
        Addressed::Loopback => next.run(request).await,
        Addressed::Elsewhere => Problem::new(
            StatusCode::MISDIRECTED_REQUEST,
            "host_not_allowed",
            "the request names a host that is not served here",
        )
        .hint("use `localhost`, `127.0.0.1` or `[::1]`")
        .into_response(),
        Addressed::Unclear => Problem::new(
            StatusCode::BAD_REQUEST,
            "host_missing",
            "a request needs exactly one Host header",
        )
        .into_response(),
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Addressed {
    Loopback,
    Elsewhere,
    Unclear,
}

/// Judges the Host header and, in a request to a proxy's address form, the target's authority.
fn addressed_to(headers: &HeaderMap, uri: &Uri) -> Addressed {
    let mut hosts = headers.get_all(HOST).iter();
    let (Some(host), None) = (hosts.next(), hosts.next()) else {
        return Addressed::Unclear;
    };
    let named = host.to_str().is_ok_and(is_loopback);
    let targeted = uri.authority().is_none_or(|authority| is_loopback(authority.as_str()));
    if named && targeted { Addressed::Loopback } else { Addressed::Elsewhere }
}

/// True for `localhost` and loopback addresses, with or without a port.
fn is_loopback(authority: &str) -> bool {
    let bracketed = authority.strip_prefix('[').and_then(|a| a.split_once(']'));
    let (address, port) = if let Some((v6, rest)) = bracketed {
        (v6.parse().is_ok_and(|a: Ipv6Addr| a.is_loopback()), rest)
    } else {
        let colon = authority.find(':').unwrap_or(authority.len());
        let (host, rest) = authority.split_at(colon);
        let v4 = host.parse().is_ok_and(|a: Ipv4Addr| a.is_loopback());
        (v4 || host.eq_ignore_ascii_case("localhost"), rest)
    };
    let port_is_sound = port.is_empty()
        || port
            .strip_prefix(':')
            .is_some_and(|p| !p.is_empty() && p.bytes().all(|b| b.is_ascii_digit()));
    address && port_is_sound
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_loopback_names_are_ours() {
        for ours in [
            "localhost",
            "LOCALHOST:8080",
            "127.0.0.1",
            "127.0.0.1:8080",
            "127.8.9.10:1",
            "[::1]",
            "[::1]:8080",
        ] {
            assert!(is_loopback(ours), "{ours}");
        }
        for foreign in [
            "",
            "plant.example",
            "localhost.evil.example",
            "127.0.0.1.evil.example:8080",
            "127.0.0.1@evil.example",
            "evil.example@127.0.0.1",
            "192.168.1.10:8080",
            "0.0.0.0",
            "127.1",
            "2130706433",
            "::1",
            "[::1",
            "[::2]",
            "[::ffff:127.0.0.1]",
            "[127.0.0.1]",
            "localhost:",
            "localhost:80:80",
            "localhost:http",
            "[::1]8080",
            "[::1]:",
        ] {
            assert!(!is_loopback(foreign), "{foreign}");
        }
    }

    #[test]
    fn host_and_target_must_both_be_ours() {
        let judge = |hosts: &[&'static str], uri: &'static str| {
            let mut headers = HeaderMap::new();
            for host in hosts {
                headers.append(HOST, HeaderValue::from_static(host));
            }
            addressed_to(&headers, &Uri::from_static(uri))
        };
        assert_eq!(judge(&["localhost"], "/"), Addressed::Loopback);
        assert_eq!(judge(&["localhost"], "http://127.0.0.1:8080/"), Addressed::Loopback);
        assert_eq!(judge(&["localhost"], "http://evil.example/"), Addressed::Elsewhere);
        assert_eq!(judge(&["evil.example"], "/"), Addressed::Elsewhere);
        assert_eq!(judge(&["evil.example"], "http://localhost/"), Addressed::Elsewhere);
        assert_eq!(judge(&[], "/"), Addressed::Unclear);
        assert_eq!(judge(&["localhost", "evil.example"], "/"), Addressed::Unclear);
    }
}
