use std::io::Write;

use arrow::array::AsArray;
use arrow::datatypes::{Float64Type, Int64Type};
use serde_json::json;
use tempfile::NamedTempFile;
use tokio::time::timeout;

use super::*;
use crate::table::Rows;

fn recording(text: &str) -> NamedTempFile {
    let mut file = NamedTempFile::new().unwrap();
    file.write_all(text.as_bytes()).unwrap();
    file
}

fn south(file: &str, more: &serde_json::Value) -> (ReplaySouth, TableBuilder) {
    let mut config = json!({
        "file": file,
        "time": "t",
        "points": [
            { "name": "level", "type": "f64" },
            { "name": "count", "type": "i64", "path": "n" },
        ],
    });
    config.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    let south = ReplaySouth::new(serde_json::from_value(config).unwrap()).unwrap();
    let table = TableBuilder::new(south.points(), false);
    (south, table)
}

async fn rows(south: &mut ReplaySouth, table: &mut TableBuilder) -> Rows {
    south.read(table).await.unwrap();
    table.finish()
}

const JSON: &str = "{\"t\": \"2026-03-01T00:00:00Z\", \"level\": 1.5, \"n\": 1}

{\"t\": \"2026-03-01T00:00:00Z\", \"level\": \"x\", \"n\": 2}
no json
{\"t\": 1772323202000, \"level\": 2.5}
{\"level\": 3.5}
{\"t\": \"2026-03-01T00:00:12.5+00:00\", \"level\": 4.5, \"n\": 4}";

/// 2026-03-01T00:00:00Z, by `date -d ... +%s`.
const START: i64 = 1_772_323_200_000_000;

#[tokio::test(start_paused = true)]
async fn rows_come_at_the_recorded_pace() {
    let file = recording(JSON);
    let (mut south, mut table) = south(file.path().to_str().unwrap(), &json!({}));
    south.connect().await.unwrap();
    let start = Instant::now();
    let first = rows(&mut south, &mut table).await;
    assert_eq!(first.times, [Some(START); 2]);
    assert_eq!(first.columns[1].as_primitive::<Int64Type>().values(), &[1, 2]);
    let second = rows(&mut south, &mut table).await;
    assert_eq!(second.times, [Some(START + 2_000_000)]);
    assert!(start.elapsed().abs_diff(Duration::from_secs(2)) <= Duration::from_millis(2));
    let third = rows(&mut south, &mut table).await;
    assert_eq!(third.columns[0].as_primitive::<Float64Type>().values(), &[4.5]);
    assert!(start.elapsed().abs_diff(Duration::from_millis(12_500)) <= Duration::from_millis(2));
    let stats = south.stats();
    assert_eq!((stats.get(Counter::Replies), stats.get(Counter::Rejected)), (4, 2));
    let error = stats.last_error().unwrap();
    assert!(error.ends_with(":6: has no time that can be read"), "{error}");
    timeout(Duration::from_hours(1), south.read(&mut table)).await.unwrap_err();
    south.connect().await.unwrap();
    timeout(Duration::from_hours(1), south.read(&mut table)).await.unwrap_err();
    assert!(table.is_empty(), "nothing comes twice");
    assert_eq!(stats.notes(), ["the recording is at its end"]);
}

const CSV: &str = "\u{FEFF}t,name,n,level\r\n1772323200,\"a, b\",1,1.5\r\n1772323201.5,b,,2\r\n1772323203,\"c,3,1\r\n1772323260,d,4,x\r\n";

#[tokio::test(start_paused = true)]
async fn csv_is_read_by_its_column_names() {
    let file = recording(CSV);
    let more = json!({ "format": "csv", "time_unit": "s", "speed": 60.0 });
    let (mut south, mut table) = south(file.path().to_str().unwrap(), &more);
    south.connect().await.unwrap();
    let start = Instant::now();
    let mut all = Vec::new();
    for _ in 0..3 {
        all.push(rows(&mut south, &mut table).await);
    }
    assert!(start.elapsed().abs_diff(Duration::from_secs(1)) <= Duration::from_millis(2));
    let times: Vec<_> = all.iter().flat_map(|rows| rows.times.clone()).collect();
    assert_eq!(times, [Some(START), Some(START + 1_500_000), Some(START + 60_000_000)]);
    let counts = |rows: &Rows| rows.columns[1].as_primitive::<Int64Type>().iter().next().unwrap();
    assert_eq!(all.iter().map(counts).collect::<Vec<_>>(), [Some(1), None, Some(4)]);
    assert_eq!(south.stats().get(Counter::Rejected), 1);
}

#[tokio::test(start_paused = true)]
async fn as_fast_as_the_table_takes_them() {
    let lines: Vec<_> = (0..2500).map(|n| format!("{{\"t\": {n}, \"n\": {n}}}\n")).collect();
    let lines = lines.concat();
    let file = recording(&lines);
    let more = json!({ "pace": "fast", "restamp": true });
    let (mut south, mut table) = south(file.path().to_str().unwrap(), &more);
    south.connect().await.unwrap();
    let mut next = 0;
    for right in [1000, 1000, 500] {
        let rows = rows(&mut south, &mut table).await;
        assert_eq!((rows.len(), rows.times[0]), (right, None));
        for n in rows.columns[1].as_primitive::<Int64Type>().values() {
            assert_eq!(*n, next);
            next += 1;
        }
    }
}

#[tokio::test]
async fn what_cannot_be_read_is_said() {
    let (mut gone, _) = south("/nonexistent/rows.jsonl", &json!({}));
    let fault = gone.connect().await.unwrap_err();
    let text = "/nonexistent/rows.jsonl: No such file or directory (os error 2)";
    assert_eq!(fault, Fault::Link(text.to_owned()));
    let file = recording("time,level\n1,2\n");
    let path = file.path().to_str().unwrap();
    let (mut other, _) = south(path, &json!({ "format": "csv" }));
    let fault = other.connect().await.unwrap_err();
    let text = format!("{path}: has no column `t`: it has time, level");
    assert_eq!(fault, Fault::Config(text));
    let wrong = json!({ "file": "", "time": "a..b", "speed": 0.0, "batch_rows": 0, "points": [] });
    let config: Replay = serde_json::from_value(wrong).unwrap();
    let fields: Vec<_> = config.problems().into_iter().map(|p| p.0).collect();
    assert_eq!(fields, ["file", "batch_rows", "speed", "points", "time"]);
}
