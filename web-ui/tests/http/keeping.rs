//! The routes about the store: what they ask for, what they answer, and who may ask.

use std::sync::{Arc, Mutex};

use axum::body::Body;
use axum::http::{Method, Request, StatusCode};
use serde_json::{Value, json};
use tidegate_web_ui::{
    Exportable, Exported, Keeper, Kept, Letters, NEXT_HEADER, Records, Refusal, RejectedRecord,
    ReplayRate, StoreCompacted, StoreContents, StoreVerified, TableContents, control_router,
    router,
};

use crate::plant::Plant;
use crate::routes::{Answer, ask, get};

/// A store that exists only as answers, and notes what it was asked. It knows one sink and one table,
/// of ten rows.
#[derive(Default)]
pub(crate) struct Shelf {
    asked: Mutex<Vec<String>>,
}

impl Shelf {
    fn note(&self, asked: impl Into<String>) {
        self.asked.lock().unwrap().push(asked.into());
    }

    fn known<T: Send + 'static>(name: &str, told: T) -> Kept<T> {
        let told = match name {
            "cloud" | "meters" => Ok(told),
            _ => Err(Refusal::Unknown(format!("the store knows no {name}"))),
        };
        Box::pin(std::future::ready(told))
    }
}

impl Keeper for Shelf {
    fn contents(&self) -> Kept<StoreContents> {
        let table = TableContents { name: "meters".into(), end: 10, ..TableContents::default() };
        let contents = StoreContents { epoch: 3, tables: vec![table], ..StoreContents::default() };
        Self::known("cloud", contents)
    }

    fn verify(&self) -> Kept<StoreVerified> {
        Self::known("cloud", StoreVerified { rows: 10, corrupt_records: 1, corrupt_rows: 2 })
    }

    fn compact(&self) -> Kept<StoreCompacted> {
        let refusal = Refusal::NotNow("the disk is full".into());
        Box::pin(std::future::ready(Err(refusal)))
    }

    fn forget(&self, name: String) -> Kept<Records> {
        self.note(format!("forget {name}"));
        Self::known(&name, Records { records: 7 })
    }

    fn export(&self, what: Exportable, name: String, from: u64) -> Kept<Option<Exported>> {
        self.note(format!("export {} {name} {from}", what.name()));
        let part = (from < 10).then(|| Exported { next: 10, arrow: vec![1, 2, 3] });
        Self::known(&name, part)
    }

    fn pause(&self, sink: String, paused: bool) -> Kept<()> {
        self.note(format!("pause {sink} {paused}"));
        Self::known(&sink, ())
    }

    fn replay(&self, sink: String, rate: ReplayRate) -> Kept<()> {
        self.note(format!("replay {sink} {:?}", rate.per_second));
        Self::known(&sink, ())
    }

    fn rejected(&self, sink: String, limit: usize) -> Kept<Vec<RejectedRecord>> {
        self.note(format!("rejected {sink} {limit}"));
        Self::known(&sink, vec![RejectedRecord { position: 17, ..RejectedRecord::default() }])
    }

    fn redrive(&self, sink: String, letters: Letters) -> Kept<Records> {
        self.note(format!("redrive {sink} {:?}", letters.positions));
        Self::known(&sink, Records { records: 2 })
    }

    fn discard(&self, sink: String, letters: Letters) -> Kept<Records> {
        self.note(format!("discard {sink} {:?}", letters.positions));
        Self::known(&sink, Records { records: 1 })
    }
}

async fn send(router: &axum::Router, method: Method, path: &str, body: &str) -> Answer {
    let request = Request::builder().method(method).uri(path).header("host", "localhost");
    let request = request.header("content-type", "application/json");
    ask(router, request.body(Body::from(body.to_owned())).unwrap()).await
}

fn control(shelf: &Arc<Shelf>) -> axum::Router {
    let plant = Arc::new(Plant::new(Vec::new()));
    control_router(Arc::clone(&plant) as _, plant, Arc::clone(shelf) as _)
}

