//! The table of routes.
//!
//! Promise: on TCP only reading, and only what tells nothing secret, until there is
//! authentication; the control socket has the same routes and those that change something. An
//! unknown path is 404, a known one with another method 405, both as problem+json.
//! Does not know: sockets and connections (`serve`), limits of a request (`guard`).

use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::rejection::JsonRejection;
use axum::extract::{DefaultBodyLimit, Query, State};
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post, put};
use axum::{Json, Router, middleware};
use serde::{Deserialize, Serialize};

use crate::console::{
    ApplyOutcome, Console, Control, LogLevels, LogLevelsWanted, Readiness, Status,
};
use crate::guard::RequestLimits;
use crate::problem::Problem;
use crate::store::Keeper;
use crate::streams::Streams;
use crate::{exposition, guard, keeping, metrics, streams as floor};

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
    with_headers(
        guarded(reading(console), guard::REQUEST).layer(middleware::from_fn(guard::loopback_host)),
    )
}

/// The routes of the control socket: those of [`router`], and those that change something or tell
/// what is stored: `POST /api/v1/shutdown`, `POST /api/v1/config/apply`, `GET` and `PUT
/// /api/v1/logs/levels`, below `/api/v1/store` and `/api/v1/sinks` what may be done to the store, and
/// `/api/v1/tap`, `/api/v1/preview` and `/api/v1/streams`.
///
/// The socket's file mode decides who may connect, so the Host header is not judged here.
pub fn control_router(
    console: Arc<dyn Console>,
    control: Arc<dyn Control>,
    keeper: Arc<dyn Keeper>,
    streams: Arc<dyn Streams>,
) -> Router {
    let levels = get(log_levels).merge(put(set_log_levels));
    let changing = Router::new()
        .route("/api/v1/shutdown", post(shutdown))
        .route("/api/v1/logs/levels", levels)
        .with_state(control.clone());
    let apply = Router::new().route("/api/v1/config/apply", post(apply)).with_state(control);
    // Its own limits, and outside those of the others: the inner of two limits would win.
    let apply = limited(apply, guard::CONFIGURATION);
    let slow = limited(keeping::slow(keeper.clone()), guard::MAINTENANCE);
    let keeping = limited(keeping::changing(keeper.clone()), guard::STORE_CHANGE);
    let trying = limited(floor::slow(streams.clone()), guard::STREAMS);
    let quick =
        reading(console).merge(changing).merge(keeping::quick(keeper)).merge(floor::quick(streams));
    let limited = apply.merge(slow).merge(keeping).merge(trying);
    with_headers(guarded(quick, guard::REQUEST).merge(limited))
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
fn guarded(routes: Router, limits: RequestLimits) -> Router {
    limited(routes.fallback(no_route), limits)
}

fn limited(routes: Router, limits: RequestLimits) -> Router {
    routes
        .method_not_allowed_fallback(no_method)
        .layer(middleware::from_fn_with_state(limits, guard::limits))
        .layer(DefaultBodyLimit::max(limits.body_max))
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

/// What the text of a configuration is called.
#[derive(Deserialize)]
struct Named {
    #[serde(default = "posted")]
    name: String,
}

fn posted() -> String {
    "configuration".to_owned()
}

async fn apply(
    State(control): State<Arc<dyn Control>>,
    Query(Named { name }): Query<Named>,
    text: Bytes,
) -> Response {
    let Ok(text) = String::from_utf8(text.into()) else {
        let detail = "a configuration is UTF-8";
        return Problem::new(StatusCode::UNPROCESSABLE_ENTITY, "config_refused", detail)
            .into_response();
    };
    let applied = control.apply(name, text).await;
    let (status, code) = match applied.outcome {
        ApplyOutcome::Applied | ApplyOutcome::Unchanged => {
            return Json(applied).into_response();
        }
        ApplyOutcome::Refused => (StatusCode::UNPROCESSABLE_ENTITY, "config_refused"),
        ApplyOutcome::NotNow => (StatusCode::CONFLICT, "config_not_now"),
        ApplyOutcome::RolledBack => (StatusCode::CONFLICT, "config_rolled_back"),
    };
    Problem::new(status, code, applied.detail.clone()).applied(applied).into_response()
}

async fn log_levels(State(control): State<Arc<dyn Control>>) -> Json<LogLevels> {
    Json(control.log_levels())
}

async fn set_log_levels(
    State(control): State<Arc<dyn Control>>,
    wanted: Result<Json<LogLevelsWanted>, JsonRejection>,
) -> Response {
    let set = match wanted {
        Ok(Json(wanted)) => control.set_log_levels(&wanted),
        Err(rejection) => Err(rejection.body_text()),
    };
    match set {
        Ok(levels) => Json(levels).into_response(),
        Err(reason) => Problem::new(StatusCode::UNPROCESSABLE_ENTITY, "log_levels_refused", reason)
            .hint("such as {\"levels\": \"info,tidegate_drivers=debug\", \"for_s\": 900}")
            .into_response(),
    }
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
