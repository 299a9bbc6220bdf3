//! The table of routes.
//!
//! Promise: on TCP only reading, and only what tells nothing secret, until there is
//! authentication; the control socket has the same routes and those that change something. An
//! unknown path is 404, a known one with another method 405, both as problem+json.
//! Does not know: sockets and connections (`serve`), limits of a request (`guard`).

use std::sync::Arc;

use axum::extract::{DefaultBodyLimit, State};
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router, middleware};
use serde::Serialize;

use crate::console::{Console, Control, Readiness, Status};
use crate::problem::Problem;
use crate::{exposition, guard, metrics};

/// What `/` says until there is a page.
const WHERE_TO_LOOK: &str = "\
Tidegate

GET /healthz        the process is alive
GET /readyz         the streams do their work; 503 with reasons where not
GET /metrics        counters and gauges for Prometheus
GET /api/v1/status  all parts as JSON
";

/// The routes of the TCP listener: reading only, for loopback names only.
pub fn router(console: Arc<dyn Console>) -> Router {
    with_headers(guarded(reading(console)).layer(middleware::from_fn(guard::loopback_host)))
}

/// The routes of the control socket: those of [`router`] and `POST /api/v1/shutdown`.
///
/// The socket's file mode decides who may connect, so the Host header is not judged here.
pub fn control_router(console: Arc<dyn Console>, control: Arc<dyn Control>) -> Router {
    let changing = Router::new().route("/api/v1/shutdown", post(shutdown)).with_state(control);
    with_headers(guarded(reading(console).merge(changing)))
}

fn reading(console: Arc<dyn Console>) -> Router {
    Router::new()
        .route("/", get(async || WHERE_TO_LOOK))
        .route("/healthz", get(async || "ok\n"))
        .route("/readyz", get(ready))
        .route("/metrics", get(render_metrics))
        .route("/api/v1/status", get(status))
        .with_state(console)
}

/// Adds the answers for what no route takes, and the limits of a request.
fn guarded(routes: Router) -> Router {
    routes
        .fallback(no_route)
        .method_not_allowed_fallback(no_method)
        .layer(middleware::from_fn(guard::limits))
        .layer(DefaultBodyLimit::max(guard::BODY_MAX))
}

/// The outermost layer, so that refusals of the other layers carry the headers as well.
fn with_headers(routes: Router) -> Router {
    routes.layer(middleware::from_fn(guard::answer_headers))
}

async fn ready(State(console): State<Arc<dyn Console>>) -> Response {
    let Readiness { reasons } = console.ready();
    if reasons.is_empty() {
        return Json(Ready { ready: true }).into_response();
    }
    Problem::new(
        StatusCode::SERVICE_UNAVAILABLE,
        "not_ready",
        format!("{} part(s) keep the gateway from being ready", reasons.len()),
    )
    .reasons(reasons)
    .into_response()
}

#[derive(Serialize)]
struct Ready {
    ready: bool,
}

async fn render_metrics(State(console): State<Arc<dyn Console>>) -> Response {
    let text = metrics::render(&console.status(), &console.ready());
    ([(CONTENT_TYPE, exposition::CONTENT_TYPE)], text).into_response()
}

async fn status(State(console): State<Arc<dyn Console>>) -> Json<Status> {
    Json(console.status())
}

async fn shutdown(State(control): State<Arc<dyn Control>>) -> Response {
    control.stop();
    (StatusCode::ACCEPTED, Json(Stopping { stopping: true })).into_response()
}

#[derive(Serialize)]
struct Stopping {
    stopping: bool,
}

async fn no_route() -> Problem {
    Problem::new(StatusCode::NOT_FOUND, "no_such_route", "nothing is served at this path")
        .hint("`GET /` lists what is")
}

async fn no_method() -> Problem {
    Problem::new(
        StatusCode::METHOD_NOT_ALLOWED,
        "method_not_allowed",
        "the path is known, but not with this method",
    )
    .hint("the Allow header lists the methods of this path")
}