#[tokio::test]
async fn what_may_be_done_to_the_store_is_done_over_the_control_socket_only() {
    let shelf = Arc::new(Shelf::default());
    let control = control(&shelf);
    let tcp = router(Arc::new(Plant::new(Vec::new())));
    let cases = [
        (Method::GET, "/api/v1/store", "", ""),
        (Method::POST, "/api/v1/store/verify", "", ""),
        (Method::POST, "/api/v1/store/forget/meters", "", "forget meters"),
        (Method::POST, "/api/v1/sinks/cloud/pause", "", "pause cloud true"),
        (Method::POST, "/api/v1/sinks/cloud/resume", "", "pause cloud false"),
        (
            Method::PUT,
            "/api/v1/sinks/cloud/replay",
            r#"{"per_second": 0.5}"#,
            "replay cloud Some(0.5)",
        ),
        (Method::PUT, "/api/v1/sinks/cloud/replay", r#"{"per_second": null}"#, "replay cloud None"),
        (Method::GET, "/api/v1/sinks/cloud/rejected", "", "rejected cloud 100"),
        (Method::GET, "/api/v1/sinks/cloud/rejected?limit=99999999", "", "rejected cloud 10000"),
        (
            Method::POST,
            "/api/v1/sinks/cloud/rejected/redrive",
            r#"{"positions": [17, 18]}"#,
            "redrive cloud [17, 18]",
        ),
        (
            Method::POST,
            "/api/v1/sinks/cloud/rejected/drop",
            r#"{"positions": []}"#,
            "discard cloud []",
        ),
        (Method::GET, "/api/v1/store/export/tables/meters?from=3", "", "export tables meters 3"),
        (Method::GET, "/api/v1/store/export/sinks/cloud", "", "export sinks cloud 0"),
    ];
    for (method, path, body, asked) in cases {
        send(&tcp, method.clone(), path, body).await.assert_problem(404, "no_such_route");
        let answer = send(&control, method, path, body).await;
        assert_eq!(answer.status, StatusCode::OK, "{path}");
        let last = std::mem::take(&mut *shelf.asked.lock().unwrap());
        let expected: Vec<_> = [asked].into_iter().filter(|asked| !asked.is_empty()).collect();
        assert_eq!(last, expected, "{path}");
    }
}

#[tokio::test]
async fn answers_are_what_the_store_says() {
    let control = control(&Arc::default());
    let contents = get(&control, "/api/v1/store").await.json();
    assert_eq!(contents["epoch"], 3);
    assert_eq!(contents["tables"][0]["end"], 10);
    assert_eq!(contents["tables"][0]["claimed"], Value::Null);
    let verified = send(&control, Method::POST, "/api/v1/store/verify", "").await.json();
    assert_eq!(verified, json!({ "rows": 10, "corrupt_records": 1, "corrupt_rows": 2 }));
    let forgotten = send(&control, Method::POST, "/api/v1/store/forget/cloud", "").await.json();
    assert_eq!(forgotten, json!({ "records": 7 }));
    let letters = get(&control, "/api/v1/sinks/cloud/rejected").await.json();
    assert_eq!(letters[0]["position"], 17);
    let path = "/api/v1/sinks/cloud/rejected/redrive";
    let redriven = send(&control, Method::POST, path, r#"{"positions": []}"#).await.json();
    assert_eq!(redriven, json!({ "records": 2 }));

    let part = get(&control, "/api/v1/store/export/tables/meters").await;
    assert_eq!((part.header(NEXT_HEADER), &part.body[..]), ("10", &[1, 2, 3][..]));
    assert_eq!(part.header("content-type"), "application/vnd.apache.arrow.stream");
    let end = get(&control, "/api/v1/store/export/tables/meters?from=10").await;
    assert_eq!((end.status, end.body.len()), (StatusCode::NO_CONTENT, 0));
}

#[tokio::test]
async fn what_cannot_be_done_is_a_problem() {
    let control = control(&Arc::default());
    for path in ["/api/v1/sinks/clout/rejected", "/api/v1/store/export/tables/meter"] {
        get(&control, path).await.assert_problem(404, "not_in_the_store");
    }
    let forget = send(&control, Method::POST, "/api/v1/store/forget/meter", "").await;
    forget.assert_problem(404, "not_in_the_store");
    let pause = send(&control, Method::POST, "/api/v1/sinks/clout/pause", "").await;
    pause.assert_problem(404, "not_in_the_store");
    let compact = send(&control, Method::POST, "/api/v1/store/compact", "").await;
    compact.assert_problem(409, "store_not_now");
    assert_eq!(compact.json()["detail"], "the disk is full");
    for body in [r#"{"per_second": 0}"#, r#"{"per_second": -1}"#, r#"{"rate": 1}"#, ""] {
        let path = "/api/v1/sinks/cloud/replay";
        send(&control, Method::PUT, path, body).await.assert_problem(422, "body_refused");
    }
    let path = "/api/v1/sinks/cloud/rejected/drop";
    // An empty body is no wish to drop all.
    send(&control, Method::POST, path, "").await.assert_problem(422, "body_refused");
    send(&control, Method::POST, path, "{}").await.assert_problem(422, "body_refused");
    get(&control, "/api/v1/store/verify").await.assert_problem(405, "method_not_allowed");
    get(&control, "/api/v1/store/export/rows/x").await.assert_problem(404, "no_such_route");
}
