//! The routes about streams: what they ask for, what they answer, and who may ask.

use std::sync::{Arc, Mutex};

use axum::body::{Body, Bytes};
use axum::http::{Method, Request, StatusCode};
use serde_json::json;
use tidegate_web_ui::{
    Answer, Declined, Lines, PreviewWanted, StreamSet, StreamVerb, Streams, TapWanted,
    control_router, router,
};

use crate::keeping::Shelf;
use crate::plant::Plant;
use crate::routes::{self, ask};

/// One stream, `energy`, that exists only as answers; notes what it was asked.
#[derive(Default)]
pub(crate) struct Floor(Mutex<Vec<String>>);

pub(crate) fn floor() -> Arc<Floor> {
    Arc::default()
}

impl Floor {
    fn known<T>(&self, name: &str, asked: String, answer: T) -> Result<T, Declined> {
        self.0.lock().unwrap().push(asked);
        match name {
            "energy" => Ok(answer),
            "busy" => Err(Declined::NotNow("a change is under way".into())),
            "bad" => Err(Declined::Refused("no field named vv".into())),
            _ => Err(Declined::Unknown(format!("there is no stream {name}"))),
        }
    }
}

fn two_lines() -> Lines {
    let pieces = ["{\"n\":1}\n{\"n\":2}\n", "{\"_lost\":3}\n"];
    Box::pin(futures::stream::iter(pieces.map(|piece| Bytes::from_static(piece.as_bytes()))))
}

impl Streams for Floor {
    fn tap(&self, name: &str, wanted: TapWanted) -> Result<Lines, Declined> {
        self.known(name, format!("tap {name} {:?} {:?}", wanted.count, wanted.for_ms), two_lines())
    }

    fn preview(&self, wanted: PreviewWanted) -> Answer<Result<Lines, Declined>> {
        let name = wanted.stream.unwrap_or_default();
        let asked = format!("preview {name} {:?} {}", wanted.rows, wanted.for_ms);
        Box::pin(std::future::ready(self.known(&name, asked, two_lines())))
    }

    fn set(&self, name: String, verb: StreamVerb) -> Answer<Result<StreamSet, Declined>> {
        let set = StreamSet { detail: "done".into() };
        Box::pin(std::future::ready(self.known(&name, format!("{verb:?} {name}"), set)))
    }
}

async fn send(router: &axum::Router, method: Method, path: &str, body: &str) -> routes::Answer {
    let request = Request::builder().method(method).uri(path).header("host", "localhost");
    let request = request.header("content-type", "application/json");
    ask(router, request.body(Body::from(body.to_owned())).unwrap()).await
}

#[tokio::test]
async fn streams_are_looked_at_and_changed_over_the_control_socket_only() {
    let (plant, floor) = (Arc::new(Plant::new(Vec::new())), floor());
    let control = control_router(
        Arc::clone(&plant) as _,
        plant,
        Arc::<Shelf>::default(),
        Arc::clone(&floor) as _,
    );
    let tcp = router(Arc::new(Plant::new(Vec::new())));
    let cases = [
        (Method::GET, "/api/v1/tap/energy?count=2&for_ms=500", "", "tap energy Some(2) Some(500)"),
        (Method::GET, "/api/v1/tap/energy", "", "tap energy None None"),
        (
            Method::POST,
            "/api/v1/preview",
            r#"{"stream": "energy", "rows": 5}"#,
            "preview energy Some(5) 0",
        ),
        (Method::POST, "/api/v1/streams/energy/stop", "", "Stop energy"),
        (Method::POST, "/api/v1/streams/energy/start", "", "Start energy"),
        (Method::POST, "/api/v1/streams/energy/restart", "", "Restart energy"),
    ];
    for (method, path, body, asked) in cases {
        send(&tcp, method.clone(), path, body).await.assert_problem(404, "no_such_route");
        let answer = send(&control, method, path, body).await;
        assert_eq!(answer.status, StatusCode::OK, "{path}");
        assert_eq!(floor.0.lock().unwrap().last().unwrap(), asked);
        if path.contains("/streams/") {
            assert_eq!(answer.json(), json!({ "detail": "done" }));
        } else {
            assert_eq!(answer.header("content-type"), "application/x-ndjson");
            assert_eq!(&answer.body[..], b"{\"n\":1}\n{\"n\":2}\n{\"_lost\":3}\n");
        }
    }
    for (method, path, body, status, code) in [
        (Method::GET, "/api/v1/tap/nobody", "", 404, "no_such_part"),
        (Method::POST, "/api/v1/streams/nobody/stop", "", 404, "no_such_part"),
        (Method::POST, "/api/v1/streams/busy/stop", "", 409, "not_now"),
        (Method::POST, "/api/v1/preview", r#"{"stream": "bad"}"#, 422, "preview_refused"),
        (Method::POST, "/api/v1/preview", r#"{"sql": "SELECT 1"}"#, 422, "body_refused"),
        (Method::GET, "/api/v1/streams/energy/stop", "", 405, "method_not_allowed"),
    ] {
        send(&control, method, path, body).await.assert_problem(status, code);
    }
    let long = format!(r#"{{"stream": "{}"}}"#, "x".repeat(256 * 1024));
    let answer = send(&control, Method::POST, "/api/v1/preview", &long).await;
    answer.assert_problem(413, "body_too_large");
}
