//! Every route, and what is refused.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use axum::Router;
use axum::body::{Body, Bytes, to_bytes};
use axum::http::{HeaderMap, Method, Request, StatusCode};
use serde_json::{Value, json};
use tidegate_web_ui::{Reason, control_router, router};
use tower::ServiceExt;

use crate::keeping::Shelf;
use crate::plant::Plant;
use crate::streams::floor;

pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl Answer {
    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().unwrap())
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap()
    }

    /// Checks that the answer is the problem with this status and code.
    pub(crate) fn assert_problem(&self, status: u16, code: &str) {
        assert_eq!(self.status.as_u16(), status);
        assert_eq!(self.header("content-type"), "application/problem+json");
        let problem = self.json();
        assert_eq!(problem["status"], status);
        assert_eq!(problem["code"], code);
        assert_eq!(problem["type"], "about:blank");
        for member in ["title", "detail"] {
            assert!(problem[member].as_str().is_some_and(|text| !text.is_empty()), "{problem}");
        }
    }
}

pub(crate) async fn ask(router: &Router, request: Request<Body>) -> Answer {
    let response = router.clone().oneshot(request).await.unwrap();
    let (parts, body) = response.into_parts();
    let body = to_bytes(body, 1 << 20).await.unwrap();
    Answer { status: parts.status, headers: parts.headers, body }
}

fn request(method: Method, path: &str) -> Request<Body> {
    Request::builder()
        .method(method)
        .uri(path)
        .header("host", "127.0.0.1:8080")
        .body(Body::empty())
        .unwrap()
}

pub(crate) async fn get(router: &Router, path: &str) -> Answer {
    ask(router, request(Method::GET, path)).await
}

fn shelf() -> Arc<Shelf> {
    Arc::default()
}

fn tcp() -> Router {
    router(Arc::new(Plant::new(Vec::new())))
}

#[tokio::test]
async fn the_process_answers_that_it_is_alive() {
    let answer = get(&tcp(), "/healthz").await;
    assert_eq!((answer.status, &answer.body[..]), (StatusCode::OK, &b"ok\n"[..]));
}

#[tokio::test]
async fn the_root_tells_where_to_look() {
    let answer = get(&tcp(), "/").await;
    assert_eq!(answer.status, StatusCode::OK);
    assert_eq!(answer.header("content-type"), "text/plain; charset=utf-8");
    let text = String::from_utf8(answer.body.to_vec()).unwrap();
    for path in ["/healthz", "/readyz", "/metrics", "/api/v1/status"] {
        assert!(text.contains(path), "{path} is missing in:\n{text}");
        assert_eq!(get(&tcp(), path).await.status, StatusCode::OK, "{path}");
    }
}

#[tokio::test]
async fn readiness_follows_the_streams_and_names_what_is_in_the_way() {
    let plant = Arc::new(Plant::new(Vec::new()));
    let router = router(Arc::clone(&plant) as _);
    let answer = get(&router, "/readyz").await;
    assert_eq!((answer.status, answer.json()), (StatusCode::OK, json!({ "ready": true })));

    plant.readiness.lock().unwrap().reasons =
        vec![Reason { part: "stream energy_10s".into(), reason: "failed: no memory".into() }];
    let answer = get(&router, "/readyz").await;
    answer.assert_problem(503, "not_ready");
    assert_eq!(
        answer.json()["reasons"],
        json!([{ "part": "stream energy_10s", "reason": "failed: no memory" }])
    );
    // Health is about the process: a stream that failed does not make somebody kill it.
    assert_eq!(get(&router, "/healthz").await.status, StatusCode::OK);
}

#[tokio::test]
async fn status_is_the_tree_of_the_running_parts() {
    let answer = get(&tcp(), "/api/v1/status").await;
    assert_eq!(answer.status, StatusCode::OK);
    assert_eq!(answer.header("content-type"), "application/json");
    let status = answer.json();
    assert_eq!(status["gateway"]["epoch"], 3);
    assert_eq!(status["gateway"]["started"], "2026-11-02T07:00:00.000000Z");
    assert_eq!(status["devices"][0]["state"], "down");
    assert_eq!(status["devices"][0]["rows"], json!({ "good": 118, "uncertain": 1, "bad": 1 }));
    assert_eq!(status["devices"][0]["learnt_holes"], json!(["input 40..44"]));
    assert_eq!(status["streams"][0]["window"], "tumbling 10s");
    assert_eq!(status["sinks"][0]["oldest_age_s"], Value::Null);
    assert_eq!(status["sinks"][0]["dropped"], json!({ "max_bytes": 3 }));
    assert_eq!(status["store"]["queue_capacity"], 256);
    assert_eq!(
        status["ledger"]["sources"][0],
        json!({ "device": "main_meter", "read": 121, "accepted": 120, "refused": { "future": 1 } })
    );
    assert_eq!(status["config_problems"][0]["code"], "E0203");
    assert_eq!(status["config"]["revision"], "c0ffee");
    assert_eq!(status["config"]["origin"], "file");
}

