//! The routes of the control socket about the store and what waits in it.
//!
//! Promise: what a person may do to the store without a gateway can be done beside a running one,
//! with the same answers. A name that the store does not know is 404, what cannot be done now 409.
//! Does not know: the store.

use std::sync::Arc;

use axum::extract::rejection::JsonRejection;
use axum::extract::{Path, Query, State};
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderName, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post, put};
use axum::{Json, Router};
use serde::{Deserialize, Serialize};

use crate::problem::Problem;
use crate::store::{Exportable, Exported, Keeper, Kept, Letters, Refusal, ReplayRate};

/// Tells where the next part of an export begins.
pub const NEXT_HEADER: &str = "x-tidegate-next";

/// Dead letters that are told of where nobody says how many.
const LETTERS_SHOWN: usize = 100;
/// Dead letters that are told of at once at most.
const LETTERS_MAX: usize = 10_000;

type Keeping = State<Arc<dyn Keeper>>;

/// Routes that answer as soon as the store does.
pub(crate) fn quick(keeper: Arc<dyn Keeper>) -> Router {
    Router::new()
        .route("/api/v1/store", get(contents))
        .route("/api/v1/store/export/tables/{name}", get(export_table))
        .route("/api/v1/store/export/sinks/{name}", get(export_sink))
        .route("/api/v1/sinks/{name}/rejected", get(rejected))
        .with_state(keeper)
}

/// Routes that answer once what they change is durable.
pub(crate) fn changing(keeper: Arc<dyn Keeper>) -> Router {
    Router::new()
        .route("/api/v1/store/forget/{name}", post(forget))
        .route("/api/v1/sinks/{name}/pause", post(pause))
        .route("/api/v1/sinks/{name}/resume", post(resume))
        .route("/api/v1/sinks/{name}/replay", put(replay))
        .route("/api/v1/sinks/{name}/rejected/redrive", post(redrive))
        .route("/api/v1/sinks/{name}/rejected/drop", post(discard))
        .with_state(keeper)
}

/// Routes that read or write the whole store.
pub(crate) fn slow(keeper: Arc<dyn Keeper>) -> Router {
    Router::new()
        .route("/api/v1/store/verify", post(verify))
        .route("/api/v1/store/compact", post(compact))
        .with_state(keeper)
}

/// Answers with what was asked for, or says why not.
async fn told<T: Serialize>(kept: Kept<T>) -> Response {
    match kept.await {
        Ok(told) => Json(told).into_response(),
        Err(refusal) => refused(&refusal),
    }
}

fn refused(refusal: &Refusal) -> Response {
    let (status, code) = match refusal {
        Refusal::Unknown(_) => (StatusCode::NOT_FOUND, "not_in_the_store"),
        Refusal::NotNow(_) => (StatusCode::CONFLICT, "store_not_now"),
    };
    Problem::new(status, code, refusal.detail()).into_response()
}

async fn contents(State(keeper): Keeping) -> Response {
    told(keeper.contents()).await
}

async fn verify(State(keeper): Keeping) -> Response {
    told(keeper.verify()).await
}

async fn compact(State(keeper): Keeping) -> Response {
    told(keeper.compact()).await
}

async fn forget(State(keeper): Keeping, Path(name): Path<String>) -> Response {
    told(keeper.forget(name)).await
}

/// Where a part of an export begins.
#[derive(Deserialize)]
struct From {
    #[serde(default)]
    from: u64,
}

async fn export_table(
    State(keeper): Keeping,
    Path(name): Path<String>,
    Query(From { from }): Query<From>,
) -> Response {
    exported(keeper.export(Exportable::Tables, name, from)).await
}

async fn export_sink(
    State(keeper): Keeping,
    Path(name): Path<String>,
    Query(From { from }): Query<From>,
) -> Response {
    exported(keeper.export(Exportable::Sinks, name, from)).await
}

async fn exported(part: Kept<Option<Exported>>) -> Response {
    match part.await {
        Ok(None) => StatusCode::NO_CONTENT.into_response(),
        Ok(Some(part)) => {
            let next = (HeaderName::from_static(NEXT_HEADER), part.next.to_string());
            let media = (CONTENT_TYPE, "application/vnd.apache.arrow.stream".to_owned());
            ([next, media], part.arrow).into_response()
        }
        Err(refusal) => refused(&refusal),
    }
}

async fn pause(State(keeper): Keeping, Path(sink): Path<String>) -> Response {
    told(keeper.pause(sink, true)).await
}

async fn resume(State(keeper): Keeping, Path(sink): Path<String>) -> Response {
    told(keeper.pause(sink, false)).await
}

/// What a body is told that is not what the route takes.
fn bad_body(detail: impl Into<String>, hint: &'static str) -> Response {
    let status = StatusCode::UNPROCESSABLE_ENTITY;
    Problem::new(status, "body_refused", detail).hint(hint).into_response()
}

async fn replay(
    State(keeper): Keeping,
    Path(sink): Path<String>,
    rate: Result<Json<ReplayRate>, JsonRejection>,
) -> Response {
    let hint = "such as {\"per_second\": 500}, or null for as many as the far side takes";
    let rate = match rate {
        Ok(Json(rate)) => rate,
        Err(rejection) => return bad_body(rejection.body_text(), hint),
    };
    if rate.per_second.is_some_and(|rate| !(rate > 0.0 && rate.is_finite())) {
        return bad_body("a rate is above zero", hint);
    }
    told(keeper.replay(sink, rate)).await
}

/// How many dead letters are told of.
#[derive(Deserialize)]
struct Limit {
    #[serde(default = "letters_shown")]
    limit: usize,
}

fn letters_shown() -> usize {
    LETTERS_SHOWN
}

async fn rejected(
    State(keeper): Keeping,
    Path(sink): Path<String>,
    Query(Limit { limit }): Query<Limit>,
) -> Response {
    told(keeper.rejected(sink, limit.min(LETTERS_MAX))).await
}

/// What a body that names dead letters looks like.
const LETTERS: &str = "such as {\"positions\": [17, 18]}; an empty list means all";

async fn redrive(
    State(keeper): Keeping,
    Path(sink): Path<String>,
    letters: Result<Json<Letters>, JsonRejection>,
) -> Response {
    match letters {
        Ok(Json(letters)) => told(keeper.redrive(sink, letters)).await,
        Err(rejection) => bad_body(rejection.body_text(), LETTERS),
    }
}

async fn discard(
    State(keeper): Keeping,
    Path(sink): Path<String>,
    letters: Result<Json<Letters>, JsonRejection>,
) -> Response {
    match letters {
        Ok(Json(letters)) => told(keeper.discard(sink, letters)).await,
        Err(rejection) => bad_body(rejection.body_text(), LETTERS),
    }
}
