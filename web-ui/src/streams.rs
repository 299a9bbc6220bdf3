//! The routes of the control socket about streams: looking at their rows as they come, trying SQL,
//! stopping them and starting them.
//!
//! Promise: what is looked at is not held up: who reads slowly loses rows, is told how many, and is
//! cut off where it reads nothing. Does not know: tables, SQL, the engine.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::rejection::JsonRejection;
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use futures::{Stream, StreamExt};
use serde::{Deserialize, Serialize};

use crate::console::Answer;
use crate::problem::Problem;

/// What may be asked of streams and tables.
pub trait Streams: Send + Sync + 'static {
    /// The rows of a table, or the results of a stream, from now on.
    fn tap(&self, name: &str, wanted: TapWanted) -> Result<Lines, Declined>;

    /// What SQL gives over the rows that tables still have, and over new ones for a while. Nothing
    /// is written. Dropping the answer ends it.
    fn preview(&self, wanted: PreviewWanted) -> Answer<Result<Lines, Declined>>;

    /// Stops a stream, or starts it; durable. Dropping the future changes nothing: what was begun
    /// is brought to its end.
    fn set(&self, name: String, verb: StreamVerb) -> Answer<Result<StreamSet, Declined>>;
}

/// Lines of JSON, each with its line end, in pieces of one or more.
pub type Lines = Pin<Box<dyn Stream<Item = Bytes> + Send>>;

/// How much of a tap is wanted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TapWanted {
    /// Rows at most.
    pub count: Option<u64>,
    /// Milliseconds at most.
    pub for_ms: Option<u64>,
}

/// What SQL is to be tried.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PreviewWanted {
    /// A stream of the running configuration, by its name.
    pub stream: Option<String>,
    /// A stream as it would stand in a configuration, in place of that.
    pub section: Option<serde_json::Value>,
    /// Results at most.
    pub rows: Option<u64>,
    /// Only rows of the last so many milliseconds.
    pub last_ms: Option<u64>,
    /// For so many milliseconds new rows are taken as well.
    pub for_ms: u64,
}

/// What is done to a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StreamVerb {
    /// It runs again, from where it was.
    Start,
    /// It runs no more, also after a restart of the gateway.
    Stop,
    /// It is built anew from the store.
    Restart,
}

/// What became of a stream.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StreamSet {
    /// In words.
    pub detail: String,
}

/// Why something is not done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Declined {
    /// There is no such stream or table.
    Unknown(String),
    /// It cannot be done now.
    NotNow(String),
    /// What is asked for is wrong, such as SQL that cannot be planned.
    Refused(String),
}

type Floor = State<Arc<dyn Streams>>;

/// Routes whose answers begin at once.
pub(crate) fn quick(streams: Arc<dyn Streams>) -> Router {
    Router::new().route("/api/v1/tap/{name}", get(tap)).with_state(streams)
}

/// Routes that compute, or wait for others, before they answer.
pub(crate) fn slow(streams: Arc<dyn Streams>) -> Router {
    Router::new()
        .route("/api/v1/preview", post(preview))
        .route("/api/v1/streams/{name}/start", post(start))
        .route("/api/v1/streams/{name}/stop", post(stop))
        .route("/api/v1/streams/{name}/restart", post(restart))
        .with_state(streams)
}

fn declined(declined: Declined) -> Response {
    let (status, code, detail) = match declined {
        Declined::Unknown(detail) => (StatusCode::NOT_FOUND, "no_such_part", detail),
        Declined::NotNow(detail) => (StatusCode::CONFLICT, "not_now", detail),
        Declined::Refused(detail) => (StatusCode::UNPROCESSABLE_ENTITY, "preview_refused", detail),
    };
    Problem::new(status, code, detail).into_response()
}

fn lines(lines: Result<Lines, Declined>) -> Response {
    match lines {
        Ok(lines) => {
            let body = Body::from_stream(lines.map(Ok::<_, Infallible>));
            ([(CONTENT_TYPE, "application/x-ndjson")], body).into_response()
        }
        Err(reason) => declined(reason),
    }
}

async fn tap(
    State(streams): Floor,
    Path(name): Path<String>,
    Query(wanted): Query<TapWanted>,
) -> Response {
    lines(streams.tap(&name, wanted))
}

async fn preview(
    State(streams): Floor,
    wanted: Result<Json<PreviewWanted>, JsonRejection>,
) -> Response {
    match wanted {
        Ok(Json(wanted)) => lines(streams.preview(wanted).await),
        Err(rejection) => {
            let status = StatusCode::UNPROCESSABLE_ENTITY;
            let hint =
                "such as {\"section\": {\"name\": \"p\", \"from\": [\"t\"], \"sql\": \"…\"}}";
            Problem::new(status, "body_refused", rejection.body_text()).hint(hint).into_response()
        }
    }
}

async fn set(streams: Arc<dyn Streams>, name: String, verb: StreamVerb) -> Response {
    match streams.set(name, verb).await {
        Ok(set) => Json(set).into_response(),
        Err(reason) => declined(reason),
    }
}

async fn start(State(streams): Floor, Path(name): Path<String>) -> Response {
    set(streams, name, StreamVerb::Start).await
}

async fn stop(State(streams): Floor, Path(name): Path<String>) -> Response {
    set(streams, name, StreamVerb::Stop).await
}

async fn restart(State(streams): Floor, Path(name): Path<String>) -> Response {
    set(streams, name, StreamVerb::Restart).await
}

impl TapWanted {
    /// How long it is wanted, where somebody says.
    pub fn lasting(self) -> Option<Duration> {
        self.for_ms.map(Duration::from_millis)
    }
}