#[tokio::test]
async fn what_no_route_takes_is_a_problem() {
    get(&tcp(), "/nothing").await.assert_problem(404, "no_such_route");
    get(&tcp(), "/api/v1/status/").await.assert_problem(404, "no_such_route");
    get(&tcp(), "/../etc/passwd").await.assert_problem(404, "no_such_route");

    for method in [Method::POST, Method::PUT, Method::DELETE, Method::OPTIONS, Method::TRACE] {
        let answer = ask(&tcp(), request(method, "/api/v1/status")).await;
        answer.assert_problem(405, "method_not_allowed");
        assert_eq!(answer.header("allow"), "GET,HEAD");
    }
}

#[tokio::test]
async fn head_is_get_without_the_body() {
    let answer = ask(&tcp(), request(Method::HEAD, "/metrics")).await;
    assert_eq!(answer.status, StatusCode::OK);
    assert!(answer.body.is_empty());
    assert_eq!(answer.header("content-type"), "text/plain; version=0.0.4; charset=utf-8");
}

#[tokio::test]
async fn every_answer_carries_the_security_headers() {
    let foreign = Request::builder().uri("/").header("host", "evil.example");
    let large = Request::builder().uri("/").header("host", "localhost");
    let answers = [
        get(&tcp(), "/").await,
        get(&tcp(), "/api/v1/status").await,
        get(&tcp(), "/nothing").await,
        ask(&tcp(), request(Method::POST, "/metrics")).await,
        ask(&tcp(), foreign.body(Body::empty()).unwrap()).await,
        ask(&tcp(), large.body(Body::from(vec![b'x'; 16 * 1024 + 1])).unwrap()).await,
    ];
    assert_eq!(
        answers.each_ref().map(|answer| answer.status.as_u16()),
        [200, 200, 404, 405, 421, 413]
    );
    for answer in &answers {
        assert_eq!(answer.header("x-content-type-options"), "nosniff");
        assert!(answer.header("content-security-policy").starts_with("default-src 'none';"));
        assert!(answer.header("content-security-policy").contains("frame-ancestors 'none'"));
        assert_eq!(answer.header("x-frame-options"), "DENY");
        assert_eq!(answer.header("cache-control"), "no-store");
        assert_eq!(answer.header("access-control-allow-origin"), "");
    }
}

/// DNS rebinding: a page of evil.example resolves its own name to 127.0.0.1 and asks us.
#[tokio::test]
async fn a_foreign_host_name_is_refused_before_any_route() {
    let with_host = |host: &str| {
        Request::builder().uri("/api/v1/status").header("host", host).body(Body::empty()).unwrap()
    };
    let answer = ask(&tcp(), with_host("evil.example:8080")).await;
    answer.assert_problem(421, "host_not_allowed");
    let missing = Request::builder().uri("/api/v1/status").body(Body::empty()).unwrap();
    ask(&tcp(), missing).await.assert_problem(400, "host_missing");
    assert_eq!(ask(&tcp(), with_host("[::1]:8080")).await.status, StatusCode::OK);
}

#[tokio::test]
async fn a_body_of_16_kib_is_the_most_that_is_read() {
    let post = |body: Body| {
        Request::builder()
            .method(Method::POST)
            .uri("/api/v1/shutdown")
            .header("host", "localhost")
            .body(body)
            .unwrap()
    };
    let plant = Arc::new(Plant::new(Vec::new()));
    let control =
        control_router(Arc::clone(&plant) as _, Arc::clone(&plant) as _, shelf(), floor());
    let answer = ask(&control, post(Body::from(vec![b'x'; 16 * 1024 + 1]))).await;
    answer.assert_problem(413, "body_too_large");
    assert_eq!(plant.stops.load(Ordering::SeqCst), 0);
    let answer = ask(&control, post(Body::from(vec![b'x'; 16 * 1024]))).await;
    assert_eq!(answer.status, StatusCode::ACCEPTED);
}

#[tokio::test]
async fn stopping_is_on_the_control_socket_only() {
    let stop = || request(Method::POST, "/api/v1/shutdown");
    ask(&tcp(), stop()).await.assert_problem(404, "no_such_route");

    let plant = Arc::new(Plant::new(Vec::new()));
    let control =
        control_router(Arc::clone(&plant) as _, Arc::clone(&plant) as _, shelf(), floor());
    get(&control, "/api/v1/shutdown").await.assert_problem(405, "method_not_allowed");
    assert_eq!(plant.stops.load(Ordering::SeqCst), 0);
    let answer = ask(&control, stop()).await;
    assert_eq!(answer.status, StatusCode::ACCEPTED);
    assert_eq!(answer.json(), json!({ "stopping": true }));
    assert_eq!(plant.stops.load(Ordering::SeqCst), 1);

    // The socket's mode decides who may connect: its clients need no Host of ours.
    let status = Request::builder().uri("/api/v1/status").header("host", "tidegate");
    let answer = ask(&control, status.body(Body::empty()).unwrap()).await;
    assert_eq!(answer.status, StatusCode::OK);
}

#[tokio::test]
async fn a_configuration_is_applied_over_the_control_socket_only() {
    let post = |length: usize| {
        Request::builder()
            .method(Method::POST)
            .uri("/api/v1/config/apply?name=new%20one.yaml")
            .header("host", "localhost")
            .body(Body::from(vec![b'a'; length]))
            .unwrap()
    };
    ask(&tcp(), post(1)).await.assert_problem(404, "no_such_route");

    let plant = Arc::new(Plant::new(Vec::new()));
    let control = control_router(Arc::clone(&plant) as _, plant, shelf(), floor());
    for (length, outcome) in [(0, "unchanged"), (99, "applied")] {
        let answer = ask(&control, post(length)).await;
        assert_eq!(answer.status, StatusCode::OK);
        assert_eq!(answer.json()["outcome"], outcome);
        assert_eq!(answer.json()["detail"], format!("new one.yaml: {length} bytes"));
    }
    // Larger than any other body may be.
    for (length, status, code, outcome) in [
        (999, 422, "config_refused", "refused"),
        (9_999, 409, "config_not_now", "not_now"),
        (100_000, 409, "config_rolled_back", "rolled_back"),
    ] {
        let answer = ask(&control, post(length)).await;
        answer.assert_problem(status, code);
        assert_eq!(answer.json()["applied"]["outcome"], outcome);
    }
    ask(&control, post((16 << 20) + 1)).await.assert_problem(413, "body_too_large");
    let binary = Request::builder().method(Method::POST).uri("/api/v1/config/apply");
    let answer = ask(&control, binary.body(Body::from(vec![0xff])).unwrap()).await;
    answer.assert_problem(422, "config_refused");
    get(&control, "/api/v1/config/apply").await.assert_problem(405, "method_not_allowed");
}

#[tokio::test]
async fn log_levels_are_shown_and_set_over_the_control_socket_only() {
    const PATH: &str = "/api/v1/logs/levels";
    get(&tcp(), PATH).await.assert_problem(404, "no_such_route");

    let plant = Arc::new(Plant::new(Vec::new()));
    let control = control_router(Arc::clone(&plant) as _, plant, shelf(), floor());
    assert_eq!(get(&control, PATH).await.json(), json!({ "levels": "info", "resets_in_s": null }));
    let put = |body: &'static str| {
        let request = Request::builder().method(Method::PUT).uri(PATH);
        request.header("content-type", "application/json").body(Body::from(body)).unwrap()
    };
    let answer = ask(&control, put(r#"{"levels": "debug", "for_s": 60}"#)).await;
    assert_eq!(answer.json(), json!({ "levels": "debug", "resets_in_s": 60 }));
    for body in [r#"{"levels": "!", "for_s": 60}"#, r#"{"levels": "debug"}"#, "debug"] {
        ask(&control, put(body)).await.assert_problem(422, "log_levels_refused");
    }
}
